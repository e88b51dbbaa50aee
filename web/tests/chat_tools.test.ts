// What makes a chat comfortable: formatting, copying, attachments, sending again, titles, search and visible results.

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Page } from "playwright-core";
import { PHONE } from "./harness/browser.ts";
import { ConnectedFolder, eventually, Server } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";
import { ScriptedModel, type Reply } from "./harness/model.ts";

async function send(page: Page, text: string, agent = "") {
  if (agent) await page.getByRole("combobox", { name: "To" }).selectOption({ label: agent });
  const field = page.getByRole("textbox", { name: "Message" });
  await field.fill(text);
  await field.press("Enter");
  await eventually("the message is sent", async () => (await field.inputValue()) === "");
}

/** A user and a project on a server of their own, whose agents give these replies. */
async function setUpScript(t: TestContext, replies: Reply[], more: object = {}) {
  const model = await ScriptedModel.start(replies);
  t.after(() => model.stop());
  const server = await Server.start(model.settings);
  t.after(() => server.stop());
  const ann = server.user("ann");
  return { ann, project: await ann.project("report", { workspace: "conversation", ...more }) };
}

const CODE = 'fn main() {\n    println!("hi");\n}';
const ANSWER = `## Result

| item | price |
| :--- | ---: |
| \`tea\` | **4** |

- [x] counted
- [ ] paid <img src=x onerror="document.title='owned'">

The sum $a*b*c$ is [there](https://prices.example/) but not [here](javascript:alert(1)) ![p](https://pictures.example/p.png)

\`\`\`rust
${CODE}
\`\`\`
`;

test("an answer has tables, task lists and code; code and messages can be copied", async (t) => {
  const { ann, project } = await setUpScript(t, [{ text: ANSWER }]);
  const tab = await browser.open(ann, `#/projects/${project.id}/chat/new`, {
    permissions: ["clipboard-read", "clipboard-write"],
  });
  const { page } = tab;
  await send(page, "what does it cost?", "agent_writer");
  const answer = page.getByRole("article", { name: "agent_writer" });
  await answer.getByRole("table").waitFor();
  await answer.getByRole("heading", { name: "Result" }).waitFor();
  assert.deepEqual(await answer.getByRole("cell").allInnerTexts(), ["tea", "4"]);
  const boxes = answer.getByRole("checkbox");
  assert.deepEqual([await boxes.nth(0).isChecked(), await boxes.nth(1).isChecked()], [true, false]);
  await answer.getByText("The sum $a*b*c$ is").waitFor();
  await answer.getByText("[here](javascript:alert(1))").waitFor();
  // A picture is a link: the page requests nothing from other servers.
  assert.equal(await answer.locator("img").count(), 0);
  assert.deepEqual(
    await answer.getByRole("link").evaluateAll((links) => links.map((a) => a.getAttribute("href"))),
    ["https://prices.example/", "https://pictures.example/p.png"],
  );
  assert.doesNotMatch(await page.title(), /owned/);
  await tab.assertAccessible("an answer with Markdown");

  const clipboard = () => page.evaluate(() => navigator.clipboard.readText());
  await answer.getByRole("button", { name: "Copy code" }).click();
  await page.getByText("Copied.").waitFor();
  assert.equal(await clipboard(), CODE);
  await answer.getByRole("button", { name: "Copy message" }).click();
  await eventually("the message is copied", async () =>
    (await clipboard()).startsWith("## Result"),
  );
  await tab.close();
});

test("files are attached, pasted and removed, and the message names them", async () => {
  const ann = server.user("ann");
  const project = await ann.project("report", { workspace: "conversation" });
  const tab = await browser.open(ann, `#/projects/${project.id}/chat/new`);
  const { page } = tab;
  const attached = page.getByRole("list", { name: "Attached files" });
  const picker = page.locator("form input[type=file]");
  const file = (name: string) => ({ name, mimeType: "text/plain", buffer: Buffer.from(name) });
  await picker.setInputFiles([file("prices.csv"), file("wrong.txt")]);
  await attached.getByText("wrong.txt").waitFor();
  await attached.getByRole("button", { name: "Remove wrong.txt" }).click();
  await attached.getByText("wrong.txt").waitFor({ state: "hidden" });
  // Browsers call every picture in the clipboard image.png.
  await page.getByRole("textbox", { name: "Message" }).evaluate((field) => {
    const data = new DataTransfer();
    data.items.add(
      new File([new Uint8Array([137, 80, 78, 71])], "image.png", { type: "image/png" }),
    );
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
  });
  await attached.getByText(/^pasted-[\d-]+\.png$/).waitFor();
  await tab.assertAccessible("a message with attachments");
  await send(page, "list .", "agent_writer");
  const message = page.getByRole("article", { name: "You" });
  await message.getByRole("link", { name: "prices.csv" }).waitFor();
  await message.getByRole("link", { name: /^pasted-/ }).waitFor();
  assert.equal(await attached.count(), 0);
  // The agent sees the files of the conversation.
  await page.getByRole("article", { name: "agent_writer" }).getByText("prices.csv").waitFor();
  await tab.close();
});

test("the recipient is remembered, a message is sent again, and one can be edited", async () => {
  const ann = server.user("bob");
  const project = await ann.project("report", { workspace: "conversation" });
  const tab = await browser.open(ann, `#/projects/${project.id}/chat/new`);
  const { page } = tab;
  await send(page, "write a.txt: one", "agent_writer");
  const answers = page.getByRole("article", { name: "agent_writer" });
  await answers.first().waitFor();
  await page.getByRole("button", { name: "Send again", exact: true }).click();
  await answers.nth(1).waitFor();
  assert.equal(await page.getByRole("article", { name: "You" }).count(), 2);
  await page.getByRole("button", { name: "Edit and send again" }).first().click();
  const field = page.getByRole("textbox", { name: "Message" });
  assert.equal(await field.inputValue(), "write a.txt: one");
  await field.fill("");

  await page.reload();
  const to = page.getByRole("combobox", { name: "To" });
  await page.getByRole("article").first().waitFor();
  assert.equal(await to.locator("option:checked").innerText(), "agent_writer");
  await tab.close();
});

test("conversations are titled by their first message, renamed and found", async () => {
  const ann = server.user("cleo");
  const project = await ann.project("report", { workspace: "conversation" });
  for (const title of ["alpha", "beta", "gamma", "delta", "epsilon"])
    await project.conversation(title);
  const untitled = await project.conversation("");
  const tab = await browser.open(ann, `#/projects/${project.id}/chat/${untitled.id}`);
  const { page } = tab;
  const list = page.getByRole("navigation", { name: "Conversations" });
  await list.getByRole("link", { name: /Untitled/ }).waitFor();
  await send(page, "list .\nplease", "agent_writer");
  await list.getByRole("link", { name: /^list \./ }).waitFor();

  await list.getByRole("button", { name: "Rename “beta”" }).click();
  const dialog = page.getByRole("dialog", { name: "Rename conversation" });
  await tab.assertAccessible("renaming a conversation");
  await dialog.getByLabel("Title").fill("Zeta plans");
  await dialog.getByRole("button", { name: "Save" }).click();
  await list.getByRole("link", { name: /Zeta plans/ }).waitFor();
  const search = list.getByRole("searchbox", { name: "Search conversations" });
  await search.fill("zeta");
  await list.getByRole("link", { name: /gamma/ }).waitFor({ state: "hidden" });
  await list.getByRole("link", { name: /Zeta plans/ }).waitFor();
  await search.fill("nothing like it");
  await list.getByText("No conversation matches").waitFor();
  await tab.close();
});

test("stop keeps what was said, and the message can be sent again", async (t) => {
  const { ann, project } = await setUpScript(t, [
    { text: "The first half", unfinished: true },
    { text: "Both halves" },
  ]);
  const tab = await browser.open(ann, `#/projects/${project.id}/chat/new`);
  const { page } = tab;
  await page.getByText("Live", { exact: true }).waitFor();
  await send(page, "tell me", "agent_writer");
  await page.getByText("The first half").waitFor();
  await page.getByRole("timer").first().waitFor();
  assert.equal(
    await page.getByRole("button", { name: "Send again", exact: true }).isDisabled(),
    true,
  );
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("Stopped here.").waitFor();
  await page.getByText("The first half").waitFor();
  await page.getByRole("button", { name: "Send again", exact: true }).click();
  await page.getByRole("article", { name: "agent_writer" }).getByText("Both halves").waitFor();
  await page.getByText("The first half").waitFor();
  await tab.close();
});

test("results of a plan stay visible, and a failed call marks its task", async (t) => {
  const ann = server.user("dora");
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, { "a.txt": "apples\n" });
  t.after(() => folder.disconnect());
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await send(page, "read a.txt and then read missing.txt");
  await page.getByRole("article", { name: "Project" }).waitFor();
  const rows = page.locator("section.task");
  await rows.filter({ hasText: "missing.txt" }).getByText("1 call failed").first().waitFor();
  const first = rows.filter({ hasText: "read a.txt" });
  await first.locator(".result").getByText("apples").waitFor();
  // Also after the task is closed, and in the node of the graph.
  await first.getByRole("button", { expanded: true }).first().click();
  await first.locator("p.result").getByText("apples").waitFor();
  const nodes = page.getByRole("group", { name: "Plan graph" }).locator("g");
  await nodes.nth(1).locator("text.end", { hasText: "1 call failed" }).waitFor();
  assert.match((await nodes.nth(0).textContent()) ?? "", /read a\.txt/);
  await tab.assertAccessible("a plan with results");
  await tab.close();

  const phone = await browser.open(ann, `#/projects/${shop.id}/chat`, {
    size: PHONE,
    scheme: "dark",
    locale: "ru-RU",
  });
  await phone.page.getByRole("article").last().waitFor();
  assert.equal(await phone.page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await phone.assertAccessible("a plan with results on a phone");
  await phone.close();
});

test("a running command shows how long it has been running", async (t) => {
  const ann = server.user("eve");
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, {
    "wait.py": "import time\ntime.sleep(600)\n",
  });
  t.after(() => folder.disconnect());
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/new`);
  const { page } = tab;
  await send(page, "run python3 wait.py", "agent_coder");
  const task = page.locator("section.task");
  await task.getByText("Waiting for your approval").first().waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  const call = page.locator(".call", { hasText: "wait.py" });
  await call.getByText("Running", { exact: true }).waitFor();
  await call
    .getByRole("timer")
    .filter({ hasText: /^(?!0:00)\d+:\d\d$/ })
    .waitFor();
  // A closed task says what it waits for, and for how long.
  await task.getByRole("button", { name: /agent_coder/ }).click();
  await task.locator(".wait", { hasText: /Running a command \d+:\d\d/ }).waitFor();
  assert.equal(await page.getByText("Waiting for", { exact: false }).count(), 0);
  await tab.assertAccessible("a running command of a closed task");
  await page.getByRole("button", { name: "Stop" }).click();
  await call.getByRole("timer").waitFor({ state: "hidden" });
  await tab.close();
});
