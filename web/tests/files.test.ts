// Files of a conversation: upload, view, change, restore and download.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { PHONE } from "./harness/browser.ts";
import { browser, server } from "./harness/fixtures.ts";
import { ScriptedModel } from "./harness/model.ts";
import { Server } from "./harness/server.ts";

const DOT = Buffer.from(
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
  "base64",
);

/** A user with a conversation whose files the server stores. */
async function setUp(name: string) {
  const ann = server.user(name);
  const shop = await ann.project("report", { workspace: "conversation" });
  const conversation = await shop.conversation("figures");
  return { ann, shop, conversation };
}

const upload = (page: Page, ...files: [name: string, content: string | Buffer][]) =>
  page.locator("input[type=file]").setInputFiles(
    files.map(([name, content]) => ({
      name,
      mimeType: "text/plain",
      buffer: Buffer.from(content),
    })),
  );

/// FS-08, FS-09
test("a file is uploaded, viewed, changed, compared, restored, downloaded and deleted", async () => {
  const { ann, shop, conversation } = await setUp("ann");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${conversation.id}`);
  const { page } = tab;
  await page.getByText("No files yet").waitFor();
  await upload(
    page,
    ["notes.md", "# One\n"],
    ["sales.csv", 'month;"sold, all"\nMay;3\nJune;"4\n5"\n'],
    ["dot.png", DOT],
  );
  await page.getByText("3 files").waitFor();
  await page.getByRole("button", { name: /sales\.csv/ }).click();
  await page.getByRole("columnheader", { name: "sold, all" }).waitFor();
  await page.getByRole("cell", { name: "4 5" }).waitFor();
  await tab.assertAccessible("a table among files");
  await page.getByRole("button", { name: /dot\.png/ }).click();
  await page.waitForFunction(
    () => document.querySelector<HTMLImageElement>("main img")?.naturalWidth === 1,
  );

  await page.getByRole("button", { name: /notes\.md/ }).click();
  await page.getByText("# One").waitFor();
  await upload(page, ["notes.md", "# Two\n"]);
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
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    versions.getByRole("button", { name: "Download" }).first().click(),
  ]);
  assert.equal(download.suggestedFilename(), "notes.md");
  assert.equal(readFileSync(await download.path(), "utf8"), "# One\n");

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

test("source code, text that is not UTF-8 and PDF have a preview; a file can be uploaded again by dropping it", async () => {
  const { ann, shop, conversation } = await setUp("dora");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${conversation.id}`);
  const { page } = tab;
  await page.getByText("No files yet").waitFor();
  await upload(
    page,
    ["app.ts", "export const one = 1;\n"],
    ["q.sql", "select 1;\n"],
    ["old.txt", Buffer.from("caf\u00e9\n", "latin1")],
    ["x.bin", Buffer.from([0, 1, 2])],
    ["a.pdf", PDF],
  );
  await page.getByText("5 files").waitFor();
  for (const [name, text] of [
    ["app.ts", "export const one"],
    ["q.sql", "select 1;"],
    ["old.txt", "café"],
  ] as const) {
    await page.getByRole("button", { name }).click();
    await page.getByRole("region", { name: "File" }).getByText(text).first().waitFor();
  }
  await page.getByText("This file is not UTF-8").waitFor();
  await page.getByRole("button", { name: "x.bin" }).click();
  await page.getByText("No preview for this file type").waitFor();
  await page.getByRole("button", { name: "a.pdf" }).click();
  await page.locator("iframe[title='a.pdf']").waitFor();

  // The file field is cleared, so that choosing the same file again counts as a change.
  assert.equal(await page.locator("input[type=file]").inputValue(), "");
  await page.getByRole("button", { name: "q.sql" }).click();
  const dataTransfer = await page.evaluateHandle(() => {
    const data = new DataTransfer();
    data.items.add(new File(["select 2;\n"], "q.sql"));
    return data;
  });
  await page.locator(".panes").dispatchEvent("drop", { dataTransfer });
  await page.getByRole("region", { name: "File" }).getByText("select 2;").first().waitFor();
  await tab.close();
});

test("a second browser, on a phone, shows a new file without a reload", async () => {
  const { ann, shop, conversation } = await setUp("bob");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${conversation.id}`);
  const phone = await browser.open(ann, `#/projects/${shop.id}/files/${conversation.id}`, {
    size: PHONE,
  });
  await phone.page.getByText("No files yet").waitFor();
  await upload(tab.page, ["a.txt", "a\n"]);
  await phone.page.getByRole("button", { name: /a\.txt/ }).click();
  await phone.page.getByRole("region", { name: "Versions" }).waitFor();
  assert.equal(await phone.page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await phone.assertAccessible("a file on a phone");
  await phone.close();
  await tab.close();
});

/// FS-06
test("a file that an agent presents is shown in the chat and marked among the files", async (t) => {
  const present = { paths: ["report.txt"], description: "Sales of the quarter" };
  const model = await ScriptedModel.start([
    {
      calls: [
        { tool: "write_file", params: { path: "report.txt", content: "May: 3\n" } },
        { tool: "write_file", params: { path: "draft.txt", content: "not for the user\n" } },
      ],
    },
    { calls: [{ tool: "present_files", params: present }] },
    { text: "The report is ready." },
  ]);
  t.after(() => model.stop());
  const server = await Server.start(model.settings);
  t.after(() => server.stop());
  const ann = server.user("ann");
  const project = await ann.project("report", { workspace: "conversation" });
  const conversation = await project.conversation("figures");

  const tab = await browser.open(ann, `#/projects/${project.id}/chat/${conversation.id}`);
  const { page } = tab;
  await page.getByText("What should the agents do?").waitFor();
  const presented = page.getByRole("region", { name: "Presented files" });
  assert.equal(await presented.count(), 0);
  const message = { content: "write the report", target_agent: "agent_writer" };
  await project.send(conversation.id, message);
  // The page shows the file without a reload, and only the presented one.
  await page.getByText("The report is ready.").waitFor();
  await presented.getByRole("button", { name: /report\.txt/ }).waitFor();
  assert.equal(await presented.getByRole("button").count(), 1);
  await tab.assertAccessible("a presented file");
  const download = page.waitForEvent("download");
  await presented.getByRole("button", { name: /report\.txt/ }).click();
  assert.equal(readFileSync(await (await download).path(), "utf8"), "May: 3\n");

  await presented.getByRole("link", { name: "Presented files" }).click();
  await page.getByRole("button", { name: /report\.txt Presented/ }).click();
  await page.getByRole("region", { name: "File" }).getByText("Sales of the quarter").waitFor();
  await page.getByRole("button", { name: /draft\.txt/ }).waitFor();
  assert.equal(await page.getByRole("button", { name: /draft\.txt Presented/ }).count(), 0);
  await tab.close();
});

const EVIL = `<img src=x onerror="document.title='owned'">`;

test("names and contents of files are never run as HTML", async () => {
  const { ann, shop, conversation } = await setUp("eve");
  const tab = await browser.open(ann, `#/projects/${shop.id}/files/${conversation.id}`);
  const { page } = tab;
  await upload(
    page,
    [`${EVIL}.html`, EVIL],
    [
      "x.svg",
      `<svg xmlns="http://www.w3.org/2000/svg" onload="document.title='owned'"><script>document.title='owned'</script></svg>`,
    ],
  );
  await page.getByText("2 files").waitFor();
  for (const name of [/onerror/, /x\.svg/]) {
    await page.getByRole("button", { name }).click();
    await page.getByRole("region", { name: "Versions" }).waitFor();
    await page.waitForFunction(
      () =>
        document.querySelector("main section pre") ||
        document.querySelector<HTMLImageElement>("main img")?.complete,
    );
  }
  assert.doesNotMatch(await page.title(), /owned/);
  assert.equal(await page.locator("main img:not([src^='blob:']), main iframe").count(), 0);
  await tab.close();
});

test("ten thousand files scroll smoothly", async () => {
  const { ann, shop, conversation } = await setUp("cleo");
  const { tenant } = await ann.request<{ tenant: string }>("GET", "/auth/me");
  const path = `/api/tenants/${tenant}/workspace/${conversation.id}`;
  // The list is tested, not the server, so the response is made up.
  const tab = await browser.open(ann, `#/projects/${shop.id}`);
  const { page } = tab;
  const many = Array.from({ length: 10_000 }, (_, n) => ({
    file_id: `00000000-0000-7000-8000-${String(n).padStart(12, "0")}`,
    conversation_id: conversation.id,
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
  await page.route(`**${path}`, (route) =>
    route.fulfill({
      json: {
        conversation_id: conversation.id,
        workspace_enabled: true,
        workspace_path: null,
        file_count: many.length,
        total_size: 1,
        files: many,
      },
    }),
  );
  await tab.goto(`#/projects/${shop.id}/files/${conversation.id}`);
  await page.getByText("10,000 files").waitFor();
  assert.ok((await page.locator(".tree li").count()) < 100);
  const frameTime = await tab.frameTime(".tree .box", 3_000);
  console.log(`scrolling 10,000 files: 95 % of frames within ${frameTime.toFixed(1)} ms`);
  assert.ok(frameTime < 250, `${frameTime} ms per frame`);
  await tab.close();
});
