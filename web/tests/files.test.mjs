// Files of a conversation: bring, see, change, go back, take away.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { PHONE } from "./harness/browser.mjs";
import { browser, server } from "./harness/stage.mjs";

const DOT = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");

async function desk(name) {
  const ann = server.person(name);
  const shop = await ann.project("report", { workspace: "conversation" });
  const talk = await ann.ask("POST", `${shop.path}/chat/sessions`, { title: "figures" });
  return { ann, shop, talk };
}

const bring = (page, ...files) =>
  page.locator("input[type=file]").setInputFiles(files.map(([name, text]) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) })));

/// FS-08, FS-09
test("upload, see, change, compare, restore, download, delete", async () => {
  const { ann, shop, talk } = await desk("ann");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${talk.id}`);
  const { page } = tab;
  await page.getByText("No files yet").waitFor();
  await bring(page, ["notes.md", "# One\n"], ["sales.csv", 'month;"sold, all"\nMay;3\nJune;"4\n5"\n'], ["dot.png", DOT]);
  await page.getByText("3 files").waitFor();
  await page.getByRole("button", { name: /sales\.csv/ }).click();
  await page.getByRole("columnheader", { name: "sold, all" }).waitFor();
  await page.getByRole("cell", { name: "4 5" }).waitFor();
  await tab.assertAccessible("a table among files");
  await page.getByRole("button", { name: /dot\.png/ }).click();
  await page.waitForFunction(() => document.querySelector("main img")?.naturalWidth === 1);

  await page.getByRole("button", { name: /notes\.md/ }).click();
  await page.getByText("# One").waitFor();
  await bring(page, ["notes.md", "# Two\n"]);
  await page.getByText("# Two").waitFor();
  const versions = page.getByRole("region", { name: "Versions" });
  await versions.getByText("v2").waitFor();
  await versions.getByRole("button", { name: "Compare" }).click();
  assert.equal(await page.locator("tr.old .text").innerText(), "# One");
  assert.equal(await page.locator("tr.new .text").innerText(), "# Two");
  await tab.assertAccessible("versions of a file");
  await versions.getByRole("button", { name: "Restore" }).click();
  await versions.getByText("v3").waitFor();
  await page.getByText("# One").first().waitFor();
  const [taken] = await Promise.all([page.waitForEvent("download"), versions.getByRole("button", { name: "Download" }).first().click()]);
  assert.equal(taken.suggestedFilename(), "notes.md");
  assert.equal(readFileSync(await taken.path(), "utf8"), "# One\n");

  await page.reload();
  await page.getByText("3 files").waitFor();
  await page.getByRole("button", { name: /notes\.md/ }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("2 files").waitFor();
  await tab.close();
});

const PDF = `%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj
trailer<</Root 1 0 R>>
`;

test("source code, older text and PDF have a preview; a file is brought again, and by dropping it", async () => {
  const { ann, shop, talk } = await desk("dora");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${talk.id}`);
  const { page } = tab;
  await page.getByText("No files yet").waitFor();
  await bring(page, ["app.ts", "export const one = 1;\n"], ["q.sql", "select 1;\n"], ["old.txt", Buffer.from("caf\u00e9\n", "latin1")], ["x.bin", Buffer.from([0, 1, 2])], ["a.pdf", PDF]);
  await page.getByText("5 files").waitFor();
  for (const [name, text] of [["app.ts", "export const one"], ["q.sql", "select 1;"], ["old.txt", "café"]]) {
    await page.getByRole("button", { name }).click();
    await page.getByRole("region", { name: "File" }).getByText(text).first().waitFor();
  }
  await page.getByText("This is not UTF-8").waitFor();
  await page.getByRole("button", { name: "x.bin" }).click();
  await page.getByText("No preview for this kind of file").waitFor();
  await page.getByRole("button", { name: "a.pdf" }).click();
  await page.locator("iframe[title='a.pdf']").waitFor();

  // The field forgets what it gave, so the same name is a change again.
  assert.equal(await page.locator("input[type=file]").inputValue(), "");
  await page.getByRole("button", { name: "q.sql" }).click();
  const drop = await page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["select 2;\n"], "q.sql"));
    return data;
  });
  await page.locator(".files").dispatchEvent("drop", { dataTransfer: drop });
  await page.getByRole("region", { name: "File" }).getByText("select 2;").first().waitFor();
  await tab.close();
});

test("a second browser sees a new file at once, also on a phone; what is refused says why", async () => {
  const { ann, shop, talk } = await desk("bob");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${talk.id}`);
  const phone = await browser.open(ann, `#/projects/${shop.id}/files/${talk.id}`, { size: PHONE });
  await phone.page.getByText("No files yet").waitFor();
  await bring(tab.page, ["a.txt", "a\n"]);
  await phone.page.getByRole("button", { name: /a\.txt/ }).click();
  await phone.page.getByRole("region", { name: "Versions" }).waitFor();
  assert.equal(await phone.page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await phone.assertAccessible("a file on a phone");
  await phone.close();
  await tab.close();
});

const EVIL = `<img src=x onerror="document.title='owned'">`;

test("names and contents are shown, not run", async () => {
  const { ann, shop, talk } = await desk("eve");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${talk.id}`);
  const { page } = tab;
  await bring(page, [`${EVIL}.html`, EVIL], ["x.svg", `<svg xmlns="http://www.w3.org/2000/svg" onload="document.title='owned'"><script>document.title='owned'</script></svg>`]);
  await page.getByText("2 files").waitFor();
  for (const name of [/onerror/, /x\.svg/]) {
    await page.getByRole("button", { name }).click();
    await page.getByRole("region", { name: "Versions" }).waitFor();
    await page.waitForFunction(() => document.querySelector("main section pre") || document.querySelector("main img")?.complete);
  }
  assert.doesNotMatch(await page.title(), /owned/);
  assert.equal(await page.locator("main img:not([src^='blob:']), main iframe").count(), 0);
  await tab.close();
});

test("ten thousand files scroll smoothly", async () => {
  const { ann, shop, talk } = await desk("cleo");
  const { tenant } = await ann.ask("GET", "/auth/me");
  const place = `/api/tenants/${tenant}/workspace/${talk.id}`;
  // The list is what is tested here, not the store: one page of it, as the server would give it.
  const tab = await browser.open(ann, `#/projects/${shop.id}`);
  const { page } = tab;
  const many = Array.from({ length: 10_000 }, (_, n) => ({
    file_id: `00000000-0000-7000-8000-${String(n).padStart(12, "0")}`,
    conversation_id: talk.id,
    file_path: `folder ${n % 100}/file ${n}.txt`,
    original_name: "x",
    description: null,
    file_size: n,
    mime_type: "text/plain",
    version: 1,
    source: "user_upload",
    is_presented: false,
    checksum: "0",
    status: "active",
    created_at: "2026-01-01T00:00:00Z",
    updated_at: "2026-01-01T00:00:00Z",
  }));
  await page.route(`**${place}`, (route) =>
    route.fulfill({ json: { conversation_id: talk.id, workspace_enabled: true, workspace_path: null, file_count: many.length, total_size: 1, files: many } }),
  );
  await tab.go(`#/projects/${shop.id}/files/${talk.id}`);
  await page.getByText("10,000 files").waitFor();
  assert.ok((await page.locator(".tree li").count()) < 100);
  const slow = await tab.frameTime(".tree .box", 3_000);
  console.log(`scrolling 10,000 files: 95 % of frames within ${slow.toFixed(1)} ms`);
  assert.ok(slow < 250, `${slow} ms a frame`);
  await tab.close();
});
