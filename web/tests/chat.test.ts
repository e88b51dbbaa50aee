// Chat: messages to the demo model lead to tasks on the user's files, which are followed and approved in the browser.

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Page } from "playwright-core";
import { PHONE } from "./harness/browser.ts";
import { ConnectedFolder, eventually, Server } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";
import { ScriptedModel } from "./harness/model.ts";

/** A user with a project and a connected folder, for one test. */
async function setUp(t: TestContext, name: string, files: Record<string, string>) {
  const ann = server.user(name);
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, files);
  t.after(() => folder.disconnect());
  return { ann, shop, folder };
}

async function send(page: Page, text: string, agent = "") {
  if (agent) await page.getByRole("combobox", { name: "To" }).selectOption({ label: agent });
  const field = page.getByRole("textbox", { name: "Message" });
  await field.fill(text);
  await field.press("Enter");
  await eventually("the message is sent", async () => (await field.inputValue()) === "");
}

/// TL-06.3, WS-07.1
test("a write is rejected and approved in the chat; a reload shows the same conversation", async (t) => {
  const { ann, shop, folder } = await setUp(t, "ann", { "notes.txt": "old\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat`);
  const { page } = tab;
  const other = await browser.open(ann, `#/projects/${shop.id}/chat`);
  await page.getByText("What should the agents do?").waitFor();

  await send(page, "write notes.txt: hello", "agent_coder");
  const call = page.locator(".call", { hasText: "notes.txt" });
  await call.getByRole("button", { name: "Approve" }).waitFor();
  assert.equal(await call.locator("tr.old .text").innerText(), "old");
  assert.equal(await call.locator("tr.new .text").innerText(), "hello");
  await tab.assertAccessible("a chat that asks");
  // The second browser shows the same approval without a reload.
  await other.page
    .locator(".call", { hasText: "notes.txt" })
    .getByRole("button", { name: "Approve" })
    .waitFor();
  await call.getByRole("button", { name: "Reject" }).click();
  await call.getByLabel("Reason").fill("not now");
  await page.keyboard.press("Enter");
  await call.getByText("Rejected", { exact: true }).waitFor();
  await page.getByRole("article", { name: "agent_coder" }).waitFor();
  assert.equal(folder.read("notes.txt"), "old\n");

  await send(page, "write notes.txt: hello", "agent_coder");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("article", { name: "agent_coder" }).nth(1).waitFor();
  assert.equal(folder.read("notes.txt").trim(), "hello");
  await other.page.getByRole("article", { name: "agent_coder" }).nth(1).waitFor();
  const texts = await page.getByRole("article").allInnerTexts();
  await other.close();

  await page.reload();
  await page.getByRole("article", { name: "agent_coder" }).nth(1).waitFor();
  assert.deepEqual(await page.getByRole("article").allInnerTexts(), texts);
  await page.getByText(/This conversation: .*tokens/).waitFor();
  await tab.assertAccessible("a chat");
  await tab.close();
});

/// WS-07.2
test("a message in Auto mode becomes a plan, which is shown as a graph", async (t) => {
  const { ann, shop, folder } = await setUp(t, "bob", { "README.md": "# Shop\n", "a.txt": "a\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`, { size: PHONE });
  const { page } = tab;
  await send(page, "read README.md and read a.txt and then write plan.txt: done");
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

test("a large plan needs approval, can be edited and runs as edited", async (t) => {
  const ann = server.user("dora");
  const shop = await ann.project("shop", { settings: { planner: { approve_above: 1 } } });
  const folder = await ConnectedFolder.connect(shop, { "README.md": "# Shop\n" });
  t.after(() => folder.disconnect());
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await send(page, "read README.md and then write a.txt: one");
  await page.getByRole("heading", { name: "This plan needs your approval" }).waitFor();
  await tab.assertAccessible("a plan that waits");
  // The plan is also listed on the approvals page.
  await page.waitForFunction(() => document.title.startsWith("(1) "));
  await tab.goto("#/approvals");
  await page.getByRole("link", { name: /This plan needs your approval/ }).click();
  await page.getByLabel("Task description").nth(1).fill("write b.txt: two");
  await page.getByRole("button", { name: "Run this plan" }).click();
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("article", { name: "Project" }).waitFor();
  assert.equal(folder.read("b.txt").trim(), "two");
  assert.throws(() => folder.read("a.txt"));
  await tab.close();
});

test("a failed task shows its error, which would keep a picture from being taken", async (t) => {
  const model = await ScriptedModel.start([]);
  t.after(() => model.stop());
  const server = await Server.start(model.settings);
  t.after(() => server.stop());
  const ann = server.user("ann");
  const project = await ann.project("report", { workspace: "conversation" });
  const tab = await browser.open(ann, `#/projects/${project.id}/chat/new`);
  const { page } = tab;
  await page.getByText("What should the agents do?").waitFor();
  assert.deepEqual(await tab.errorsShown(), []);
  await send(page, "write a report", "agent_writer");
  await page.getByRole("button", { name: "Resume" }).waitFor();
  assert.match((await tab.errorsShown()).join("\n"), /the script has ended/);
  await tab.close();
});

test("the stop button cancels the running task", async (t) => {
  const { ann, shop } = await setUp(t, "cleo", { "a.txt": "a\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await send(page, "write b.txt: b", "agent_writer");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByRole("button", { name: "Stop" }).waitFor({ state: "hidden" });
  await eventually(
    "no approval is pending",
    async () => (await ann.pendingApprovals()).total === 0,
  );
  await page.locator(".call").getByText("Cancelled").waitFor();
  await tab.close();
});

/** How often the page says something. */
const said = async (page: Page, words: RegExp) =>
  (await page.locator("main").innerText()).match(new RegExp(words, "gi"))?.length ?? 0;

test("a cancelled plan and a failed task say so once, without code names", async (t) => {
  const { ann, shop } = await setUp(t, "ida", { "a.txt": "a\n" });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await send(page, "read a.txt and then write b.txt: b");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("The plan was cancelled.").waitFor();
  await page.getByRole("button", { name: "Resume" }).first().waitFor();
  await page.reload();
  await page.getByText("The plan was cancelled.").waitFor();
  assert.equal(await said(page, /plan was cancelled/), 1);
  await tab.assertAccessible("a cancelled plan");
  await tab.close();

  // No machine listens at this address, so every agent and the planner fail with the same error.
  const server = await Server.start({
    OPENAI_API_KEY: "sk-scripted",
    ATELIER_PROVIDERS__OPENAI__BASE_URL: "http://127.0.0.1:9/v1",
    ATELIER_MEMORY__EMBEDDER__KIND: "builtin",
  });
  t.after(() => server.stop());
  const bob = server.user("bob");
  const project = await bob.project("report", { workspace: "conversation" });
  for (const agent of ["agent_writer", "Auto (plan and delegate)"]) {
    const failing = await browser.open(bob, `#/projects/${project.id}/chat/new`);
    await send(failing.page, "write a report", agent);
    await failing.page
      .getByText(/cannot be reached/)
      .first()
      .waitFor();
    await failing.page.getByRole("button", { name: "Stop" }).waitFor({ state: "hidden" });
    await failing.page.reload();
    await failing.page
      .getByText(/cannot be reached/)
      .first()
      .waitFor();
    assert.equal(await said(failing.page, /cannot be reached/), 1, agent);
    assert.equal(await said(failing.page, /model_unreachable/), 0);
    await failing.close();
  }
});

test("an answer is below its own question, also if another question came before it", async (t) => {
  const { ann, shop } = await setUp(t, "jan", { "a.txt": "apples\n", "b.txt": "bananas\n" });
  const conversation = await shop.conversation("two questions");
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/${conversation.id}`);
  const { page } = tab;
  await send(page, "write c.txt: cherries", "agent_writer");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await send(page, "read b.txt", "agent_coder");
  await page.getByRole("article", { name: "agent_coder" }).getByText("bananas").waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("article", { name: "agent_writer" }).waitFor();
  const names = () =>
    page
      .getByRole("article")
      .evaluateAll((all) => all.map((article) => article.getAttribute("aria-label")));
  assert.deepEqual(await names(), ["You", "agent_writer", "You", "agent_coder"]);
  await page.reload();
  await page.getByRole("article").nth(3).waitFor();
  assert.deepEqual(await names(), ["You", "agent_writer", "You", "agent_coder"]);
  await tab.close();
});

test("without a machine the chat shows the commands to connect one, and continues once it is connected", async (t) => {
  const ann = server.user("finn");
  const shop = await ann.project("it's a shop");
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await page.getByText("No machine is connected yet").waitFor();
  await send(page, "read a.txt", "agent_coder");
  const hint = page.getByRole("status").filter({ hasText: "No machine connected" });
  await hint.waitFor();
  await page.locator(".call").getByText("Waiting for a machine").waitFor();
  await page.locator(".task .wait", { hasText: "Waiting for a machine" }).waitFor();
  await page.getByRole("button", { name: "Show the command" }).click();
  const command = await page.getByLabel("Commands that connect a folder").innerText();
  assert.match(command, /^atelier connect \. --server http:\S+ --code [\w-]+$/);
  await tab.assertAccessible("a chat without a machine");
  // Exactly as a user would paste the command.
  const folder = await ConnectedFolder.connectByCommand(command, { "a.txt": "found\n" });
  t.after(() => folder.disconnect());
  await page.getByRole("article", { name: "agent_coder" }).waitFor();
  await hint.waitFor({ state: "hidden" });
  await tab.close();
});

test("a chat follows new messages, keeps the position of a user who scrolled up, and keeps an unsent message", async (t) => {
  const { ann, shop } = await setUp(t, "gina", { "long.txt": "line\n".repeat(40) });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  const log = page.getByRole("log");
  const distanceToEnd = () =>
    log.evaluate((box) => box.scrollHeight - box.scrollTop - box.clientHeight);
  const answers = page.getByRole("article", { name: "agent_coder" });
  for (let n = 0; n < 4; n++) {
    await send(page, "read long.txt", "agent_coder");
    await answers.nth(n).waitFor();
    await eventually("the end is visible", async () => (await distanceToEnd()) < 2);
  }
  await log.hover();
  await page.mouse.wheel(0, -600);
  await eventually("the chat is scrolled up", async () => (await distanceToEnd()) > 300);
  const id = new URL(page.url()).hash.split("/").at(-1) ?? "";
  await shop.send(id, { content: "read long.txt", target_agent: "agent_coder" });
  await answers.nth(4).waitFor({ state: "attached" });
  assert.ok((await distanceToEnd()) > 300);

  await page.getByRole("textbox", { name: "Message" }).fill("an unsent message");
  await tab.goto(`#/projects/${shop.id}/files`);
  await tab.goto(`#/projects/${shop.id}/chat`);
  await page.getByRole("log").waitFor();
  assert.equal(
    await page.getByRole("textbox", { name: "Message" }).inputValue(),
    "an unsent message",
  );
  await tab.close();

  const phone = await browser.open(ann, `#/projects/${shop.id}/chat`, { size: PHONE });
  const sendButton = phone.page.getByRole("button", { name: "Send", exact: true });
  await sendButton.waitFor();
  await phone.page.getByRole("article").first().waitFor({ state: "attached" });
  const box = await sendButton.boundingBox();
  assert.ok(box && box.y + box.height <= PHONE.height, JSON.stringify(box));
  assert.equal(
    await phone.page.evaluate(() => document.documentElement.scrollHeight),
    PHONE.height,
  );
  await phone.close();
});

const EVIL = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`;

test("text from models and users is never run as HTML", async (t) => {
  const { ann, shop } = await setUp(t, "eve", {
    "evil.md": `${EVIL}\n[x](javascript:document.title='owned')\n`,
  });
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await send(page, `read evil.md and say ${EVIL}`, "agent_coder");
  await page.getByRole("article", { name: "agent_coder" }).waitFor();
  await page.getByText("onerror=").first().waitFor();
  assert.equal(await page.locator("main img, main script, main a[href^=javascript]").count(), 0);
  assert.doesNotMatch(await page.title(), /owned/);
  await tab.close();
});
