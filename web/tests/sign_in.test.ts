// Signing in by one-time link, token and identity provider, and signing out.

import assert from "node:assert/strict";
import { createHash, generateKeyPairSync, randomUUID, sign } from "node:crypto";
import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { PHONE } from "./harness/browser.ts";
import { Server } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";

/// SI-02
test("the printed link asks, signs in once and is removed from the address", async () => {
  const link = /\S+#sign-in=\S+/.exec(server.output)?.[0];
  assert.ok(link, server.output);
  const owner = server.user("owner");
  // Somebody else may have sent the link, and previews of links open them, too.
  const tab = await browser.open(owner, new URL(link).hash, { signedIn: false });
  await tab.page.getByRole("heading", { name: "Sign in with this link?" }).waitFor();
  await tab.assertAccessible("the question about a link");
  assert.ok(!tab.page.url().includes("sign-in"));
  await tab.page.getByRole("button", { name: "Do not use the link" }).click();
  await tab.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();

  // A browser that is signed in already stays so unless its user wants the link.
  const ann = server.user("ann");
  const other = await browser.open(ann, new URL(link).hash);
  await other.page.getByText("This browser is signed in already").waitFor();
  await other.page.getByRole("button", { name: "Do not use the link" }).click();
  await other.page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  await other.close();

  await tab.page.goto(link);
  await tab.page.reload();
  await tab.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await tab.goto(new URL(link).hash);
  await tab.page.getByRole("button", { name: "Sign in" }).click();
  await tab.page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  assert.ok(!tab.page.url().includes("sign-in"));

  const late = await browser.open(owner, new URL(link).hash, { signedIn: false });
  late.allowed.push(/401|400|403|404/);
  await late.page.getByRole("button", { name: "Sign in" }).click();
  await late.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await late.assertAccessible("the sign-in page");
  await late.close();
  await tab.close();
});

/// SI-01
test("a pasted token signs in all tabs of the browser until it signs out", async () => {
  const user = server.user("ann");
  const tab = await browser.open(user, "", { signedIn: false });
  const { page } = tab;
  await page.getByLabel("Sign-in link, code or token").fill(user.token);
  await page.getByRole("button", { name: "Sign in" }).click();
  const home = { name: "Home", exact: true };
  await page.getByRole("heading", home).waitFor();
  await page.reload();
  await page.getByRole("heading", home).waitFor();
  // No script can read what signs in.
  assert.equal(await page.evaluate(() => document.cookie), "");
  const stored = await page.evaluate(() =>
    JSON.stringify([{ ...localStorage }, { ...sessionStorage }]),
  );
  assert.ok(!stored.includes(user.token) && !/[\w-]+\.[\w-]+\.[\w-]+/.test(stored), stored);

  const second = await page.context().newPage();
  await second.goto(server.url);
  await second.getByRole("heading", home).waitFor();

  await page.getByRole("button", { name: "Account and settings" }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByText("You are signed out.").waitFor();
  await second.getByText("You are signed out.").waitFor();
  assert.equal(await page.evaluate(() => localStorage.getItem("atelier.session")), null);
  assert.deepEqual(await page.context().cookies(), []);
  // The server has ended the session.
  await assert.rejects(user.request("GET", "/auth/me"), /401/);

  // A tab that waits at the sign-in page follows the one that signs in.
  await page.getByLabel("Sign-in link, code or token").fill(server.user("ann").token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", home).waitFor();
  await second.getByRole("heading", home).waitFor();
  await tab.close();
});

/// SI-01
test("a browser that is used renews its session", async (t) => {
  const short = await Server.start({ ATELIER_AUTH__BROWSER_TTL: "20s" });
  t.after(() => short.stop());
  const link = /\S+(#sign-in=\S+)/.exec(short.output)?.[1] ?? "";
  const tab = await browser.open({ server: short, token: "" }, link, { signedIn: false });
  const { page } = tab;
  const renewal = page.waitForResponse(
    (it) => it.request().method() === "PUT" && it.url().endsWith("/auth/session"),
  );
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  const [before] = await page.context().cookies();
  assert.equal((await renewal).status(), 200);
  const [after] = await page.context().cookies();
  assert.ok(before && after && after.expires > before.expires && after.value !== before.value);
  await page.reload();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  await tab.close();
});

/// SI-03
test("a link from the account page signs a phone in once", async () => {
  const user = server.user("tom");
  const tab = await browser.open(user, "#/account");
  const { page } = tab;
  await page.getByRole("button", { name: "Show a link" }).click();
  await page.getByRole("img", { name: "QR code of the link" }).waitFor();
  await page.getByText("This server can be reached from this computer only.").waitFor();
  await tab.assertAccessible("a link for another device");
  const link = await page.locator("code", { hasText: "#sign-in=" }).innerText();
  assert.ok(link.startsWith(`${server.url}/#sign-in=`), link);

  const phone = await browser.open(user, new URL(link).hash, { signedIn: false, size: PHONE });
  await phone.page.getByRole("button", { name: "Sign in" }).click();
  await phone.page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  // Going back does not find the code, and the code is used up.
  await phone.page.goBack();
  assert.ok(!phone.page.url().includes("sign-in"));
  const again = await browser.open(user, new URL(link).hash, { signedIn: false, size: PHONE });
  again.allowed.push(/401/);
  await again.page.getByRole("button", { name: "Sign in" }).click();
  await again.page.getByText("The server reported").waitFor();
  await again.close();
  await phone.close();
  await tab.close();
});

/// SI-02
test("another port of the same host gets nothing from the sign-in", async (t) => {
  const user = server.user("kim");
  const tab = await browser.open(user);
  const { page } = tab;
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  const seen: (string | undefined)[] = [];
  const foreign = createServer((request, response) => {
    seen.push(request.headers.cookie);
    response.writeHead(200, { "content-type": "text/html" }).end("<title>other</title>");
  });
  await new Promise<void>((resolve) => foreign.listen(0, "127.0.0.1", resolve));
  t.after(() => foreign.close());
  const other = await page.context().newPage();
  // As in the harness: the test loader names functions with this helper.
  await other.addInitScript("globalThis.__name = (value) => value");
  await other.goto(`http://127.0.0.1:${(foreign.address() as AddressInfo).port}/`);
  // The browser has sent the cookie to that port: it must be worth nothing there.
  const cookie = seen[0] ?? "";
  assert.match(cookie, /^atelier-/);
  const direct = await fetch(`${server.url}/auth/me`, { headers: { cookie } });
  assert.equal(direct.status, 401);
  const answers = await other.evaluate(async (url) => {
    const send = (path: string, init: RequestInit) =>
      fetch(url + path, { credentials: "include", mode: "no-cors", ...init }).then(() => "sent");
    return [
      localStorage.length,
      await send("/auth/session", { method: "POST", body: "{}" }),
      await send("/my/projects", { method: "POST", body: JSON.stringify({ name: "stolen" }) }),
      await fetch(`${url}/auth/me`, { credentials: "include" }).catch(() => "refused"),
    ];
  }, server.url);
  assert.deepEqual(answers, [0, "sent", "sent", "refused"]);
  const { total } = await user.request<{ total: number }>("GET", "/my/projects");
  assert.equal(total, 0);
  await other.close();
  await page.reload();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  await tab.close();
});

test("sessions are listed, ended one by one, and all at once", async () => {
  const [user, other, third] = [server.user("eva"), server.user("eva"), server.user("eva")];
  await other.request("GET", "/auth/me");
  await third.request("GET", "/auth/me");
  const tab = await browser.open(user, "#/account");
  const { page } = tab;
  const rows = page.getByRole("listitem").filter({ hasText: "Last used" });
  await rows.nth(2).waitFor();
  assert.equal(await rows.filter({ hasText: "This browser" }).count(), 1);
  await rows
    .filter({ hasNotText: "This browser" })
    .first()
    .getByRole("button", { name: "End" })
    .click();
  await page.getByText("The session has ended.").waitFor();
  await rows.nth(2).waitFor({ state: "detached" });

  await page.getByRole("button", { name: "Sign out everywhere" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Sign out everywhere" }).click();
  await page.getByText("You are signed out.").waitFor();
  for (const ended of [user, other, third])
    await assert.rejects(ended.request("GET", "/auth/me"), /401/);
  await tab.close();
});

test("requests under way are aborted at sign-out", async () => {
  const user = server.user("lea");
  const tab = await browser.open(user);
  const { page } = tab;
  let continueRequest = () => {};
  const signedOut = new Promise<void>((resolve) => (continueRequest = resolve));
  const held = page.waitForRequest(/\/my\/projects\?/);
  await page.route(/\/my\/projects\?/, async (route) => {
    await signedOut;
    await route.continue().catch(() => {});
  });
  await page.reload();
  await held;
  await page.getByRole("button", { name: "Account and settings" }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByText("You are signed out.").waitFor();
  continueRequest();
  await page.unrouteAll({ behavior: "wait" });
  await tab.requestsWhileIdle();
  await tab.close();
});

test("a gateway error does not sign the user out", async () => {
  const user = server.user("bob");
  const tab = await browser.open(user);
  tab.allowed.push(/502/);
  const { page } = tab;
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  await page.route("**/auth/me", (route) => route.fulfill({ status: 502, body: "Bad Gateway" }));
  await page.reload();
  await page.getByText("The server is not responding.").waitFor();
  await page.unroute("**/auth/me");
  await page.getByRole("button", { name: "Try again" }).click();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  await tab.close();
});

/** An identity provider that signs everyone in as the same user and requires PKCE. */
async function startProvider(user: string) {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const folder = mkdtempSync(join(tmpdir(), "atelier-provider-"));
  writeFileSync(
    join(folder, "keys.json"),
    JSON.stringify({
      keys: [{ ...publicKey.export({ format: "jwk" }), kid: "k", use: "sig", alg: "EdDSA" }],
    }),
  );
  const encode = (value: object) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const token = () => {
    const claims = {
      sub: user,
      iss: "atelier",
      aud: "atelier",
      exp: Math.floor(Date.now() / 1000) + 600,
    };
    const text = `${encode({ alg: "EdDSA", kid: "k" })}.${encode(claims)}`;
    return `${text}.${sign(null, Buffer.from(text), privateKey).toString("base64url")}`;
  };
  let challenge: string | null = null;
  const provider = createServer(async (request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? "", "http://127.0.0.1");
    if (pathname === "/authorize") {
      challenge = searchParams.get("code_challenge");
      const redirect = new URL(searchParams.get("redirect_uri") ?? "");
      redirect.search = new URLSearchParams({
        code: "abc",
        state: searchParams.get("state") ?? "",
      }).toString();
      response.writeHead(302, { location: redirect.href }).end();
    } else {
      const form = new URLSearchParams(
        Buffer.concat((await request.toArray()) as Buffer[]).toString(),
      );
      const proven =
        createHash("sha256")
          .update(form.get("code_verifier") ?? "")
          .digest("base64url") === challenge;
      response.writeHead(proven && form.get("code") === "abc" ? 200 : 400, {
        "content-type": "application/json",
      });
      response.end(JSON.stringify({ id_token: token() }));
    }
  });
  await new Promise<void>((resolve) => provider.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${(provider.address() as AddressInfo).port}`;
  return {
    settings: {
      ATELIER_AUTH__JWKS: join(folder, "keys.json"),
      ATELIER_AUTH__SIGN_IN__AUTHORIZATION_ENDPOINT: `${address}/authorize`,
      ATELIER_AUTH__SIGN_IN__TOKEN_ENDPOINT: `${address}/token`,
      ATELIER_AUTH__SIGN_IN__CLIENT_ID: "console",
    },
    stop: () => provider.close(),
  };
}

test("the identity provider signs in, and only the tab that started it", async (t) => {
  const user = randomUUID();
  const provider = await startProvider(user);
  t.after(() => provider.stop());
  const ssoServer = await Server.start(provider.settings);
  t.after(() => ssoServer.stop());
  const tab = await browser.open({ server: ssoServer, token: "" }, "", { signedIn: false });
  const { page } = tab;
  await page.getByRole("button", { name: "Sign in with your organisation" }).click();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  assert.ok(!page.url().includes("code="), page.url());
  const me = await page.evaluate(async () => {
    const { key } = JSON.parse(localStorage.getItem("atelier.session") ?? "") as { key: string };
    const response = await fetch("/auth/me", { headers: { "atelier-session": key } });
    return (await response.json()) as { user_id: string };
  });
  assert.equal(me.user_id, user);

  // A code that this tab did not request is ignored.
  const other = await browser.open({ server: ssoServer, token: "" }, "?code=abc&state=made-up", {
    signedIn: false,
  });
  await other.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await other.close();
  await tab.close();
});
