// All pages in all languages, in light and dark, on a desktop and on a phone: accessible, small and quiet.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import { DESKTOP, PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";
import type { Project, User } from "./harness/server.ts";

let ann: User;
let shop: Project;
before(async () => {
  ann = server.user("ann", "--role", "admin");
  shop = await ann.project("shop");
});

const pages = () => [
  "#/",
  "#/approvals",
  "#/projects",
  "#/projects/new",
  `#/projects/${shop.id}`,
  `#/projects/${shop.id}/settings`,
  `#/projects/${shop.id}/agents/new`,
  `#/projects/${shop.id}/chat`,
  `#/projects/${shop.id}/changes`,
  `#/projects/${shop.id}/files`,
  `#/projects/${shop.id}/memory`,
  `#/projects/${shop.id}/decisions`,
  `#/projects/${shop.id}/server`,
  "#/activity",
  "#/account",
  "#/models",
  "#/usage",
  "#/overview",
  "#/nowhere",
];

for (const [locale, scheme, size] of [
  ["en-GB", "light", DESKTOP],
  ["ru-RU", "dark", DESKTOP],
  ["ja-JP", "light", PHONE],
] as const) {
  test(`all pages in ${locale}, ${scheme}, ${size.width} wide`, async () => {
    const tab = await browser.open(ann, "", { locale, scheme, size });
    const { page } = tab;
    for (const address of pages()) {
      await tab.goto(address);
      await page.waitForFunction(
        () => document.querySelector("main h1") && !document.querySelector("main > [role=status]"),
      );
      assert.equal(await page.evaluate(() => document.documentElement.lang), locale.slice(0, 2));
      assert.ok(
        await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth),
        `${address} scrolls sideways`,
      );
      await tab.assertAccessible(`${address} in ${locale}`);
    }
    await tab.close();
  });
}

test("an idle page sends no requests", async () => {
  const tab = await browser.open(ann);
  for (const address of pages()) {
    await tab.goto(address);
    await tab.page.waitForFunction(
      () => document.querySelector("main h1") && !document.querySelector("main > [role=status]"),
    );
    const often = Object.entries(await tab.requestsWhileIdle()).filter(([, times]) => times > 3);
    assert.deepEqual(often, [], `${address} sends requests in a loop`);
  }
  await tab.close();
});

for (const [locale, width] of [
  ["en-GB", 390],
  ["ja-JP", 390],
  ["ru-RU", 360],
] as const) {
  test(`all navigation links can be tapped on a phone ${width} wide in ${locale}`, async () => {
    const call = await shop.waitForStatus(
      await shop.call("execute_command", { command: "make", args: ["all"] }),
      "pending_approval",
    );
    const tab = await browser.open(ann, "#/projects", { locale, size: { width, height: 640 } });
    await tab.page.waitForFunction(() => document.title.startsWith("(1) "));
    const links = await tab.tappable("header nav > a");
    assert.equal(links.length, 4);
    assert.deepEqual(
      links.filter(({ hit }) => !hit),
      [],
    );
    // Each has its name, and the names are beside each other.
    const names = await tab.page
      .locator("header nav > a > span:not(.badge)")
      .evaluateAll((spans) =>
        spans.map((span) => span.getBoundingClientRect()).filter(({ width }) => width > 0),
      );
    assert.equal(names.length, 4);
    // A machine without Japanese fonts shows narrow boxes in their place.
    assert.ok(names.every(({ width, top }) => width > 10 && top === names[0]?.top));
    await shop.cancel(call);
    await tab.close();
  });
}

test("the first load is small, fast and contacts no other host", async () => {
  const tab = await browser.open(ann, "", { signedIn: false });
  const { page } = tab;
  await page.evaluate((token) => sessionStorage.setItem("atelier.token", token), ann.token);
  const load = async () => {
    await page.goto("about:blank");
    await page.goto(server.url);
    await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
    await page.getByRole("link", { name: /shop/ }).first().waitFor();
    return page.evaluate(() => performance.now());
  };
  // The best of three, because other programs share this computer.
  const usable = Math.min(await load(), await load(), await load());
  // Compressed sizes, as transferred.
  const sizes = await page.evaluate(() =>
    [
      ...(performance.getEntriesByType("navigation") as PerformanceResourceTiming[]),
      ...(performance.getEntriesByType("resource") as PerformanceResourceTiming[]),
    ]
      .filter(({ name }) => /\/(assets\/.*|)$/.test(new URL(name).pathname))
      .map(({ encodedBodySize }) => encodedBodySize),
  );
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  console.log(
    `first load: ${sizes.length} files, ${bytes} bytes, usable after ${Math.round(usable)} ms`,
  );
  assert.ok(bytes > 0 && bytes <= 150_000, `${bytes} bytes`);
  // One second on an idle computer; tests share theirs.
  assert.ok(usable < 3_000, `${usable} ms`);
  await tab.close();
});

test("the content security policy allows nothing inline and no other host", async () => {
  const response = await fetch(server.url);
  const policy = response.headers.get("content-security-policy") ?? "";
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe-inline|unsafe-eval|\*|https?:/);
});

test("ten thousand events scroll smoothly", async () => {
  const bob = server.user("bob");
  const busy = await bob.project("busy");
  // Each rename is an event; many are sent in parallel to keep the test short.
  for (let round = 0; round < 100; round++) {
    await Promise.all(
      Array.from({ length: 100 }, (_, n) =>
        bob.request("PUT", busy.path, { name: `busy ${round} ${n}` }),
      ),
    );
  }
  const tab = await browser.open(bob, "#/activity");
  const { page } = tab;
  await page.getByText("10,000 events").waitFor();
  const rows = await page.locator(".box li").count();
  assert.ok(rows < 100, `${rows} rows are in the page`);
  const frameTime = await tab.frameTime(".box", 2_700);
  console.log(`scrolling 10,000 events: 95 % of frames within ${frameTime.toFixed(1)} ms`);
  // A frame takes a few milliseconds on an idle computer; tests share theirs.
  assert.ok(frameTime < 250, `${frameTime} ms per frame`);
  await page.keyboard.press("Tab");
  await page.locator(".box").evaluate((box) => (box.scrollTop = box.scrollHeight));
  await page.getByText("PROJECT_UPDATED").first().waitFor();
  await tab.close();
});
