// A browser that fails a test when a page reports an error, has content blocked or contacts another host.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import {
  chromium,
  type BrowserContext,
  type Browser as Chromium,
  type Page,
  type Request,
} from "playwright-core";
import type { User } from "./server.ts";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export const PHONE = { width: 390, height: 780 };
export const DESKTOP = { width: 1360, height: 860 };

interface TabOptions {
  size?: { width: number; height: number };
  scheme?: "light" | "dark";
  locale?: string;
  signedIn?: boolean;
  permissions?: string[];
}

export class Browser {
  #browser: Chromium;

  private constructor(browser: Chromium) {
    this.#browser = browser;
  }

  static async start(): Promise<Browser> {
    const executablePath = process.env.CHROMIUM;
    if (!executablePath) throw new Error("CHROMIUM is not set; run scripts/test-console");
    return new Browser(await chromium.launch({ executablePath, args: FLAGS }));
  }

  stop(): Promise<void> {
    return this.#browser.close();
  }

  /** Opens a tab with its own storage, as in a separate browser, signed in as this user. */
  async open(
    user: Pick<User, "server" | "token">,
    address = "",
    options: TabOptions = {},
  ): Promise<Tab> {
    const {
      size = DESKTOP,
      scheme = "light",
      locale = "en-GB",
      signedIn = true,
      permissions = ["notifications"],
    } = options;
    const context = await this.#browser.newContext({
      ...(signedIn ? { storageState: await signIn(user) } : {}),
      viewport: size,
      colorScheme: scheme,
      locale,
      hasTouch: size.width < 720,
      permissions,
    });
    const page = await context.newPage();
    page.setDefaultTimeout(30_000);
    const tab = new Tab(context, page);
    // The test loader names functions with this helper, also those that are evaluated in the page.
    await page.addInitScript("globalThis.__name = (value) => value");
    await page.goto(`${user.server.url}/${address}`);
    return tab;
  }
}

/** Exchanges a token for the session of a browser, and gives what the browser keeps of it. */
export async function signIn({ server, token }: Pick<User, "server" | "token">) {
  const { origin, hostname } = new URL(server.url);
  const response = await fetch(`${origin}/auth/session`, {
    method: "POST",
    headers: { origin, "content-type": "application/json", "user-agent": "Mozilla/5.0" },
    body: JSON.stringify({ token }),
  });
  assert.equal(response.status, 200, await response.clone().text());
  const { key } = (await response.json()) as { key: string };
  const [name = "", value = ""] = response.headers.getSetCookie()[0]?.split(/[=;]/) ?? [];
  const kept = { key, renewAt: Date.now() + 3_600_000 };
  return {
    cookies: [
      {
        name,
        value,
        domain: hostname,
        path: "/",
        expires: -1,
        httpOnly: true,
        secure: false,
        sameSite: "Strict" as const,
      },
    ],
    origins: [{ origin, localStorage: [{ name: "atelier.session", value: JSON.stringify(kept) }] }],
  };
}

export class Tab {
  readonly page: Page;
  /** Errors that the test causes on purpose. */
  readonly allowed: RegExp[] = [];
  #context: BrowserContext;
  #errors: string[] = [];

  constructor(context: BrowserContext, page: Page) {
    this.#context = context;
    this.page = page;
    page.on("pageerror", (error) => this.#errors.push(`error: ${error.stack ?? error.message}`));
    page.on("console", (message) => {
      if (message.type() !== "error" && message.type() !== "warning") return;
      this.#errors.push(`${message.type()}: ${message.text()} (${message.location().url})`);
    });
    page.on("dialog", (dialog) => {
      this.#errors.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("request", (request) => {
      const { protocol, hostname } = new URL(request.url());
      if (protocol.startsWith("http") && hostname !== "127.0.0.1")
        this.#errors.push(`request to ${request.url()}`);
    });
  }

  /** Closes the tab; fails if the page reported an error. */
  async close(): Promise<void> {
    await this.#context.close();
    const unexpected = this.#errors.filter(
      (text) => !this.allowed.some((pattern) => pattern.test(text)),
    );
    assert.deepEqual(unexpected, [], "the page reported errors");
  }

  /** Navigates to another page of the console and waits until it is rendered. */
  goto(hash: string): Promise<void> {
    return this.page.evaluate(
      (to) =>
        new Promise<void>((resolve) => {
          if (location.hash === to) return resolve();
          // The console also listens to this event, and renders before the next task.
          addEventListener("hashchange", () => setTimeout(resolve), { once: true });
          location.hash = to;
        }),
      hash,
    );
  }

  /** Counts the page's requests by path while nobody uses the page. */
  async requestsWhileIdle(): Promise<Record<string, number>> {
    const counts: Record<string, number> = {};
    const count = (request: Request) => {
      const { pathname } = new URL(request.url());
      if (pathname !== "/health") counts[pathname] = (counts[pathname] ?? 0) + 1;
    };
    this.page.on("request", count);
    // A page that reloads in a loop would send at least as many requests as this.
    await this.page.evaluate(async () => {
      for (let round = 0; round < 30; round++) await fetch("/health");
    });
    this.page.off("request", count);
    return counts;
  }

  /** The 95th percentile of the frame time while an element is scrolled, in milliseconds. */
  async frameTime(selector: string, step: number): Promise<number> {
    const measure = () =>
      this.page.evaluate(
        async ([selector, step]) => {
          const box = document.querySelector(selector);
          if (!box) throw new Error(`no element matches ${selector}`);
          box.scrollTop = 0;
          const times: number[] = [];
          for (let frame = 0, last = performance.now(); frame < 100; frame++) {
            box.scrollTop += step;
            await new Promise(requestAnimationFrame);
            times.push(performance.now() - last);
            last = performance.now();
          }
          return times.sort((a, b) => a - b)[95] ?? Infinity;
        },
        [selector, step] as const,
      );
    // The best of three, because other programs share this computer.
    return Math.min(await measure(), await measure(), await measure());
  }

  /** For each visible element: whether a tap on its centre would reach it. */
  tappable(selector: string): Promise<{ text: string; hit: boolean }[]> {
    return this.page.evaluate(
      (selector) =>
        [...document.querySelectorAll(selector)]
          .filter((element) => element.getClientRects().length > 0)
          .map((element) => {
            const { left, top, width, height } = element.getBoundingClientRect();
            const reached = document.elementFromPoint(left + width / 2, top + height / 2);
            const inView = left >= 0 && left + width <= innerWidth;
            return {
              text: element.textContent?.trim() ?? "",
              hit: !!reached && element.contains(reached) && inView,
            };
          }),
      selector,
    );
  }

  /** The errors that the page shows: messages, failed tasks, plans and calls, and a lost connection. */
  errorsShown(): Promise<string[]> {
    return this.page.evaluate(() => {
      const marks = '[role="alert"], .error, .task > .line .failed, g.failed';
      const marked = [...document.querySelectorAll(marks)].map(
        (element) => element.textContent?.trim() || "failed",
      );
      const phrases =
        /something went wrong|could not|is not responding|connection to the server lost/i;
      const lines = document.body.innerText.split("\n").filter((line) => phrases.test(line));
      const pills = [...document.querySelectorAll(".call .pill")].map(
        (pill) => pill.textContent ?? "",
      );
      return [
        ...marked,
        ...lines,
        ...pills.filter((text) => /^(Failed|Outcome unknown)$/.test(text.trim())),
      ];
    });
  }

  /** Fails if axe finds a serious or critical accessibility problem. */
  async assertAccessible(where: string): Promise<void> {
    // Evaluated through the debugger, which the content security policy does not restrict.
    await this.page.evaluate(AXE);
    const found = await this.page.evaluate(async () => {
      const { axe } = globalThis as unknown as { axe: typeof import("axe-core") };
      const { violations } = await axe.run(document, { resultTypes: ["violations"] });
      return violations
        .filter(({ impact }) => impact === "serious" || impact === "critical")
        .map(({ id, impact, nodes }) => ({
          id,
          impact,
          nodes: nodes.map(({ html, failureSummary }) => `${html}\n${failureSummary}`),
        }));
    });
    assert.deepEqual(found, [], `accessibility problems: ${where}`);
  }
}
