// One server and one browser for all tests of a file.

import { after, before } from "node:test";
import { Browser } from "./browser.mjs";
import { Server } from "./server.mjs";

export let server, browser;

before(async () => {
  server = await Server.start();
  browser = await Browser.start();
});

after(async () => {
  await browser?.stop();
  await server?.stop();
});
