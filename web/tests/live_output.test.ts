// What a command prints, under its call while it runs.

import assert from "node:assert/strict";
import { test } from "node:test";
import { browser, server } from "./harness/fixtures.ts";
import { ConnectedFolder } from "./harness/server.ts";

/// LO-01
test("the chat shows what a command prints while it runs", async (t) => {
  const ann = server.user("ann");
  const shop = await ann.project("shop");
  const program =
    "import os, time\nprint('begun', flush=True)\n" +
    "while not os.path.exists('go'):\n    time.sleep(0.05)\nprint('ended')\n";
  const folder = await ConnectedFolder.connect(shop, { "wait.py": program });
  t.after(() => folder.disconnect());
  const { id: conversation } = await shop.conversation("wait");
  const tab = await browser.open(ann, `#/projects/${shop.id}/chat/${conversation}`);
  const { page } = tab;
  await shop.send(conversation, { content: "run python3 wait.py", target_agent: "coder" });
  await page.getByRole("button", { name: "Approve" }).click();
  const output = page.getByLabel("Output so far");
  await output.waitFor();
  assert.equal((await output.innerText()).trim(), "begun");
  await tab.assertAccessible("live output");
  folder.write("go", "");
  await output.waitFor({ state: "detached" });
  await page.getByText("Done").first().waitFor();
  await tab.close();
});
