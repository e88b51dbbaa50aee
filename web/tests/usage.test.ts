// The page Usage: charts, tables and CSV of what models have used, and budgets.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { before, test } from "node:test";
import { DESKTOP, PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";
import { eventually, type User } from "./harness/server.ts";

let boss: User;
before(async () => {
  boss = server.user("boss", "--role", "admin");
  for (const name of ["shop", "garden"]) {
    const project = await boss.project(name);
    const { id } = await project.conversation("a talk");
    await project.send(id, { content: "hello", target_agent: "agent_coder" });
  }
  await eventually("both answers are counted", async () => {
    const usage = await boss.request<{ total: { steps: number } }>("GET", "/my/usage");
    return usage.total.steps === 2 || null;
  });
});

/// MO-07
test("usage is shown by day, project, agent, model and person, and as CSV", async () => {
  const tab = await browser.open(boss, "", { size: DESKTOP });
  const { page } = tab;
  await page.getByRole("link", { name: "Usage" }).first().click();
  await page.getByRole("heading", { name: "Usage", level: 1 }).waitFor();
  await page.getByRole("img", { name: /Cost by day/ }).waitFor();
  const table = page.getByRole("region", { name: "Projects" });
  for (const name of ["shop", "garden"]) await table.getByText(name).waitFor();
  await page.getByLabel("Show").selectOption("tokens");
  await page.getByRole("img", { name: /Tokens by day, at most [1-9]/ }).waitFor();
  for (const [group, heading, row] of [
    ["agent", "Agents", "agent_coder"],
    ["model", "Models", "demo"],
  ] as const) {
    await page.getByLabel("Sum by").selectOption(group);
    await page.getByRole("region", { name: heading }).getByText(row).first().waitFor();
  }
  // Admins see their tenant and the server, by person as well.
  await page.getByLabel("Whose").selectOption("server");
  await page.getByLabel("Sum by").selectOption("person");
  await page.getByRole("region", { name: "People" }).getByText("(default)").waitFor();
  await page.getByLabel("Time").selectOption("month");
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download CSV" }).click();
  const file = await (await download).path();
  const [names, ...rows] = (await readFile(file, "utf8")).trim().split("\r\n");
  assert.equal(names, "day,user_id,tenant,steps,input_tokens,output_tokens,cost");
  assert.match(rows[0] ?? "", /^\d{4}-\d\d-\d\d,[0-9a-f-]{36},default,2,\d+,\d+,0$/);
  await tab.assertAccessible("usage");
  await tab.close();
});

/// MO-07
test("budgets are set by a person and by an admin, and show what is used", async () => {
  const tab = await browser.open(boss, "#/usage", { size: DESKTOP });
  const { page } = tab;
  await page.getByRole("button", { name: "Set a budget" }).click();
  await page.getByRole("spinbutton", { name: "Tokens a day" }).fill("1");
  await tab.assertAccessible("a form for budgets");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("Budget saved.").waitFor();
  await page.getByText("Used up", { exact: true }).waitFor();
  await page.getByRole("img", { name: /Tokens a day: [\d,]+ % used/ }).waitFor();

  await page.getByRole("button", { name: "Set a budget" }).click();
  assert.equal(await page.getByRole("spinbutton", { name: "Tokens a day" }).inputValue(), "1");
  await page.getByLabel("Whose budget").selectOption("other_tenant");
  assert.equal(await page.getByRole("spinbutton", { name: "Tokens a day" }).inputValue(), "");
  await page.getByLabel("Name of the tenant").fill("other");
  await page.getByRole("spinbutton", { name: "US dollars a month" }).fill("12.5");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("heading", { name: "Tenant other" }).waitFor();

  // A task without a budget says why it ended.
  const shop = await boss.project("late");
  const { id } = await shop.conversation("one more");
  await shop.send(id, { content: "hello", target_agent: "agent_coder" });
  await tab.goto(`#/projects/${shop.id}/chat/${id}`);
  await page
    .getByText(/your budget of 1 tokens for today is used up/)
    .first()
    .waitFor();

  // Empty fields remove the budget.
  await tab.goto("#/usage");
  await page.getByRole("button", { name: "Set a budget" }).click();
  await page.getByRole("spinbutton", { name: "Tokens a day" }).fill("");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByText("Used up", { exact: true }).waitFor({ state: "hidden" });
  await tab.close();
});

/// MO-07
test("the budget of a project is a field of its settings", async () => {
  const shop = await boss.project("limited");
  const tab = await browser.open(boss, `#/projects/${shop.id}/settings`, { size: PHONE });
  const { page } = tab;
  await page.getByRole("spinbutton", { name: "US dollars a day" }).fill("2.5");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await eventually("the budget is stored", async () => {
    const { budgets } = await boss.request<{
      budgets: { project_id: string | null; budget: { cost_per_day: number | null } }[];
    }>("GET", "/my/budgets");
    const found = budgets.find(({ project_id }) => project_id === shop.id);
    return found?.budget.cost_per_day === 2.5 || null;
  });
  await tab.goto("#/usage");
  await page.getByRole("heading", { name: "Project limited" }).waitFor();
  await tab.close();
});

for (const [locale, scheme, size, title, whose] of [
  ["en-GB", "dark", PHONE, "Usage", "Whose budget"],
  ["ru-RU", "light", PHONE, "Расход", "Чей бюджет"],
  ["ja-JP", "dark", PHONE, "使用量", "予算の対象"],
  ["ru-RU", "dark", DESKTOP, "Расход", "Чей бюджет"],
] as const) {
  test(`usage in ${locale}, ${scheme}, ${size.width} wide`, async () => {
    const tab = await browser.open(boss, "#/usage", { locale, scheme, size });
    const { page } = tab;
    await page.getByRole("heading", { name: title, level: 1 }).waitFor();
    await page.locator("button[aria-expanded]").click();
    await page.getByLabel(whose).waitFor();
    await tab.assertAccessible(`usage in ${locale}`);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), size.width);
    await tab.close();
  });
}
