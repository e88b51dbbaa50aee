// One server and one browser for all tests of a file. Both are started while this module is imported, because the
// `before` hooks of several modules would run in parallel.

import { after } from "node:test";
import { Browser } from "./browser.ts";
import { Server } from "./server.ts";

export const server = await Server.start();
export const browser = await Browser.start();

after(async () => {
  await browser.stop();
  await server.stop();
});
