// The form of an agent, its row on a phone, and what is said after saving.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";

test("the tools of an agent are chosen from a list", async () => {
  const ann = server.user("ann");
  const project = await ann.project("shop");
  const tab = await browser.open(ann, `#/projects/${project.id}/agents/new`);
  const { page } = tab;
  const tools = page.getByRole("group", { name: "Tools" });
  await tools.getByText("Choose none to allow all tools.").waitFor();
  await page.getByLabel("Name").fill("reader");
  for (const name of ["Read file read_file", "Search text grep", "Delete file delete_file"])
    await tools.getByLabel(name).check();
  await tools.getByLabel("Delete file delete_file").uncheck();
  await tools.getByText("2 tools chosen").waitFor();
  await tab.assertAccessible("the tools of an agent");
  await page.getByRole("button", { name: "Add agent" }).click();
  await page.getByText("Agent “reader” added.").waitFor();
  const reader = (await project.agents()).find(({ name }) => name === "reader");
  assert.deepEqual(reader?.config.tools?.sort(), ["grep", "read_file"]);

  await page.getByRole("link", { name: /^reader/ }).click();
  assert.equal(await tools.getByLabel("Search text grep").isChecked(), true);
  await tools.getByRole("button", { name: "Allow all" }).click();
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("Agent “reader” saved.").waitFor();
  const changed = (await project.agents()).find(({ name }) => name === "reader");
  assert.deepEqual(changed?.config.tools ?? [], []);
  await tab.close();
});

test("a refused field is named as the form names it", async () => {
  const ann = server.user("bob");
  const project = await ann.project("shop");
  const tab = await browser.open(ann, `#/projects/${project.id}/agents/new`);
  tab.allowed.push(/422/);
  const { page } = tab;
  await page.getByLabel("Name").fill("reader");
  await page.getByLabel("Model").fill("nobody/nothing");
  await page.getByRole("button", { name: "Add agent" }).click();
  const alert = page.getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.innerText(), /^Model: /);
  assert.doesNotMatch(await alert.innerText(), /config/i);
  await tab.close();
});

test("on a phone, names of agents are whole and a notice covers no title and stays on its page", async () => {
  const ann = server.user("cleo");
  const project = await ann.project("shop");
  const tab = await browser.open(ann, `#/projects/${project.id}`, { size: PHONE });
  const { page } = tab;
  const names = page.locator("main a strong");
  await names.filter({ hasText: "agent_researcher" }).waitFor();
  const heights = await names.evaluateAll((all) => all.map((name) => name.clientHeight || 1));
  assert.equal(new Set(heights).size, 1, "a name has two lines");

  await page.getByRole("link", { name: "Settings" }).click();
  await page.getByLabel("Steps (1–1000)").fill("12");
  await page.getByRole("button", { name: "Save" }).click();
  const notice = page.getByText("Project saved.");
  await notice.waitFor();
  const [covered, title] = [await notice.boundingBox(), await page.locator("h1").boundingBox()];
  assert.ok(covered && title && covered.y + covered.height <= title.y);
  await page.getByRole("link", { name: "Activity" }).click();
  await page.getByRole("heading", { name: "Activity" }).waitFor();
  assert.equal(await notice.count(), 0);
  await tab.assertAccessible("a page after a notice");
  await tab.close();
});
