// Memory of agents: search, statistics, pruning, export and import.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";

const daysAgo = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString();
const EVIL = `<img src=x onerror="document.title='owned'">`;
const MEMORIES = [
  {
    text: "The deployment to staging failed because the disk was full",
    interaction_type: "task_execution",
    success: false,
    timestamp: daysAgo(40),
    metadata: {},
  },
  {
    text: "Wrote the health route and its test",
    interaction_type: "task_execution",
    success: true,
    timestamp: daysAgo(3),
    metadata: {},
  },
  {
    text: `Asked about vouchers ${EVIL}`,
    interaction_type: "user_message",
    success: true,
    timestamp: daysAgo(2),
    metadata: {},
  },
  {
    text: "git status showed three changed files",
    interaction_type: "tool_call",
    success: true,
    timestamp: daysAgo(1),
    metadata: {},
  },
];

/// CX-03.1, CX-04.2, CX-05.1, CX-06.1
test("memory is searched, counted, pruned after a preview, exported and imported", async () => {
  const ann = server.user("ann");
  const shop = await ann.project("shop");
  const [coder, , writer] = await shop.agents();
  assert.ok(coder && writer);
  await ann.request("POST", `${shop.path}/agents/${coder.id}/context/import`, {
    interactions: MEMORIES,
  });

  const tab = await browser.open(ann, `#/projects/${shop.id}/memory/${coder.id}`);
  const { page } = tab;
  await page.getByText("of 1,000,000 interactions").waitFor();
  assert.equal(await page.locator(".limit strong").innerText(), "4");
  assert.match(await page.locator("main dl").first().innerText(), /Success rate\s+75 %/);
  await page.getByRole("img", { name: /periods, at most 1 per period/ }).waitFor();
  // Before the first search, the newest memories are shown, newest first.
  const newest = page.getByRole("list", { name: "Newest memories" });
  await newest.getByText("git status showed three changed files").waitFor();
  assert.match(await newest.getByRole("listitem").first().innerText(), /git status/);
  assert.equal(await newest.getByRole("listitem").count(), 4);

  const query = page.getByRole("searchbox", { name: "Search this agent’s memory" });
  const results = page.getByRole("list", { name: "Results, best first" });
  await query.fill("why did staging fail");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await results.getByText("because the disk was full").waitFor();
  assert.match(await results.getByRole("listitem").first().innerText(), /words \d/);
  await tab.assertAccessible("memory");
  await page.getByLabel("Outcome").selectOption("Success");
  await query.fill("vouchers");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  // HTML in a memory is shown as text.
  await results.getByText("onerror=").waitFor();
  assert.equal(await page.locator("main img").count(), 0);
  await results.getByText("disk was full").waitFor({ state: "hidden" });

  await page.getByRole("button", { name: "Preview" }).click();
  await page.getByText("1 interaction would be deleted, 3 kept.").waitFor();
  assert.equal(await page.locator(".limit strong").innerText(), "4");
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Export" }).click(),
  ]);
  const file = JSON.parse(readFileSync(await download.path(), "utf8")) as {
    total_interactions: number;
    interactions: { id?: string }[];
  };
  assert.equal(file.total_interactions, 4);
  await page.getByRole("button", { name: "Delete 1" }).click();
  await page.waitForFunction(() => document.querySelector(".limit strong")?.textContent === "3");

  // The export of one agent is imported by another.
  await tab.goto(`#/projects/${shop.id}/memory/${writer.id}`);
  // The file field belongs to the other agent only once its statistics are shown.
  await page.waitForFunction(() => document.querySelector(".limit strong")?.textContent === "0");
  const path = await download.path();
  writeFileSync(
    `${path}.json`,
    JSON.stringify({
      interactions: file.interactions.map((interaction) => ({ ...interaction, id: undefined })),
    }),
  );
  await page.locator("input[type=file]").setInputFiles(`${path}.json`);
  await page.getByText("4 imported, 0 already present").waitFor();
  await page.waitForFunction(() => document.querySelector(".limit strong")?.textContent === "4");
  await tab.close();
});

test("memory on a phone", async () => {
  const bob = server.user("bob");
  const shop = await bob.project("shop");
  const tab = await browser.open(bob, `#/projects/${shop.id}/memory`, {
    size: PHONE,
    scheme: "dark",
  });
  await tab.page.getByText("of 1,000,000 interactions").waitFor();
  await tab.page.getByText("This agent remembers nothing yet").waitFor();
  assert.equal(await tab.page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await tab.assertAccessible("memory on a phone, dark");
  await tab.close();
});
