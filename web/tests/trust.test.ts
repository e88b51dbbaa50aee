// The console never loses an approval or an event, and never runs text from others as HTML.

import assert from "node:assert/strict";
import { test } from "node:test";
import { ConnectedFolder, type ToolCall } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";

test("an open page survives a restart of the server without losing anything", async (t) => {
  const ann = server.user("ann");
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, { "a.txt": "old\n" });
  t.after(() => folder.disconnect());
  const first = await shop.waitForStatus(
    await shop.call("write_file", { path: "a.txt", content: "new\n" }),
    "pending_approval",
  );

  const tab = await browser.open(ann, "#/approvals");
  tab.allowed.push(/ERR_|Failed to fetch|network error/i);
  const { page } = tab;
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.evaluate(() => void Object.assign(globalThis, { samePage: true }));
  const other = await browser.open(ann, "#/projects");
  other.allowed.push(/ERR_|Failed to fetch|network error/i);
  await other.page.getByText("Live", { exact: true }).waitFor();
  await server.kill();
  // A page whose code is not loaded yet cannot be shown now.
  await other.goto(`#/projects/${shop.id}/memory`);
  await other.page.getByText("This page could not be loaded").waitFor();
  await page.getByText("Connection to the server lost.").waitFor();
  // A decision that cannot be sent shows an error.
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("alert").filter({ hasText: "is not responding" }).waitFor();

  await server.restart();
  const second = await shop.call("write_file", { path: "b.txt", content: "b\n" });
  await page.getByText("Connection to the server lost.").waitFor({ state: "hidden" });
  await other.page.getByText("of 1,000,000 interactions").waitFor();
  await other.close();
  await page.waitForFunction(() => document.title.startsWith("(2) "));
  await page.getByRole("button", { name: "Approve" }).click();
  await shop.waitForStatus(first, "completed");
  assert.equal(folder.read("a.txt"), "new\n");
  await page.getByRole("article", { name: /b\.txt/ }).waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await shop.waitForStatus(second, "completed");
  // Counted by the filter, because the number of visible rows depends on other events.
  const expectEvents = async (text: string, n: number) => {
    await page.getByRole("searchbox", { name: "Filter events" }).fill(text);
    await page.getByText(`${n} events`, { exact: true }).waitFor();
  };
  // The event log has no gaps and no duplicates.
  await tab.goto("#/activity");
  await expectEvents("Result saved: Done", 2);
  await expectEvents("Approval requested", 2);
  assert.equal(await page.evaluate(() => "samePage" in globalThis), true);

  // A reload shows the same events.
  await page.reload();
  await expectEvents("Result saved: Done", 2);
  await expectEvents("Approval requested", 2);
  await tab.close();
});

const EVIL = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>{@html 1}`;

test("names, diffs and commands are never run as HTML", async (t) => {
  const ann = server.user("eve");
  const shop = await ann.project(`shop ${EVIL}`);
  const folder = await ConnectedFolder.connect(shop, { "x.html": "<p>\n" });
  t.after(() => folder.disconnect());
  const calls = [
    await shop.call("write_file", {
      path: "x.html",
      content: `${EVIL}\nif (admin\u202e\u2066) {\nlet a\u3164 = "\u2800\u00a0", s\u0441ript;\n`,
    }),
    await shop.call("write_file", { path: `${EVIL.replaceAll("/", "")}.txt`, content: "x\n" }),
    await shop.call("execute_command", {
      command: "mkdir",
      args: [`${EVIL.replaceAll("/", "")}`, "\u001b[2J"],
    }),
  ];
  const pending: ToolCall[] = [];
  for (const call of calls)
    if (call.status !== "denied") pending.push(await shop.waitForStatus(call, "pending_approval"));
  assert.ok(pending.length >= 2);

  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  for (const call of pending) {
    await tab.goto(`#/approvals/${call.tool_id}`);
    await page.getByRole("article").waitFor();
    await page.getByText("onerror=").first().waitFor();
  }
  await tab.goto(`#/approvals/${pending[0]?.tool_id}`);
  // Characters that change the direction, cannot be seen or look like others are shown by their code point.
  for (const code of ["U+202E", "U+3164", "U+2800", "U+00A0", "U+0441"])
    await page.getByText(code).waitFor();
  await page.keyboard.press("v");
  for (const address of [
    `#/projects/${shop.id}`,
    `#/projects/${shop.id}/decisions`,
    "#/activity",
    "#/projects",
  ]) {
    await tab.goto(address);
    await page.getByText("onerror=").first().waitFor();
  }
  assert.doesNotMatch(await page.title(), /^owned/);
  assert.equal(await page.locator("main img").count(), 0);
  for (const call of pending) await shop.cancel(call);
  await tab.close();
});
