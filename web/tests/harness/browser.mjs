// A browser that notices what must not happen: errors, refused content, requests to elsewhere.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export const PHONE = { width: 390, height: 780 };
export const DESK = { width: 1360, height: 860 };

export class Browser {
  #browser;

  static async start() {
    const browser = new Browser();
    browser.#browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: FLAGS });
    return browser;
  }

  stop() {
    return this.#browser.close();
  }

  /** A tab of its own, as of another browser, signed in as this person. */
  async open(person, address = "", { size = DESK, scheme = "light", locale = "en-GB", signedIn = true, permissions = ["notifications"] } = {}) {
    const context = await this.#browser.newContext({
      viewport: size,
      colorScheme: scheme,
      locale,
      hasTouch: size.width < 720,
      permissions,
    });
    const page = await context.newPage();
    page.setDefaultTimeout(30_000);
    const tab = new Tab(context, page);
    if (signedIn) {
      // Only the first time: a tab that was signed out stays so.
      await page.addInitScript((token) => {
        // Frames that show a file have no storage, and are nobody's.
        if (top !== globalThis || sessionStorage.getItem("test.began")) return;
        sessionStorage.setItem("test.began", "yes");
        sessionStorage.setItem("atelier.token", token);
      }, person.token);
    }
    await page.goto(`${person.server.url}/${address}`);
    return tab;
  }
}

class Tab {
  #context;
  #wrong = [];
  /** What the page may complain about, because the test makes it happen. */
  allowed = [];

  constructor(context, page) {
    this.#context = context;
    this.page = page;
    page.on("pageerror", (error) => this.#wrong.push(`error: ${error.stack ?? error}`));
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") this.#wrong.push(`${message.type()}: ${message.text()} (${message.location().url})`);
    });
    page.on("dialog", (dialog) => {
      this.#wrong.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("request", (request) => {
      const { protocol, hostname } = new URL(request.url());
      if (protocol.startsWith("http") && hostname !== "127.0.0.1") this.#wrong.push(`request to ${request.url()}`);
    });
  }

  /** Fails when anything went wrong in the page; then closes it. */
  async close() {
    await this.#context.close();
    const wrong = this.#wrong.filter((text) => !this.allowed.some((pattern) => pattern.test(text)));
    assert.deepEqual(wrong, [], "the page complained");
  }

  /** Goes to another place, and is there when this is over. */
  go(hash) {
    return this.page.evaluate(
      (to) =>
        new Promise((resolve) => {
          if (location.hash === to) return resolve();
          // The page listens too, and draws before the next task.
          addEventListener("hashchange", () => setTimeout(resolve), { once: true });
          location.hash = to;
        }),
      hash,
    );
  }

  /** How often the page asked for each address while it answered to nothing; a page that is done asks no more. */
  async requestsWhileIdle() {
    const asked = {};
    const note = (request) => {
      const { pathname } = new URL(request.url());
      if (pathname !== "/health") asked[pathname] = (asked[pathname] ?? 0) + 1;
    };
    this.page.on("request", note);
    // A page that asks for itself without end would do so at least as often as this.
    await this.page.evaluate(async () => {
      for (let round = 0; round < 30; round++) await fetch("/health");
    });
    this.page.off("request", note);
    return asked;
  }

  /** How long a frame takes while this box is scrolled, in milliseconds: 95 % take no longer. */
  async frameTime(selector, step) {
    const sweep = () =>
      this.page.evaluate(
        async ([selector, step]) => {
          const box = document.querySelector(selector);
          box.scrollTop = 0;
          const times = [];
          for (let at = 0, last = performance.now(); at < 100; at++) {
            box.scrollTop += step;
            await new Promise(requestAnimationFrame);
            times.push(performance.now() - last);
            last = performance.now();
          }
          return times.sort((a, b) => a - b)[95];
        },
        [selector, step],
      );
    // The machine is shared: a list that is slow is so each time.
    return Math.min(await sweep(), await sweep(), await sweep());
  }

  /** Whether a finger in the middle of each of these would meet it. */
  hittable(selector) {
    return this.page.evaluate(
      (selector) =>
        [...document.querySelectorAll(selector)]
          .filter((link) => link.getClientRects().length > 0)
          .map((link) => {
            const { left, top, width, height } = link.getBoundingClientRect();
            const met = document.elementFromPoint(left + width / 2, top + height / 2);
            return { text: link.textContent.trim(), hit: !!met && link.contains(met) && left >= 0 && left + width <= innerWidth };
          }),
      selector,
    );
  }

  /** Everything that axe finds serious or critical. */
  async assertAccessible(where) {
    // Given to the page by the debugger, past the policy that forbids scripts from elsewhere.
    await this.page.evaluate(AXE);
    const found = await this.page.evaluate(async () => {
      const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
      return violations
        .filter(({ impact }) => impact === "serious" || impact === "critical")
        .map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map(({ html, failureSummary }) => `${html}\n${failureSummary}`) }));
    });
    assert.deepEqual(found, [], `axe on ${where}`);
  }
}
