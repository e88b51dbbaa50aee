// Deciding several approvals at once, by mouse and by keyboard.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { browser, server } from "./harness/fixtures.ts";
import type { Project } from "./harness/server.ts";

const waitForCount = (page: Page, n: number) =>
  page.waitForFunction((n) => document.title.startsWith(n ? `(${n}) ` : "Approvals"), n);

async function request(project: Project, name: string) {
  const call = await project.call(
    "execute_command",
    { command: "make", args: [name] },
    { agent_id: "agent_coder" },
  );
  return project.waitForStatus(call, "pending_approval");
}

test("keys act on the selection, and the card has no buttons meanwhile", async () => {
  const ann = server.user("ann");
  const shop = await ann.project("shop");
  const calls = [];
  for (const name of ["one", "two", "three"]) calls.push(await request(shop, name));
  const [one, two, three] = calls;
  assert.ok(one && two && three);
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  await waitForCount(page, 3);
  const card = page.getByRole("region", { name: "Selected approval" });
  await card.getByRole("article", { name: /make one/ }).waitFor();
  await page.keyboard.press("x");
  await page.keyboard.press("j");
  await card.getByRole("article", { name: /make two/ }).waitFor();
  await page.keyboard.press("x");
  await page.getByText("2 selected").waitFor();
  // The card of the third call is shown, but neither its buttons nor its keys work.
  await page.keyboard.press("j");
  await card.getByRole("article", { name: /make three/ }).waitFor();
  assert.equal(await card.getByRole("button", { name: "Approve" }).count(), 0);
  await tab.assertAccessible("a selection of approvals");
  await page.keyboard.press("n");
  await page.keyboard.type("not today");
  await page.keyboard.press("Enter");
  for (const call of [one, two])
    assert.equal((await shop.waitForStatus(call, "rejected")).approval?.reason, "not today");
  await waitForCount(page, 1);
  assert.equal((await shop.waitForStatus(three, "pending_approval")).status, "pending_approval");
  await card.getByRole("button", { name: "Approve" }).waitFor();
  await shop.cancel(three);
  await tab.close();
});

test("all approvals are selected and approved at once; Escape clears the selection", async () => {
  const ann = server.user("bob");
  const shop = await ann.project("shop");
  const calls = [];
  for (const name of ["one", "two", "three"]) calls.push(await request(shop, name));
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  await waitForCount(page, 3);
  const all = page.getByRole("checkbox", { name: "Select all 3" });
  await all.check();
  await page.getByRole("button", { name: "Approve all 3" }).waitFor();
  await page.getByText("3 selected").click();
  await page.keyboard.press("Escape");
  await page.getByText("3 selected").waitFor({ state: "hidden" });
  assert.equal(await all.isChecked(), false);
  await all.check();
  await page.getByRole("button", { name: "Approve all 3" }).click();
  await page.getByText("3 approved").waitFor();
  await waitForCount(page, 0);
  // No machine is connected, so the calls wait for one.
  for (const call of calls) await shop.cancel(await shop.waitForStatus(call, "approved"));
  await tab.close();
});

test("an argument of several lines is shown as lines", async () => {
  const ann = server.user("cleo");
  const shop = await ann.project("shop");
  const script = 'import os\nprint("hi")\n';
  const call = await shop.waitForStatus(
    await shop.call("execute_command", { command: "python3", args: ["-c", script, "a b"] }),
    "pending_approval",
  );
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const command = page.getByLabel("Command and arguments");
  await command.getByText("python3").waitFor();
  assert.equal(await command.locator(".lines").textContent(), script);
  assert.doesNotMatch((await command.textContent()) ?? "", /\\n/);
  assert.match((await command.textContent()) ?? "", /"a b"/);
  await tab.assertAccessible("a command with a script");
  await shop.cancel(call);
  await tab.close();
});
