// What agents remember: asked, counted, pruned, taken along.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { PHONE } from "./harness/browser.mjs";
import { browser, server } from "./harness/stage.mjs";

const day = (ago) => new Date(Date.now() - ago * 86_400_000).toISOString();
const EVIL = `<img src=x onerror="document.title='owned'">`;
const MEMORIES = [
  { text: "The deployment to staging failed because the disk was full", interaction_type: "task_execution", success: false, timestamp: day(40), metadata: {} },
  { text: "Wrote the health route and its test", interaction_type: "task_execution", success: true, timestamp: day(3), metadata: {} },
  { text: `Asked about vouchers ${EVIL}`, interaction_type: "user_message", success: true, timestamp: day(2), metadata: {} },
  { text: "git status showed three changed files", interaction_type: "tool_call", success: true, timestamp: day(1), metadata: {} },
];

/// CX-03.1, CX-04.2, CX-05.1, CX-06.1
test("search with filters, see it at a glance, prune after a dry run, export and import", async () => {
  const ann = server.person("ann");
  const shop = await ann.project("shop");
  const [coder, , writer] = await shop.agents();
  await ann.ask("POST", `${shop.path}/agents/${coder.id}/context/import`, { interactions: MEMORIES });

  const tab = await browser.open(ann, `#/projects/${shop.id}/memory/${coder.id}`);
  const { page } = tab;
  await page.getByText("of 1,000,000 interactions").waitFor();
  assert.equal(await page.locator(".limit strong").innerText(), "4");
  assert.match(await page.locator("main dl").first().innerText(), /Success\s+75 %/);
  await page.getByRole("img", { name: /periods, at most 1 in one/ }).waitFor();

  const query = page.getByRole("searchbox", { name: "What does it remember about" });
  const results = page.getByRole("list", { name: "Results, best first" });
  await query.fill("why did staging fail");
  await page.getByRole("button", { name: "Find" }).click();
  await results.getByText("because the disk was full").waitFor();
  assert.match(await results.getByRole("listitem").first().innerText(), /words \d/);
  await tab.assertAccessible("memory");
  await page.getByLabel("Outcome").selectOption("Success");
  await query.fill("vouchers");
  await page.getByRole("button", { name: "Find" }).click();
  // Shown, not run.
  await results.getByText("onerror=").waitFor();
  assert.equal(await page.locator("main img").count(), 0);
  await results.getByText("disk was full").waitFor({ state: "hidden" });

  await page.getByRole("button", { name: "See what would go" }).click();
  await page.getByText("1 would go, 3 would stay.").waitFor();
  assert.equal(await page.locator(".limit strong").innerText(), "4");
  const [taken] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export" }).click()]);
  const file = JSON.parse(readFileSync(await taken.path(), "utf8"));
  assert.equal(file.total_interactions, 4);
  await page.getByRole("button", { name: "Delete 1" }).click();
  await page.waitForFunction(() => document.querySelector(".limit strong")?.textContent === "3");

  // Another agent takes it in; the same file twice changes nothing.
  await tab.go(`#/projects/${shop.id}/memory/${writer.id}`);
  // Only there is it the other one's field.
  await page.waitForFunction(() => document.querySelector(".limit strong")?.textContent === "0");
  const path = await taken.path();
  writeFileSync(`${path}.json`, JSON.stringify({ interactions: file.interactions.map(({ id, ...rest }) => rest) }));
  await page.locator("input[type=file]").setInputFiles(`${path}.json`);
  await page.getByText("4 imported, 0 known already").waitFor();
  await page.waitForFunction(() => document.querySelector(".limit strong")?.textContent === "4");
  await tab.close();
});

test("memory on a phone", async () => {
  const bob = server.person("bob");
  const shop = await bob.project("shop");
  const tab = await browser.open(bob, `#/projects/${shop.id}/memory`, { size: PHONE, scheme: "dark" });
  await tab.page.getByText("of 1,000,000 interactions").waitFor();
  assert.equal(await tab.page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await tab.assertAccessible("memory on a phone, dark");
  await tab.close();
});
