// A message to the demo model becomes work on the user's own files, watched and decided in the browser.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Browser, PHONE } from "./harness/browser.mjs";
import { eventually, Folder, Server } from "./harness/server.mjs";

let server, browser;
before(async () => {
  server = await Server.start();
  browser = await Browser.start();
});
after(async () => {
  await browser?.stop();
  await server?.stop();
});

async function desk(t, name, files) {
  const ann = server.person(name);
  const shop = await ann.project("shop");
  const folder = await Folder.connect(shop, files);
  t.after(() => folder.disconnect());
  return { ann, shop, folder };
}

async function say(page, text, agent = "") {
  if (agent) await page.getByRole("combobox", { name: "To" }).selectOption({ label: agent });
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.keyboard.press("Enter");
}

/// TL-06.3, WS-07.1
test("a message asks for a write: reject leaves the disk as it was, approve changes it, a reload keeps it all", async (t) => {
  const { ann, shop, folder } = await desk(t, "ann", { "notes.txt": "old\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat`);
  const { page } = tab;
  const other = await browser.open(ann, `#/projects/${shop.id}/chat`);
  await page.getByText("Say what should be done").waitFor();

  await say(page, "write notes.txt: hello", "agent_coder");
  const call = page.locator(".call", { hasText: "notes.txt" });
  await call.getByRole("button", { name: "Approve" }).waitFor();
  assert.equal(await call.locator("tr.old .text").innerText(), "old");
  assert.equal(await call.locator("tr.new .text").innerText(), "hello");
  await tab.assertAccessible("a chat that asks");
  // The second browser sees the same question, live.
  await other.page.locator(".call", { hasText: "notes.txt" }).getByRole("button", { name: "Approve" }).waitFor();
  await call.getByRole("button", { name: "Reject" }).click();
  await call.getByLabel("Why not?").fill("not now");
  await page.keyboard.press("Enter");
  await call.getByText("Rejected", { exact: true }).waitFor();
  await page.getByRole("article", { name: "agent_coder" }).waitFor();
  assert.equal(folder.read("notes.txt"), "old\n");

  await say(page, "write notes.txt: hello", "agent_coder");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("article", { name: "agent_coder" }).nth(1).waitFor();
  assert.equal(folder.read("notes.txt").trim(), "hello");
  await other.page.getByRole("article", { name: "agent_coder" }).nth(1).waitFor();
  const said = await page.getByRole("article").allInnerTexts();
  await other.close();

  await page.reload();
  await page.getByRole("article", { name: "agent_coder" }).nth(1).waitFor();
  assert.deepEqual(await page.getByRole("article").allInnerTexts(), said);
  await page.getByText(/This conversation: .*tokens/).waitFor();
  await tab.assertAccessible("a chat");
  await tab.close();
});

/// WS-07.2
test("a message to the project becomes a plan, shown as a graph while it runs", async (t) => {
  const { ann, shop, folder } = await desk(t, "bob", { "README.md": "# Shop\n", "a.txt": "a\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`, { size: PHONE });
  const { page } = tab;
  await say(page, "read README.md and read a.txt and then write plan.txt: done");
  const graph = page.getByRole("img", { name: /of 3 tasks done/ });
  await graph.waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("img", { name: "3 of 3 tasks done" }).waitFor();
  await page.getByRole("article", { name: "Project" }).waitFor();
  assert.equal(folder.read("plan.txt").trim(), "done");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await tab.assertAccessible("a plan on a phone");
  await tab.close();
});

test("a plan that is too large waits, is changed, and runs as changed", async (t) => {
  const ann = server.person("dora");
  const shop = await ann.project("shop", { settings: { planner: { approve_above: 1 } } });
  const folder = await Folder.connect(shop, { "README.md": "# Shop\n" });
  t.after(() => folder.disconnect());
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await say(page, "read README.md and then write a.txt: one");
  await page.getByRole("heading", { name: "This plan waits for you" }).waitFor();
  await tab.assertAccessible("a plan that waits");
  // It is told of where decisions are.
  await page.waitForFunction(() => document.title.startsWith("(1) "));
  await tab.go("#/approvals");
  await page.getByRole("link", { name: /This plan waits for you/ }).click();
  await page.getByLabel("What it is to do").nth(1).fill("write b.txt: two");
  await page.getByRole("button", { name: "Run this plan" }).click();
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("article", { name: "Project" }).waitFor();
  assert.equal(folder.read("b.txt").trim(), "two");
  assert.throws(() => folder.read("a.txt"));
  await tab.close();
});

test("stop ends what is going on", async (t) => {
  const { ann, shop } = await desk(t, "cleo", { "a.txt": "a\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await say(page, "write b.txt: b", "agent_writer");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByRole("button", { name: "Stop" }).waitFor({ state: "hidden" });
  await eventually("nothing waits for a decision", async () => (await ann.ask("GET", "/my/approvals")).total === 0);
  await page.locator(".call").getByText("Cancelled").waitFor();
  await tab.close();
});

const EVIL = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`;

test("what models and people write is shown, not run", async (t) => {
  const { ann, shop } = await desk(t, "eve", { "evil.md": `${EVIL}\n[x](javascript:document.title='owned')\n` });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await say(page, `read evil.md and say ${EVIL}`, "agent_coder");
  await page.getByRole("article", { name: "agent_coder" }).waitFor();
  await page.getByText("onerror=").first().waitFor();
  assert.equal(await page.locator("main img, main script, main a[href^=javascript]").count(), 0);
  assert.doesNotMatch(await page.title(), /owned/);
  await tab.close();
});
