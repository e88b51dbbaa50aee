// Signing in by one-time link, token and identity provider, and signing out.

import assert from "node:assert/strict";
import { createHash, generateKeyPairSync, randomUUID, sign } from "node:crypto";
import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Server } from "./harness/server.ts";
import { browser, server } from "./harness/fixtures.ts";

test("the printed link signs in once and is removed from the address", async () => {
  const link = /\S+#sign-in=\S+/.exec(server.output)?.[0];
  assert.ok(link, server.output);
  const owner = server.user("owner");
  const tab = await browser.open(owner, new URL(link).hash, { signedIn: false });
  await tab.page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  assert.ok(!tab.page.url().includes("sign-in"));

  const late = await browser.open(owner, new URL(link).hash, { signedIn: false });
  late.allowed.push(/401|400|403|404/);
  await late.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await late.assertAccessible("the sign-in page");
  await late.close();
  await tab.close();
});

test("a pasted token survives a reload and is revoked by signing out", async () => {
  const user = server.user("ann");
  const tab = await browser.open(user, "", { signedIn: false });
  const { page } = tab;
  await page.getByLabel("Sign-in link, code or token").fill(user.token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "Home", exact: true }).waitFor();
  assert.deepEqual(
    await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("token"))),
    [],
  );
  assert.equal(await page.evaluate(() => document.cookie), "");

  await page.getByRole("button", { name: "Account and settings" }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByText("You are signed out.").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.getItem("atelier.token")), null);
  // The server has revoked the token.
  await assert.rejects(user.request("GET", "/auth/me"), /401/);
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
  assert.equal(await rows.filter({ hasText: "This tab" }).count(), 1);
  await rows
    .filter({ hasNotText: "This tab" })
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
    const token = sessionStorage.getItem("atelier.token");
    const response = await fetch("/auth/me", { headers: { authorization: `Bearer ${token}` } });
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
