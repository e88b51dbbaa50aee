// Approvals: what a user sees, and what a decision does to the files, on a desktop and on a phone.

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import type { Locator, Page, Route } from "playwright-core";
import { PHONE } from "./harness/browser.ts";
import { ConnectedFolder, eventually } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";

const BEFORE = 'export function greet(name: string) {\n  return "Hello, " + name;\n}\n';
const AFTER = "export function greet(name: string) {\n  return `Hello, ${name}!`;\n}\n";

/** A user with a project and a connected folder, for one test. */
async function setUp(t: TestContext, name: string) {
  const ann = server.user(name);
  const shop = await ann.project("shop");
  const folder = await ConnectedFolder.connect(shop, {
    "src/greet.ts": BEFORE,
    "notes.md": "# Notes\n",
  });
  t.after(() => folder.disconnect());
  const requestCall = async (tool: string, params: object) =>
    shop.waitForStatus(
      await shop.call(tool, params, { agent_id: "agent_coder" }),
      "pending_approval",
    );
  return { ann, shop, folder, requestCall };
}

/** A new card ignores shortcut keys for a moment; then it shows them. */
const waitForKeys = (card: Locator) => card.locator("[aria-keyshortcuts=y]").waitFor();
/** Waits until the tab title shows this number of pending approvals. */
const waitForCount = (page: Page, n: number) =>
  page.waitForFunction((n) => document.title.startsWith(n ? `(${n}) ` : "Approvals"), n);

/// TL-06.3
test("a write shows its diff; reject keeps the file, approve changes it", async (t) => {
  const { ann, shop, folder, requestCall } = await setUp(t, "ann");
  const tab = await browser.open(ann, "#/approvals");
  const other = await browser.open(ann, "#/projects");
  const { page } = tab;
  await page.getByText("No approvals pending").waitFor();

  const call = await requestCall("write_file", { path: "src/greet.ts", content: AFTER });
  const card = page.getByRole("region", { name: "Selected approval" });
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await card.getByText("Requested by agent_coder, ").waitFor();
  await card.getByText("Medium").waitFor();
  assert.equal(await card.locator("tr.old .text").innerText(), '  return "Hello, " + name;');
  assert.equal(await card.locator("tr.new .text").innerText(), "  return `Hello, ${name}!`;");
  // Changed words are marked, and code is highlighted.
  assert.ok((await card.locator("tr.new .changed").allInnerTexts()).join("").includes("`"));
  await card.locator("tr.new .hl-keyword", { hasText: "return" }).waitFor();
  // The other browser shows the new approval on any page.
  await waitForCount(page, 1);
  await other.page.getByRole("link", { name: /Approvals 1/ }).waitFor();
  await tab.assertAccessible("an approval");

  await card.getByRole("button", { name: "Side by side" }).click();
  await card.locator("table.split").waitFor();
  await tab.assertAccessible("a diff side by side");

  await waitForKeys(card);
  await page.keyboard.press("n");
  await card.getByLabel("Reason").fill("keep the old greeting");
  await page.keyboard.press("Enter");
  await page.getByText("Recently decided").waitFor();
  const rejected = await shop.waitForStatus(call, "rejected");
  assert.equal(rejected.approval?.reason, "keep the old greeting");
  assert.equal(folder.read("src/greet.ts"), BEFORE);
  await waitForCount(page, 0);

  const second = await requestCall("write_file", { path: "src/greet.ts", content: AFTER });
  await card.getByRole("button", { name: "Approve" }).click();
  await shop.waitForStatus(second, "completed");
  assert.equal(folder.read("src/greet.ts"), AFTER);
  // The outcome is shown where the call was approved.
  await page.getByRole("button", { name: /src\/greet.ts Done/ }).waitFor();
  await other.page.getByRole("link", { name: "Approvals", exact: true }).waitFor();
  await other.close();
  await tab.close();
});

/** Delays approval requests. The returned function waits for one, runs `meanwhile` and then lets the request continue. */
async function holdApprovals(page: Page) {
  const held: Route[] = [];
  await page.route(/\/approvals\/[^/]+\/approve$/, (route) => void held.push(route));
  return async (meanwhile: () => Promise<unknown>) => {
    const route = await eventually("an approval is sent", () => held.shift());
    await meanwhile();
    await route.continue();
  };
}

test("a user who leaves the page while a decision is sent is not moved back", async (t) => {
  const { ann, shop, requestCall } = await setUp(t, "ben");
  const [first, second, third] = [
    await requestCall("write_file", { path: "a.txt", content: "a" }),
    await requestCall("write_file", { path: "b.txt", content: "b" }),
    await requestCall("write_file", { path: "c.txt", content: "c" }),
  ];
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const approved = await holdApprovals(page);
  const approve = page.getByRole("button", { name: "Approve" });

  // Leaving to another approval.
  await page.getByRole("article", { name: /a\.txt/ }).waitFor();
  await approve.click();
  await approved(async () => {
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.getByRole("article", { name: /c\.txt/ }).waitFor();
  });
  await page.getByRole("button", { name: /a\.txt Done/ }).waitFor();
  await page.getByRole("article", { name: /c\.txt/ }).waitFor();

  // Leaving to another page.
  await approve.click();
  await approved(() => tab.goto("#/activity"));
  await page.getByText("Approved: Write file c.txt").waitFor();
  await page.getByRole("heading", { name: "Activity" }).waitFor();
  assert.equal(new URL(page.url()).hash, "#/activity");
  for (const call of [first, third]) await shop.waitForStatus(call, "completed");
  assert.equal((await shop.waitForStatus(second, "pending_approval")).status, "pending_approval");
  await tab.close();
});

/// TL-02.3
test("shortcut keys move and decide; a permission for a class can be given and withdrawn", async (t) => {
  const { ann, shop, requestCall } = await setUp(t, "bob");
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const command = await requestCall("execute_command", { command: "mkdir", args: ["build"] });
  const write = await requestCall("write_file", { path: "notes.md", content: "# Notes\n\nOne.\n" });
  await waitForCount(page, 2);
  const card = page.getByRole("region", { name: "Selected approval" });
  await card.getByRole("heading", { name: "Run command" }).waitFor();
  await card.getByText("mkdir build").waitFor();
  assert.match(await card.locator("dl").innerText(), /Network\s+None/);
  await page.keyboard.press("j");
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await page.keyboard.press("k");
  await card.getByRole("heading", { name: "Run command" }).waitFor();
  await waitForKeys(card);
  await page.keyboard.press("y");
  await shop.waitForStatus(command, "completed");
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await card
    .getByRole("button", { name: /Allow until the machine disconnects: “Write file”/ })
    .click();
  await shop.waitForStatus(write, "completed");

  // The next call of the class runs without approval until the permission is withdrawn.
  const permitted = await shop.call(
    "write_file",
    { path: "notes.md", content: "# Notes\n\nTwo.\n" },
    { agent_id: "agent_coder" },
  );
  await shop.waitForStatus(permitted, "completed");
  await tab.goto(`#/projects/${shop.id}/decisions`);
  await page.getByText("“Write file” for all ordinary files in this project").waitFor();
  await page.getByRole("cell", { name: "Allowed by permission" }).waitFor();
  assert.ok((await page.getByRole("row").count()) > 3);
  await tab.assertAccessible("the decisions of a project");
  await page.getByRole("button", { name: "Withdraw" }).click();
  await page.getByText("No permissions").waitFor();
  const again = await requestCall("write_file", { path: "notes.md", content: "# Notes\n" });

  // Trusting an agent needs a confirmation.
  await tab.goto("#/approvals");
  await card.getByRole("heading", { name: "Write file" }).waitFor();
  await waitForKeys(card);
  await page.keyboard.press("a");
  await page.getByRole("heading", { name: "Trust agent_coder?" }).waitFor();
  await tab.assertAccessible("the warning before an agent is trusted");
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("heading", { name: "Trust agent_coder?" }).waitFor({ state: "hidden" });
  assert.equal((await shop.waitForStatus(again, "pending_approval")).status, "pending_approval");
  await page.keyboard.press("y");
  await shop.waitForStatus(again, "completed");
  await tab.close();
});

test("several approvals are decided at once, and every browser is updated", async (t) => {
  const { ann, shop, folder, requestCall } = await setUp(t, "cleo");
  const tab = await browser.open(ann, "#/approvals");
  const other = await browser.open(ann, "#/approvals");
  const calls = [];
  for (const name of ["a", "b", "c"])
    calls.push(await requestCall("write_file", { path: `${name}.txt`, content: `${name}\n` }));
  await waitForCount(tab.page, 3);
  const boxes = tab.page.getByRole("checkbox", { name: /^Select:/ });
  await boxes.nth(0).click();
  await boxes.nth(2).click({ modifiers: ["Shift"] });
  await tab.page.getByText("3 selected").waitFor();
  await tab.page.getByRole("button", { name: "Approve all 3" }).click();
  for (const call of calls) await shop.waitForStatus(call, "completed");
  assert.equal(folder.read("b.txt"), "b\n");
  await waitForCount(tab.page, 0);
  await waitForCount(other.page, 0);
  await other.page.getByText("Already decided").waitFor();
  await tab.close();
  await other.close();
});

test("on a phone an approval fills the screen and its buttons are large", async (t) => {
  const { ann, shop, requestCall } = await setUp(t, "dora");
  const call = await requestCall("execute_command", { command: "make", args: ["all"] });
  const tab = await browser.open(ann, "#/approvals", { size: PHONE });
  const { page } = tab;
  await page.getByRole("link", { name: /Run command/ }).click();
  const approve = page.getByRole("button", { name: "Approve" });
  await approve.waitFor();
  await page.getByRole("article").getByText("High").waitFor();
  const box = await approve.boundingBox();
  assert.ok(box && box.height >= 40 && box.y + box.height <= PHONE.height, JSON.stringify(box));
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await tab.assertAccessible("an approval on a phone");
  await page.getByRole("button", { name: "Reject" }).click();
  await page.getByLabel("Reason").waitFor();
  await page.getByRole("button", { name: "Reject" }).click();
  await shop.waitForStatus(call, "rejected");
  await page.getByText("No approvals pending").waitFor();
  await tab.close();
});

test("after a decision the next approval is shown, with any keyboard layout", async (t) => {
  const { ann, shop, folder, requestCall } = await setUp(t, "finn");
  for (const name of ["a", "b", "c", "d"])
    await requestCall("write_file", { path: `${name}.txt`, content: `${name}\n` });
  const tab = await browser.open(ann, "#/approvals");
  const { page } = tab;
  const card = page.getByRole("region", { name: "Selected approval" });
  const waitForCard = (name: string) =>
    card.getByRole("article", { name: `Write file ${name}.txt` }).waitFor();
  await waitForCard("a");
  // The key events of a Russian keyboard layout.
  const press = (key: string, code: string) =>
    page.evaluate(
      ([key, code]) =>
        void document.body.dispatchEvent(
          new KeyboardEvent("keydown", { key, code, bubbles: true }),
        ),
      [key, code] as const,
    );
  await press("о", "KeyJ");
  await waitForCard("b");
  await waitForKeys(card);
  await press("н", "KeyY");
  await waitForCard("c");
  await eventually(
    "b is written",
    () => ["a", "b", "c", "d"].filter((name) => folder.has(`${name}.txt`)).join() === "b",
  );
  // After the last approval, the nearest one before it is shown.
  await page.keyboard.press("j");
  await waitForCard("d");
  await waitForKeys(card);
  await page.keyboard.press("y");
  await waitForCard("c");
  await waitForCount(page, 2);
  for (const call of (await ann.pendingApprovals()).approvals) await shop.cancel(call);
  await tab.close();
});

/** Records notifications, and makes the page believe that it is not focused. */
function recordNotifications(page: Page, { phone = false } = {}) {
  return page.evaluate((phone) => {
    const notifications: string[] = [];
    Object.assign(globalThis, { notifications });
    const record = (title: string, options?: NotificationOptions) =>
      notifications.push(`${title}: ${options?.body}`);
    globalThis.Notification = class extends Notification {
      constructor(title: string, options?: NotificationOptions) {
        // As Chrome on Android does.
        if (phone) throw new TypeError("Illegal constructor");
        super(title, options);
        record(title, options);
      }
    };
    ServiceWorkerRegistration.prototype.showNotification = async function (title, options) {
      record(title, options);
    };
    Object.defineProperty(document, "hasFocus", { value: () => false });
  }, phone);
}

/** The first recorded notification. */
const firstNotification = (page: Page) =>
  eventually("a notification", () =>
    page.evaluate(() => (globalThis as unknown as { notifications: string[] }).notifications[0]),
  );

for (const phone of [false, true]) {
  test(`a user who looks elsewhere is notified${phone ? " on a phone by the service worker" : ""}`, async (t) => {
    const { ann, shop, requestCall } = await setUp(t, phone ? "gina" : "emil");
    const tab = await browser.open(ann, "#/projects");
    const { page } = tab;
    await page.getByRole("heading", { name: "Projects", exact: true }).waitFor();
    await page.getByText("Live", { exact: true }).waitFor();
    await recordNotifications(page, { phone });
    const call = await requestCall("write_file", { path: "later.txt", content: "x\n" });
    assert.equal(
      await firstNotification(page),
      "agent_coder needs approval (Medium): Write file later.txt",
    );
    // The list also names the requester.
    await tab.goto("#/approvals");
    await page.getByRole("link", { name: /agent_coder · shop/ }).waitFor();
    await shop.cancel(call);
    await tab.close();
  });
}

test("a plan that needs approval causes a notification and is counted", async () => {
  const ann = server.user("hans");
  const shop = await ann.project("shop", { settings: { planner: { approve_above: 1 } } });
  const tab = await browser.open(ann, "#/projects");
  const { page } = tab;
  await page.getByText("Live", { exact: true }).waitFor();
  await recordNotifications(page);
  const conversation = await shop.conversation("plans");
  const { plan_id } = await shop.send(conversation.id, {
    content: "read a.txt and then read b.txt",
  });
  assert.equal(await firstNotification(page), "This plan needs your approval: shop");
  await tab.goto("#/approvals");
  await page.getByText("1 approval pending").waitFor();
  assert.equal(await page.getByText("No approvals pending").count(), 0);

  // The plan is still listed after a reload, and its rejection is shown once.
  await page.reload();
  await page.getByRole("link", { name: /This plan needs your approval/ }).click();
  await page.getByRole("button", { name: "Reject" }).click();
  await page.getByText("The plan was rejected. None of its tasks will run.").waitFor();
  assert.equal(await page.getByRole("button", { name: "Resume" }).count(), 0);
  assert.equal(
    (await ann.request<{ status: string }>("GET", `${shop.path}/plans/${plan_id}`)).status,
    "cancelled",
  );
  await tab.close();
});

test("notifications are shown as off if the browser refuses them", async () => {
  const tab = await browser.open(server.user("ida"), "#/approvals", { permissions: [] });
  const { page } = tab;
  const box = page.getByRole("checkbox", { name: "Notify me" });
  await box.waitFor();
  await page.evaluate(() => (Notification.requestPermission = async () => "denied"));
  await box.click();
  await page.getByText("The browser blocks notifications").waitFor();
  assert.equal(await box.isChecked(), false);
  await tab.close();
});

test("the decision history is loaded page by page, also on a phone", async () => {
  const jo = server.user("jo");
  const shop = await jo.project("shop");
  const cancelOne = async (n: number | string) => {
    const call = await shop.waitForStatus(
      await shop.call("execute_command", { command: "make", args: [`job-${n}`] }),
      "pending_approval",
    );
    await shop.cancel(call);
  };
  for (let n = 0; n < 55; n++) await cancelOne(n);
  const tab = await browser.open(jo, `#/projects/${shop.id}/decisions`);
  const { page } = tab;
  const waitForRows = (n: number) =>
    eventually(`${n} decisions`, async () => (await page.locator("tbody tr").count()) === n);
  await waitForRows(50);
  await page.getByRole("button", { name: "Show more" }).click();
  await waitForRows(55);
  // A new decision is added at the top.
  await cancelOne("last");
  await waitForRows(56);
  assert.match(await page.locator("tbody tr").first().innerText(), /job-last/);
  await tab.close();

  const phone = await browser.open(jo, `#/projects/${shop.id}/decisions`, { size: PHONE });
  await phone.page.getByRole("button", { name: /job-last/ }).waitFor();
  assert.equal((await phone.tappable(".what button"))[0]?.hit, true);
  await phone.close();
});

test("a write that changes nothing is shown as such, without a diff", async (t) => {
  const { ann, shop, requestCall } = await setUp(t, "noa");
  const call = await requestCall("write_file", { path: "notes.md", content: "# Other\n" });
  for (const [size, scheme] of [
    [undefined, "light"],
    [PHONE, "dark"],
  ] as const) {
    const tab = await browser.open(ann, "#/projects", { ...(size ? { size } : {}), scheme });
    const { page } = tab;
    // What an executor says about a file that has the content already.
    await page.route("**/my/approvals*", async (route: Route) => {
      const response = await route.fetch();
      const body = (await response.json()) as { approvals: { preview: { diff: string } }[] };
      for (const { preview } of body.approvals)
        preview.diff = "No change: notes.md has this content already.\n";
      await route.fulfill({ response, json: body });
    });
    await page.reload();
    await tab.goto(`#/approvals/${call.tool_id}`);
    await page.getByText("This changes nothing: notes.md already has").waitFor();
    assert.equal(await page.locator("section.diff").count(), 0);
    const width = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(width <= 0, `the page is ${width} pixels too wide`);
    await tab.assertAccessible("a write that changes nothing");
    await tab.close();
  }
  await shop.cancel(call);
});
