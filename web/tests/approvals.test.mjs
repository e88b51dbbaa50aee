// A person decides: what they see, what their answer does to the disk, on a desk and on a phone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PHONE } from "./harness/browser.mjs";
import { eventually, Folder } from "./harness/server.mjs";
import { browser, server } from "./harness/stage.mjs";

const BEFORE = 'export function greet(name: string) {\n  return "Hello, " + name;\n}\n';
const AFTER = 'export function greet(name: string) {\n  return `Hello, ${name}!`;\n}\n';

/** Somebody with a project and a folder of their own, for one test. */
async function desk(t, name) {
  const ann = server.person(name);
  const shop = await ann.project("shop");
  const folder = await Folder.connect(shop, { "src/greet.ts": BEFORE, "notes.md": "# Notes\n" });
  t.after(() => folder.disconnect());
  const asked = async (tool, params) => shop.until(await shop.call(tool, params, { agent_id: "agent_coder" }), "pending_approval");
  return { ann, shop, folder, asked };
}

/** A card that has just come up takes no answers by key for a moment; then it says which it takes. */
const takesKeys = (card) => card.locator("[aria-keyshortcuts=y]").waitFor();
const waits = (page, n) => page.waitForFunction((n) => document.title.startsWith(n ? `(${n}) ` : "Approvals"), n);

/// TL-06.3
test("a write shows its difference; reject leaves the disk as it was, approve changes it", async (t) => {
  const { ann, shop, folder, asked } = await desk(t, "ann");
  const tab = await browser.open(ann, "#/approvals");
  const other = await browser.open(ann, "#/projects");
  const { page } = tab;
  await page.getByText("Nothing waits for you").waitFor();

  const call = await asked("write_file", { path: "src/greet.ts", content: AFTER });
  const card = page.getByRole("region", { name: "The question at hand" });
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await card.getByText("agent_coder asks, ").waitFor();
  await card.getByText("Medium").waitFor();
  assert.equal(await card.locator("tr.old .text").innerText(), '  return "Hello, " + name;');
  assert.equal(await card.locator("tr.new .text").innerText(), "  return `Hello, ${name}!`;");
  // Word by word, and coloured by its language.
  assert.ok((await card.locator("tr.new .changed").allInnerTexts()).join("").includes("`"));
  await card.locator("tr.new .hl-keyword", { hasText: "return" }).waitFor();
  // The other browser hears of it, wherever it is.
  await waits(page, 1);
  await other.page.getByRole("link", { name: /Approvals 1/ }).waitFor();
  await tab.assertAccessible("an approval");

  await card.getByRole("button", { name: "Side by side" }).click();
  await card.locator("table.split").waitFor();
  await tab.assertAccessible("a diff side by side");

  await takesKeys(card);
  await page.keyboard.press("n");
  await card.getByLabel("Why not?").fill("keep the old greeting");
  await page.keyboard.press("Enter");
  await page.getByText("Just decided").waitFor();
  const rejected = await shop.until(call, "rejected");
  assert.equal(rejected.approval.reason, "keep the old greeting");
  assert.equal(folder.read("src/greet.ts"), BEFORE);
  await waits(page, 0);

  const second = await asked("write_file", { path: "src/greet.ts", content: AFTER });
  await card.getByRole("button", { name: "Approve" }).click();
  await shop.until(second, "completed");
  assert.equal(folder.read("src/greet.ts"), AFTER);
  // What became of it is told where it was decided.
  await page.getByRole("button", { name: /src\/greet.ts Done/ }).waitFor();
  await other.page.getByRole("link", { name: "Approvals", exact: true }).waitFor();
  await other.close();
  await tab.close();
});

/** Holds back the answers to approvals; gives a function that waits for one to be asked for and lets it go on. */
async function holdApprovals(page) {
  const held = [];
  await page.route(/\/approvals\/[^/]+\/approve$/, (route) => void held.push(route));
  return async (meanwhile) => {
    const route = await eventually("an approval is sent", () => held.shift());
    await meanwhile();
    await route.continue();
  };
}

test("whoever goes elsewhere while an answer is on its way is left there", async (t) => {
  const { ann, shop, asked } = await desk(t, "ben");
  const [first, second, third] = [
    await asked("write_file", { path: "a.txt", content: "a" }),
    await asked("write_file", { path: "b.txt", content: "b" }),
    await asked("write_file", { path: "c.txt", content: "c" }),
  ];
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const approved = await holdApprovals(page);
  const approve = page.getByRole("button", { name: "Approve" });

  // To another question ...
  await page.getByRole("article", { name: /a\.txt/ }).waitFor();
  await approve.click();
  await approved(async () => {
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.getByRole("article", { name: /c\.txt/ }).waitFor();
  });
  await page.getByRole("button", { name: /a\.txt Done/ }).waitFor();
  await page.getByRole("article", { name: /c\.txt/ }).waitFor();

  // ... and to another page.
  await approve.click();
  await approved(() => tab.go("#/activity"));
  await page.getByText("Approved: Write file c.txt").waitFor();
  await page.getByRole("heading", { name: "Activity" }).waitFor();
  assert.equal(new URL(page.url()).hash, "#/activity");
  for (const call of [first, third]) await shop.until(call, "completed");
  assert.equal((await shop.until(second, "pending_approval")).status, "pending_approval");
  await tab.close();
});

/// TL-02.3
test("keys walk the list and decide; a class is allowed for the session and can be withdrawn", async (t) => {
  const { ann, shop, asked } = await desk(t, "bob");
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const calls = [];
  for (const [tool, params] of [
    ["execute_command", { command: "mkdir", args: ["build"] }],
    ["write_file", { path: "notes.md", content: "# Notes\n\nOne.\n" }],
  ]) {
    calls.push(await asked(tool, params));
  }
  await waits(page, 2);
  const card = page.getByRole("region", { name: "The question at hand" });
  await card.getByRole("heading", { name: "Run command" }).waitFor();
  await card.getByText("mkdir build").waitFor();
  assert.match(await card.locator("dl").innerText(), /Network\s+None/);
  await page.keyboard.press("j");
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await page.keyboard.press("k");
  await card.getByRole("heading", { name: "Run command" }).waitFor();
  await takesKeys(card);
  await page.keyboard.press("y");
  await shop.until(calls[0], "completed");
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await card.getByRole("button", { name: /Allow for this session: “Write file”/ }).click();
  await shop.until(calls[1], "completed");

  // The next of its class runs unasked, until the permission is taken back.
  const unasked = await shop.call("write_file", { path: "notes.md", content: "# Notes\n\nTwo.\n" }, { agent_id: "agent_coder" });
  await shop.until(unasked, "completed");
  await tab.go(`#/projects/${shop.id}/decisions`);
  await page.getByText("“Write file” for all ordinary files of this project").waitFor();
  await page.getByRole("cell", { name: "Allowed by permission" }).waitFor();
  assert.ok((await page.getByRole("row").count()) > 3);
  await tab.assertAccessible("the decisions of a project");
  await page.getByRole("button", { name: "Withdraw" }).click();
  await page.getByText("Nothing is allowed without asking").waitFor();
  const again = await asked("write_file", { path: "notes.md", content: "# Notes\n" });

  // Everything of an agent only after a second thought.
  await tab.go("#/approvals");
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await takesKeys(card);
  await page.keyboard.press("a");
  await page.getByRole("heading", { name: "Trust agent_coder?" }).waitFor();
  await tab.assertAccessible("the warning before an agent is trusted");
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("heading", { name: "Trust agent_coder?" }).waitFor({ state: "hidden" });
  assert.equal((await shop.until(again, "pending_approval")).status, "pending_approval");
  await page.keyboard.press("y");
  await shop.until(again, "completed");
  await tab.close();
});

test("several are decided at once, and each browser keeps up", async (t) => {
  const { ann, shop, folder, asked } = await desk(t, "cleo");
  const tab = await browser.open(ann, "#/approvals");
  const other = await browser.open(ann, "#/approvals");
  const calls = [];
  for (const name of ["a", "b", "c"]) calls.push(await asked("write_file", { path: `${name}.txt`, content: `${name}\n` }));
  await waits(tab.page, 3);
  const boxes = tab.page.getByRole("checkbox", { name: /^Select:/ });
  await boxes.nth(0).click();
  await boxes.nth(2).click({ modifiers: ["Shift"] });
  await tab.page.getByText("3 selected").waitFor();
  await tab.page.getByRole("button", { name: "Approve 3" }).click();
  for (const call of calls) await shop.until(call, "completed");
  assert.equal(folder.read("b.txt"), "b\n");
  await waits(tab.page, 0);
  await waits(other.page, 0);
  await other.page.getByText("This is decided").waitFor();
  await tab.close();
  await other.close();
});

test("on a phone: the list, the question over the whole screen, thumb-sized answers", async (t) => {
  const { ann, shop, asked } = await desk(t, "dora");
  const call = await asked("execute_command", { command: "make", args: ["all"] });
  const tab = await browser.open(ann, "#/approvals", { size: PHONE });
  const { page } = tab;
  await page.getByRole("link", { name: /Run command/ }).click();
  const approve = page.getByRole("button", { name: "Approve" });
  await approve.waitFor();
  await page.getByRole("article").getByText("High").waitFor();
  const box = await approve.boundingBox();
  assert.ok(box.height >= 40 && box.y + box.height <= PHONE.height, JSON.stringify(box));
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await tab.assertAccessible("an approval on a phone");
  await page.getByRole("button", { name: "Reject" }).click();
  await page.getByLabel("Why not?").waitFor();
  await page.getByRole("button", { name: "Reject" }).click();
  await shop.until(call, "rejected");
  await page.getByText("Nothing waits for you").waitFor();
  await tab.close();
});

test("after an answer comes the question behind it, not one that was passed over; any keyboard layout does", async (t) => {
  const { ann, shop, folder, asked } = await desk(t, "finn");
  for (const name of ["a", "b", "c", "d"]) await asked("write_file", { path: `${name}.txt`, content: `${name}\n` });
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const card = page.getByRole("region", { name: "The question at hand" });
  const shows = (name) => card.getByRole("article", { name: `Write file ${name}.txt` }).waitFor();
  await shows("a");
  // As a Russian layout sends them.
  const press = (key, code) =>
    page.evaluate(([key, code]) => void document.body.dispatchEvent(new KeyboardEvent("keydown", { key, code, bubbles: true })), [key, code]);
  await press("о", "KeyJ");
  await shows("b");
  await takesKeys(card);
  await press("н", "KeyY");
  await shows("c");
  await eventually("b is written", () => ["a", "b", "c", "d"].filter((name) => folder.has(`${name}.txt`)).join() === "b");
  // At the end of the list the nearest one before it is next.
  await page.keyboard.press("j");
  await shows("d");
  await takesKeys(card);
  await page.keyboard.press("y");
  await shows("c");
  await waits(page, 2);
  for (const call of (await ann.ask("GET", "/my/approvals")).approvals) await ann.ask("POST", `${shop.path}/tools/${call.tool_id}/cancel`);
  await tab.close();
});

/** Writes down what would be shown, as if nobody looked at the page. */
function listen(page, { phone = false } = {}) {
  return page.evaluate((phone) => {
    globalThis.told = [];
    const tell = (title, options) => globalThis.told.push(`${title}: ${options.body}`);
    globalThis.Notification = class extends Notification {
      constructor(title, options) {
        // What Chrome on Android does.
        if (phone) throw new TypeError("Illegal constructor");
        super(title, options);
        tell(title, options);
      }
    };
    ServiceWorkerRegistration.prototype.showNotification = async function (title, options) {
      tell(title, options);
    };
    Object.defineProperty(document, "hasFocus", { value: () => false });
  }, phone);
}

for (const phone of [false, true]) {
  test(`somebody who looks elsewhere is notified, by name${phone ? ", on a phone by its worker" : ""}`, async (t) => {
    const { ann, shop, asked } = await desk(t, phone ? "gina" : "emil");
    const tab = await browser.open(ann, "#/projects");
    const { page } = tab;
    await page.getByRole("heading", { name: "Projects", exact: true }).waitFor();
    await page.getByText("Live", { exact: true }).waitFor();
    await listen(page, { phone });
    const call = await asked("write_file", { path: "later.txt", content: "x\n" });
    const told = await eventually("a notification", () => page.evaluate(() => globalThis.told[0]));
    assert.equal(told, "agent_coder asks (Medium): Write file later.txt");
    // Where they go then, the list names who asks as well.
    await tab.go("#/approvals");
    await page.getByRole("link", { name: /agent_coder · shop/ }).waitFor();
    await ann.ask("POST", `${shop.path}/tools/${call.tool_id}/cancel`);
    await tab.close();
  });
}

test("a plan that waits notifies too, and is all that waits", async (t) => {
  const ann = server.person("hans");
  const shop = await ann.project("shop", { settings: { planner: { approve_above: 1 } } });
  const tab = await browser.open(ann, "#/projects");
  const { page } = tab;
  await page.getByText("Live", { exact: true }).waitFor();
  await listen(page);
  const talk = await ann.ask("POST", `${shop.path}/chat/sessions`, { title: "plans" });
  const { plan_id } = await ann.ask("POST", `${shop.path}/chat/${talk.id}/message`, { content: "read a.txt and then read b.txt" });
  assert.equal(await eventually("a notification", () => page.evaluate(() => globalThis.told[0])), "This plan waits for you: shop");
  await tab.go("#/approvals");
  await page.getByText("1 waits for you").waitFor();
  assert.equal(await page.getByText("Nothing waits for you").count(), 0);

  // Whoever comes later is told as well, and whoever refuses it hears of it once.
  await page.reload();
  await page.getByRole("link", { name: /This plan waits for you/ }).click();
  await page.getByRole("button", { name: "Refuse" }).click();
  await page.getByText("The plan was refused.").waitFor();
  assert.equal(await page.getByRole("button", { name: "Resume" }).count(), 0);
  assert.equal((await ann.ask("GET", `${shop.path}/plans/${plan_id}`)).status, "cancelled");
  await tab.close();
});

test("a browser that says no to notifications is not shown as saying yes", async () => {
  const tab = await browser.open(server.person("ida"), "#/approvals", { permissions: [] });
  const { page } = tab;
  const box = page.getByRole("checkbox", { name: "Notify me" });
  await box.waitFor();
  await page.evaluate(() => (Notification.requestPermission = async () => "denied"));
  await box.click();
  await page.getByText("The browser does not allow notifications").waitFor();
  assert.equal(await box.isChecked(), false);
  await tab.close();
});

test("every decision is shown, page by page, also on a phone", async () => {
  const jo = server.person("jo");
  const shop = await jo.project("shop");
  const decide = async (n) => {
    const call = await shop.until(await shop.call("execute_command", { command: "make", args: [`job-${n}`] }), "pending_approval");
    await jo.ask("POST", `${shop.path}/tools/${call.tool_id}/cancel`);
  };
  for (let n = 0; n < 55; n++) await decide(n);
  const tab = await browser.open(jo, `#/projects/${shop.id}/decisions`);
  const { page } = tab;
  const lines = (n) => eventually(`${n} decisions`, async () => (await page.locator("tbody tr").count()) === n);
  await lines(50);
  await page.getByRole("button", { name: "Show more" }).click();
  await lines(55);
  // What is decided meanwhile joins them, on top.
  await decide("last");
  await lines(56);
  assert.match(await page.locator("tbody tr").first().innerText(), /job-last/);
  await tab.close();

  const phone = await browser.open(jo, `#/projects/${shop.id}/decisions`, { size: PHONE });
  await phone.page.getByRole("button", { name: /job-last/ }).waitFor();
  assert.equal((await phone.hittable(".what button"))[0].hit, true);
  await phone.close();
});
