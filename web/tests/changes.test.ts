// Changes: what scripts have changed in a layer is seen, chosen, landed, undone and discarded.

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { PHONE } from "./harness/browser.ts";
import { ConnectedFolder } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";

/** A user with a connected folder, and a conversation whose scripts have changed three files. */
async function setUp(t: TestContext, name: string) {
  const ann = server.user(name);
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, {
    "src/price.txt": "one\ntwo\n",
    "notes.md": "# Notes\n",
  });
  t.after(() => folder.disconnect());
  const conversation = await shop.conversation("prices");
  const script = "sed -i s/two/2/ src/price.txt; echo new > src/new.txt; echo more >> notes.md";
  const ran = await shop.call("shell", { script }, { session_id: conversation.id });
  await shop.waitForStatus(ran, "completed");
  return { ann, shop, folder, page: `#/projects/${shop.id}/changes/${conversation.id}` };
}

/// LY-11
test("changes are seen, landed and undone, and the folder changes only then", async (t) => {
  const { ann, folder, page: address } = await setUp(t, "ann");
  const tab = await browser.open(ann, address);
  const { page } = tab;
  await page.getByText("3 files").waitFor();
  await page.getByRole("button", { name: /price\.txt changed \+1 −1/ }).click();
  assert.equal(await page.locator("tr.old .text").innerText(), "two");
  assert.equal(await page.locator("tr.new .text").innerText(), "2");
  await tab.assertAccessible("changes of a conversation");
  assert.equal(folder.read("src/price.txt"), "one\ntwo\n");

  // Only the chosen folder lands, after the machine has shown what that is.
  await page.getByLabel("Select src/", { exact: true }).check();
  await page.getByRole("button", { name: "Land", exact: true }).click();
  const question = page.getByRole("region", { name: "Your decision" });
  await question.getByText("src/new.txt").waitFor();
  assert.equal(await question.getByText("notes.md").count(), 0);
  await tab.assertAccessible("the question about a landing");
  await question.getByRole("button", { name: "Approve" }).click();
  await page.getByText("The changes are in the folder.").waitFor();
  await page.getByText("1 file", { exact: true }).waitFor();
  assert.equal(folder.read("src/price.txt"), "one\n2\n");
  assert.equal(folder.read("src/new.txt"), "new\n");
  assert.equal(folder.read("notes.md"), "# Notes\n");

  await page.getByRole("button", { name: "Undo the latest landing" }).click();
  await question.getByRole("button", { name: "Approve" }).click();
  await page.getByText("The files are as they were before.").waitFor();
  assert.equal(folder.read("src/price.txt"), "one\ntwo\n");
  await tab.close();
});

/// LY-11
test("a landing is rejected and the changes are discarded on a phone", async (t) => {
  const { ann, folder, page: address } = await setUp(t, "ben");
  const tab = await browser.open(ann, address, { size: PHONE });
  const { page } = tab;
  await page.getByText("3 files").waitFor();
  await page.getByRole("button", { name: "Land", exact: true }).click();
  const question = page.getByRole("region", { name: "Your decision" });
  await question.getByRole("button", { name: "Reject" }).click();
  await question.getByLabel("Reason").fill("not yet");
  await question.getByLabel("Reason").press("Enter");
  await question.waitFor({ state: "detached" });
  await page.getByText("3 files").waitFor();
  await tab.assertAccessible("changes on a phone");

  await page.getByRole("button", { name: "Discard", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Discard" }).click();
  await page.getByText("No changes", { exact: true }).waitFor();
  assert.equal(folder.read("src/price.txt"), "one\ntwo\n");
  assert.equal(folder.read("notes.md"), "# Notes\n");
  await tab.close();
});

test("without changes of scripts, the page says where approved writes are", async (t) => {
  const ann = server.user("cai");
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, {});
  t.after(() => folder.disconnect());
  const conversation = await shop.conversation("a write");
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/${conversation.id}`);
  const { page } = tab;
  const write = { path: "new.txt", content: "new" };
  const call = await shop.call("write_file", write, { session_id: conversation.id });
  await tab.goto(`#/approvals/${call.tool_id}`);
  await page.getByRole("button", { name: "Approve" }).click();
  await shop.waitForStatus(call, "completed");
  await tab.goto(`#/projects/${shop.id}/changes/${conversation.id}`);
  await page.getByText("Files that agents write with your approval are in the folder").waitFor();
  await tab.assertAccessible("no changes");
  await page.getByRole("link", { name: "See them in Decisions" }).click();
  await page.getByRole("heading", { name: "History" }).waitFor();
  await page.getByText("new.txt").first().waitFor();
  await tab.close();
});
