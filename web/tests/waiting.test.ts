// The time of questions: letting them wait, and asking again after they have run out.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";
import { ConnectedFolder, eventually, Server } from "./harness/server.ts";

let impatient: Server;
before(async () => {
  impatient = await Server.start({ ATELIER_GATE__APPROVAL_MEDIUM: "4s" });
});
after(() => impatient.stop());

/// TL-02.4
test("a question waits until it is answered, by key or by the project's setting", async (t) => {
  const ann = server.user("ann");
  const shop = await ann.project("waiting");
  const folder = await ConnectedFolder.connect(shop, { "notes.md": "# Notes\n" });
  t.after(() => folder.disconnect());
  const write = { path: "notes.md", content: "# Other notes\n" };
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  await page.getByText("No approvals pending").waitFor();

  const call = await shop.waitForStatus(await shop.call("write_file", write), "pending_approval");
  const card = page.getByRole("region", { name: "Selected approval" });
  await card.getByRole("img", { name: /left$/ }).waitFor();
  await card.locator("[aria-keyshortcuts=w]").waitFor();
  await page.keyboard.press("w");
  await card.getByRole("img", { name: "Waits until it is answered" }).waitFor();
  await page.getByText("The approval waits until it is answered.").waitFor();
  await card.getByRole("button", { name: "Keep waiting" }).waitFor({ state: "detached" });
  const patient = await shop.waitForStatus(call, "pending_approval");
  assert.equal(patient.approval?.expires_at, null);
  await tab.assertAccessible("an approval that waits");
  await card.getByRole("button", { name: "Approve" }).click();
  await shop.waitForStatus(call, "completed");

  await tab.goto(`#/projects/${shop.id}/settings`);
  const settings = page.getByRole("dialog");
  const seconds = settings.getByLabel("Seconds to decide");
  await seconds.fill("7200");
  await settings.getByRole("button", { name: "Save" }).click();
  await settings.waitFor({ state: "detached" });
  const wait = async () =>
    (await ann.request<{ settings: { approvals?: { wait: unknown } } }>("GET", shop.path)).settings
      .approvals?.wait;
  assert.equal(await wait(), 7200);
  await tab.goto(`#/projects/${shop.id}/settings`);
  assert.equal(await seconds.inputValue(), "7200");
  await settings.getByLabel("Questions wait until they are answered").check();
  await seconds.waitFor({ state: "detached" });
  await tab.assertAccessible("the time of questions");
  await settings.getByRole("button", { name: "Save" }).click();
  await settings.waitFor({ state: "detached" });
  assert.equal(await wait(), "until_answered");
  await tab.close();
});

/// TL-02.5
test("a question that ran out is asked again with one click, also on a phone", async (t) => {
  const ann = impatient.user("ann");
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, { "notes.md": "# Notes\n" });
  t.after(() => folder.disconnect());
  const { id: conversation } = await shop.conversation("notes");
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/${conversation}`, {
    size: PHONE,
  });
  const { page } = tab;
  const message = { content: "write notes.md: other", target_agent: "writer" };
  await shop.send(conversation, message);
  const again = page.getByRole("button", { name: "Ask again" });
  await again.waitFor();
  await page.getByText("Nobody decided in time.").waitFor();
  await tab.assertAccessible("a question that ran out");
  // The agent has ended its work without the answer.
  const settings = { settings: { approvals: { wait: "until_answered" } } };
  await ann.request("PUT", shop.path, settings);
  await eventually("the task has ended", async () => {
    const path = `${shop.path}/tasks?session=${conversation}`;
    const { tasks } = await ann.request<{ tasks: { status: string }[] }>("GET", path);
    return tasks.every(({ status }) => status === "completed");
  });
  await again.click();
  await page.getByText("Nobody decided in time. It was asked again.").waitFor();
  await page.getByRole("img", { name: "Waits until it is answered" }).waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await eventually("the file is written", () => folder.read("notes.md").trimEnd() === "other");
  await tab.close();
});
