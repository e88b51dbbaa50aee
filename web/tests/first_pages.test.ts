// The first page, the settings of a project, going to pages by keyboard, and installing the console.

import assert from "node:assert/strict";
import { test } from "node:test";
import { DESKTOP, PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";
import { ConnectedFolder, eventually } from "./harness/server.ts";

test("a newcomer is led from nothing to the first answer", async (t) => {
  const ann = server.user("ann");
  const tab = await browser.open(ann);
  const { page } = tab;
  const current = page.locator("li[aria-current=step]");
  await current.getByText("Create a project").waitFor();
  await tab.assertAccessible("the first page of a newcomer");
  await current.getByRole("link", { name: "New project" }).click();
  await page.getByLabel("Name").fill("garden");
  await page.getByRole("button", { name: "Create project" }).click();
  await page.getByRole("heading", { name: "garden" }).waitFor();

  await page.getByRole("link", { name: "Atelier: Home" }).click();
  await current.getByText("Connect a folder").waitFor();
  await page.getByRole("button", { name: "Show the command" }).click();
  const command = await page.getByLabel("Commands that connect a folder").innerText();
  await current.getByText("Or run “atelier” alone in that folder").waitFor();
  // Whoever wants to can begin before a machine is connected.
  await page.getByRole("link", { name: "Write to the agents" }).click();
  await page.getByText("What should the agents do?").waitFor();
  await page.goBack();
  await tab.assertAccessible("the second step of a newcomer");
  const folder = await ConnectedFolder.connectByCommand(command, { "a.txt": "apples\n" });
  t.after(() => folder.disconnect());
  await current.getByText("Write to the agents").waitFor();
  await current.getByRole("link", { name: "New conversation" }).click();
  await page.getByRole("textbox", { name: "Message" }).fill("read a.txt");
  await page.keyboard.press("Enter");
  await page.getByRole("article").last().getByText("apples").first().waitFor();

  // Nothing is left to explain; the page tells what was used today.
  await tab.goto("#/");
  await page.getByRole("heading", { name: "Today" }).waitFor();
  await eventually("the work is counted", async () =>
    /Tasks\s+[1-9]/.test(await page.locator("main dl").innerText()),
  );
  assert.equal(await page.getByRole("heading", { name: "Get started" }).count(), 0);
  await page.getByRole("link", { name: "New conversation" }).click();
  await page.getByText("What should the agents do?").waitFor();
  await tab.close();
});

test("the first page shows what waits and what runs, as it happens", async (t) => {
  const bob = server.user("bob");
  const shop = await bob.project("shop");
  const folder = await ConnectedFolder.connect(shop, {
    "a.txt": "a\n",
    "wait.py": "import time\ntime.sleep(600)\n",
  });
  t.after(() => folder.disconnect());
  const tab = await browser.open(bob);
  const { page } = tab;
  const waits = page.getByRole("list", { name: "Waiting for you" });
  const runs = page.getByRole("list", { name: "Running" });
  await waits.getByText("Nothing is waiting for you").waitFor();
  await runs.getByText("Nothing is running").waitFor();
  const conversation = await shop.conversation("a change");
  await shop.send(conversation.id, { content: "write b.txt: b", target_agent: "agent_writer" });
  await waits.getByRole("link", { name: /Write file.*b\.txt/ }).waitFor();
  await runs.getByRole("link", { name: /agent_writer.*Waiting for your approval/ }).waitFor();
  await tab.assertAccessible("the first page at work");
  const phone = await browser.open(bob, "", { size: PHONE, scheme: "dark", locale: "ru-RU" });
  await phone.page.getByText("b.txt").first().waitFor();
  assert.equal(await phone.page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await phone.assertAccessible("the first page at work on a phone");
  await phone.close();
  await waits.getByRole("link", { name: /b\.txt/ }).click();
  await page.getByRole("button", { name: "Approve" }).click();
  await tab.goto("#/");
  await waits.getByText("Nothing is waiting for you").waitFor();
  await runs.getByText("Nothing is running").waitFor();
  assert.equal(folder.read("b.txt").trim(), "b");

  // A command that runs is not waiting for anybody.
  const { task_id } = await shop.send(conversation.id, {
    content: "run python3 wait.py",
    target_agent: "agent_coder",
  });
  await waits.getByRole("link", { name: /wait\.py/ }).click();
  await page.getByRole("button", { name: "Approve" }).click();
  await tab.goto("#/");
  await runs.locator("a", { hasText: /agent_coder[^]*Running a command \d+:\d\d/ }).waitFor();
  await bob.request("POST", `${shop.path}/tasks/${task_id}/cancel`);
  await runs.getByText("Nothing is running").waitFor();
  await tab.close();
});

test("settings of a project are checked fields, or JSON without misspelled names", async () => {
  const ann = server.user("cleo");
  const project = await ann.project("shop", {
    settings: {
      metadata: { theme: "blue" },
      planner: { max_tasks: 7 },
      policy: { at_least: { grep: "HIGH" } },
    },
  });
  const tab = await browser.open(ann, `#/projects/${project.id}/settings`);
  const { page } = tab;
  const settings = async () =>
    (await ann.request<{ settings: unknown }>("GET", project.path)).settings;
  const tasks = page.getByLabel("Most tasks in a plan (1–20)");
  assert.equal(await tasks.inputValue(), "7");
  await tasks.fill("21");
  await page.getByRole("button", { name: "Save" }).click();
  assert.equal(await tasks.evaluate((field: HTMLInputElement) => field.validity.valid), false);
  await tasks.fill("");
  await page.getByLabel("Steps (1–1000)").fill("12");
  await page.getByLabel("Budget of a plan (US dollars)").fill("0.5");
  await page.getByLabel("Refuse commands that need the network").check();
  await page.getByLabel("Denied tools and commands").fill("git push\n\n");
  await tab.assertAccessible("the settings of a project");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("Project saved.").waitFor();
  // What the form does not know stays as it was.
  assert.deepEqual(await settings(), {
    metadata: { theme: "blue" },
    planner: { budget: 0.5 },
    limits: { max_steps: 12 },
    policy: { at_least: { grep: "HIGH" }, deny: ["git push"], no_network: true },
  });

  await tab.goto(`#/projects/${project.id}/settings`);
  await page.getByLabel("Edit as JSON").check();
  const json = page.getByLabel("Additional settings (JSON)");
  await json.fill('{"planer": {"max_tasks": 3}}');
  await page.getByText("There is no setting “planer”. Did you mean “planner”?").waitFor();
  await page.getByRole("button", { name: "Save" }).click();
  await json.fill('{"planner": {"max_tasks": 3}}');
  // Back in the form, the fields have the values of the JSON.
  await page.getByLabel("Edit as JSON").uncheck();
  assert.equal(await tasks.inputValue(), "3");
  await page.getByRole("button", { name: "Save" }).click();
  await eventually(
    "the settings are saved",
    async () => JSON.stringify(await settings()) === '{"planner":{"max_tasks":3}}',
  );
  await tab.close();
});

test("Ctrl-K goes to any page, and ? shows the keys", async () => {
  const ann = server.user("dora");
  const project = await ann.project("the garden shop");
  const tab = await browser.open(ann, "#/activity");
  const { page } = tab;
  await page.getByRole("heading", { name: "Activity" }).waitFor();
  await page.getByRole("link", { name: "the garden shop" }).waitFor();
  await page.keyboard.press("Control+k");
  const field = page.getByRole("combobox", { name: "Page, project or conversation" });
  await field.waitFor();
  await tab.assertAccessible("the palette");
  await field.fill("garden chat");
  await page.getByRole("option", { name: /the garden shop: Chat/ }).waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("textbox", { name: "Message" }).waitFor();
  assert.equal(new URL(page.url()).hash, `#/projects/${project.id}/chat`);
  // In a field, ? is a letter. Ctrl-K works there too, and the arrow keys choose.
  await page.getByRole("textbox", { name: "Message" }).press("?");
  assert.equal(await page.getByRole("dialog").count(), 0);
  await page.keyboard.press("Control+k");
  await field.fill("decis");
  await field.press("ArrowDown");
  await field.press("ArrowUp");
  await field.press("Enter");
  await page.getByRole("heading", { name: "History" }).waitFor();

  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await tab.assertAccessible("the key sheet");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "hidden" });
  await page.getByRole("button", { name: "Go to…" }).click();
  await field.fill("nothing like it");
  await page.getByText("Nothing matches.").waitFor();
  await tab.close();
});

test("the overview of a project is about work; its server page has the rest", async () => {
  const ann = server.user("eve");
  const project = await ann.project("shop");
  await project.conversation("a first talk");
  const tab = await browser.open(ann, `#/projects/${project.id}`, { size: DESKTOP });
  const { page } = tab;
  await page.getByRole("link", { name: /a first talk/ }).waitFor();
  await page.getByRole("heading", { name: "Connected machines" }).waitFor();
  assert.equal(await page.getByRole("heading", { name: "Worker space" }).count(), 0);
  await page
    .getByRole("navigation", { name: "Project sections" })
    .getByRole("link", { name: "Server" })
    .click();
  for (const name of ["Worker space", "Agent bus", "Events"])
    await page.getByRole("heading", { name }).waitFor();
  await tab.close();
});

test("the console can be installed as an app", async () => {
  const ann = server.user("finn");
  const tab = await browser.open(ann);
  const { page } = tab;
  await page.getByRole("heading", { name: "Home" }).waitFor();
  const devtools = await page.context().newCDPSession(page);
  const { errors, data = "" } = await devtools.send("Page.getAppManifest");
  assert.deepEqual(errors, []);
  const manifest = JSON.parse(data) as { start_url: string; icons: { src: string }[] };
  assert.equal(manifest.start_url, "/");
  for (const { src } of manifest.icons) {
    const response = await fetch(server.url + src);
    assert.equal(response.headers.get("content-type"), "image/png");
  }
  const { installabilityErrors } = await devtools.send("Page.getInstallabilityErrors");
  // Tests run in private windows, where nothing can be installed; there must be no other obstacle.
  assert.deepEqual(
    installabilityErrors.map(({ errorId }) => errorId),
    ["in-incognito"],
  );
  await tab.close();
});
