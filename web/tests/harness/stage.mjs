// One server and one browser for all tests of a file. Both are there when it is imported: hooks of a file and of what it
// imports run beside each other.

import { after } from "node:test";
import { Browser } from "./browser.mjs";
import { Server } from "./server.mjs";

export const server = await Server.start();
export const browser = await Browser.start();

after(async () => {
  await browser.stop();
  await server.stop();
});
