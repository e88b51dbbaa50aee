// The way in: one-time link, pasted token, and out again.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Browser } from "./harness/browser.mjs";
import { Server } from "./harness/server.mjs";

let server, browser;
before(async () => {
  server = await Server.start();
  browser = await Browser.start();
});
after(async () => {
  await browser?.stop();
  await server?.stop();
});

test("the printed link signs in once and leaves no trace in the address", async () => {
  const link = /\S+#sign-in=\S+/.exec(server.output)?.[0];
  assert.ok(link, server.output);
  const somebody = server.person("owner");
  const tab = await browser.open(somebody, new URL(link).hash, { signedIn: false });
  await tab.page.getByRole("heading", { name: "Projects", exact: true }).waitFor();
  assert.ok(!tab.page.url().includes("sign-in"));

  const late = await browser.open(somebody, new URL(link).hash, { signedIn: false });
  late.allowed.push(/401|400|403|404/);
  await late.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await late.assertAccessible("the sign-in page");
  await late.close();
  await tab.close();
});

test("a pasted token signs in, lasts over a reload, and is gone after signing out", async () => {
  const person = server.person("ann");
  const tab = await browser.open(person, "", { signedIn: false });
  const { page } = tab;
  await page.getByLabel("Sign-in link, code or token").fill(person.token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Projects", exact: true }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "Projects", exact: true }).waitFor();
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("token"))), []);
  assert.equal(await page.evaluate(() => document.cookie), "");

  await page.getByRole("button", { name: "Account and settings" }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByText("You are signed out.").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.getItem("atelier.token")), null);
  // The server, too, has let go of it.
  await assert.rejects(person.ask("GET", "/auth/me"), /401/);
  await tab.close();
});
