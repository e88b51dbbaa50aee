// What the console must never do: lose something, or run what others wrote.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Folder } from "./harness/server.mjs";
import { browser, server } from "./harness/stage.mjs";

test("the server is restarted under an open page, and nothing is lost", async (t) => {
  const ann = server.person("ann");
  const shop = await ann.project("shop");
  const folder = await Folder.connect(shop, { "a.txt": "old\n" });
  t.after(() => folder.disconnect());
  const first = await shop.until(await shop.call("write_file", { path: "a.txt", content: "new\n" }), "pending_approval");

  const tab = await browser.open(ann, "#/approvals");
  tab.allowed.push(/ERR_|Failed to fetch|network error/i);
  const { page } = tab;
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.evaluate(() => (globalThis.samePage = true));
  const other = await browser.open(ann, "#/projects");
  other.allowed.push(/ERR_|Failed to fetch|network error/i);
  await other.page.getByText("Live", { exact: true }).waitFor();
  await server.kill();
  // A page that nobody has been to yet cannot be had now.
  await other.go(`#/projects/${shop.id}/memory`);
  await other.page.getByText("This page could not be loaded").waitFor();
  await page.getByText("The connection to the server is lost.").waitFor();
  // A decision that cannot be sent is not lost silently either.
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("alert").filter({ hasText: "does not answer" }).waitFor();

  await server.restart();
  const second = await shop.call("write_file", { path: "b.txt", content: "b\n" });
  await page.getByText("The connection to the server is lost.").waitFor({ state: "hidden" });
  await other.page.getByText("of 1,000,000 interactions").waitFor();
  await other.close();
  await page.waitForFunction(() => document.title.startsWith("(2) "));
  await page.getByRole("button", { name: "Approve" }).click();
  await shop.until(first, "completed");
  assert.equal(folder.read("a.txt"), "new\n");
  await page.getByRole("article", { name: /b\.txt/ }).waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await shop.until(second, "completed");
  // By the filter: how many rows are in sight depends on what else happened.
  const logged = async (text, n) => {
    await page.getByRole("searchbox", { name: "Filter events" }).fill(text);
    await page.getByText(`${n} events`, { exact: true }).waitFor();
  };
  // The log of events has no gap and nothing twice.
  await tab.go("#/activity");
  await logged("Result saved: Done", 2);
  await logged("Waiting for your decision", 2);
  assert.equal(await page.evaluate(() => globalThis.samePage), true);

  // And a reload shows the same.
  await page.reload();
  await logged("Result saved: Done", 2);
  await logged("Waiting for your decision", 2);
  await tab.close();
});

const EVIL = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>{@html 1}`;

test("names, diffs, commands and reasons are shown, not run", async (t) => {
  const ann = server.person("eve");
  const shop = await ann.project(`shop ${EVIL}`);
  const folder = await Folder.connect(shop, { "x.html": "<p>\n" });
  t.after(() => folder.disconnect());
  const calls = [
    await shop.call("write_file", { path: "x.html", content: `${EVIL}\nif (admin\u202e\u2066) {\n` }),
    await shop.call("write_file", { path: `${EVIL.replaceAll("/", "")}.txt`, content: "x\n" }),
    await shop.call("execute_command", { command: "mkdir", args: [`${EVIL.replaceAll("/", "")}`, "\u001b[2J"] }),
  ];
  const waiting = [];
  for (const call of calls) if (call.status !== "denied") waiting.push(await shop.until(call, "pending_approval"));
  assert.ok(waiting.length >= 2);

  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  for (const call of waiting) {
    await tab.go(`#/approvals/${call.tool_id}`);
    await page.getByRole("article").waitFor();
    await page.getByText("onerror=").first().waitFor();
  }
  await tab.go(`#/approvals/${waiting[0].tool_id}`);
  // What would fool the eye is named instead.
  await page.getByText("U+202E").waitFor();
  await page.keyboard.press("v");
  for (const address of [`#/projects/${shop.id}`, `#/projects/${shop.id}/decisions`, "#/activity", "#/projects"]) {
    await tab.go(address);
    await page.getByText("onerror=").first().waitFor();
  }
  assert.doesNotMatch(await page.title(), /^owned/);
  assert.equal(await page.locator("main img").count(), 0);
  for (const call of waiting) await ann.ask("POST", `${shop.path}/tools/${call.tool_id}/cancel`);
  await tab.close();
});
