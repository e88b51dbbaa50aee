// A message to the demo model becomes work on the user's own files, watched and decided in the browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PHONE } from "./harness/browser.mjs";
import { eventually, Folder } from "./harness/server.mjs";
import { browser, server } from "./harness/stage.mjs";

async function desk(t, name, files) {
  const ann = server.person(name);
  const shop = await ann.project("shop");
  const folder = await Folder.connect(shop, files);
  t.after(() => folder.disconnect());
  return { ann, shop, folder };
}

async function say(page, text, agent = "") {
  if (agent) await page.getByRole("combobox", { name: "To" }).selectOption({ label: agent });
  const field = page.getByRole("textbox", { name: "Message" });
  await field.fill(text);
  await field.press("Enter");
  await eventually("the message is sent", async () => (await field.inputValue()) === "");
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

test("without a machine the chat says so, with the commands to run, and goes on when one is there", async (t) => {
  const ann = server.person("finn");
  const shop = await ann.project("it's a shop");
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await page.getByText("No machine is connected yet").waitFor();
  await say(page, "read a.txt", "agent_coder");
  const hint = page.getByRole("status").filter({ hasText: "No machine is connected" });
  await hint.waitFor();
  await page.locator(".call").getByText("Waits for a machine").waitFor();
  const commands = await page.getByLabel("The commands that connect a folder").innerText();
  assert.equal(commands, `atelier login --server ${server.url}\natelier connect . --server ${server.url} --project 'it'\\''s a shop'`);
  await tab.assertAccessible("a chat without a machine");
  // To the letter, as somebody would paste it.
  const folder = await Folder.follow(ann, commands, { "a.txt": "found\n" });
  t.after(() => folder.disconnect());
  await page.getByRole("article", { name: "agent_coder" }).waitFor();
  await hint.waitFor({ state: "hidden" });
  await tab.close();
});

test("a chat follows what is said, leaves those alone who read further up, and keeps what was begun", async (t) => {
  const { ann, shop } = await desk(t, "gina", { "long.txt": "line\n".repeat(40) });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  const log = page.getByRole("log");
  const below = () => log.evaluate((box) => box.scrollHeight - box.scrollTop - box.clientHeight);
  const answers = page.getByRole("article", { name: "agent_coder" });
  for (let n = 0; n < 4; n++) {
    await say(page, "read long.txt", "agent_coder");
    await answers.nth(n).waitFor();
    await eventually("the end is in sight", async () => (await below()) < 2);
  }
  await log.hover();
  await page.mouse.wheel(0, -600);
  await eventually("it is further up", async () => (await below()) > 300);
  const { id } = (await ann.ask("GET", `${shop.path}/chat/sessions`)).sessions[0];
  await ann.ask("POST", `${shop.path}/chat/${id}/message`, { content: "read long.txt", target_agent: "agent_coder" });
  await answers.nth(4).waitFor({ state: "attached" });
  assert.ok((await below()) > 300);

  await page.getByRole("textbox", { name: "Message" }).fill("half a thought");
  await tab.go(`#/projects/${shop.id}/files`);
  await tab.go(`#/projects/${shop.id}/chat`);
  await page.getByRole("log").waitFor();
  assert.equal(await page.getByRole("textbox", { name: "Message" }).inputValue(), "half a thought");
  await tab.close();

  const phone = await browser.open(ann, `#/projects/${shop.id}/chat`, { size: PHONE });
  const send = phone.page.getByRole("button", { name: "Send" });
  await send.waitFor();
  await phone.page.getByRole("article").first().waitFor({ state: "attached" });
  const { y, height } = await send.boundingBox();
  assert.ok(y + height <= PHONE.height, `${y} + ${height}`);
  assert.equal(await phone.page.evaluate(() => document.documentElement.scrollHeight), PHONE.height);
  await phone.close();
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
