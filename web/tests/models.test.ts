// The page Models: from no key to an answer, and what is shown wherever an agent is.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { DESKTOP, PHONE } from "./harness/browser.ts";
import { browser } from "./harness/fixtures.ts";
import { ConnectedFolder, Server } from "./harness/server.ts";

const KEY = "sk-ant-0123456789abcdef";

/** A server that speaks Anthropic's API: it lists models, refuses other keys, and writes a file. */
async function anthropic() {
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (chunk) => (body += chunk));
    request.on("end", () => {
      if (request.headers["x-api-key"] !== KEY) {
        response.writeHead(401, { "content-type": "application/json" });
        response.end('{"type": "error", "error": {"message": "invalid x-api-key"}}');
        return;
      }
      if (request.method === "GET") {
        response.writeHead(200, { "content-type": "application/json" });
        response.end('{"data": [{"id": "claude-sonnet-4-5"}, {"id": "claude-new"}]}');
        return;
      }
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.end(events(body));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1` };
}

function events(body: string): string {
  const event = (data: { type: string }) =>
    `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`;
  const calls = !body.includes("tool_result") && body.includes('"tools"');
  const block = calls
    ? { type: "tool_use", id: "toolu_1", name: "write_file", input: {} }
    : { type: "text", text: "" };
  const delta = calls
    ? { type: "input_json_delta", partial_json: '{"path": "new.txt", "content": "hello"}' }
    : { type: "text_delta", text: "I wrote it." };
  const all: { type: string }[] = [
    { type: "message_start", message: { usage: { input_tokens: 3 } } },
    { type: "content_block_start", index: 0, content_block: block },
    { type: "content_block_delta", index: 0, delta },
    { type: "content_block_stop", index: 0 },
    {
      type: "message_delta",
      delta: { stop_reason: calls ? "tool_use" : "end_turn" },
      usage: { output_tokens: 2 },
    },
    { type: "message_stop" },
  ] as { type: string }[];
  return all.map(event).join("");
}

for (const [device, size] of [
  ["desktop", DESKTOP],
  ["phone", PHONE],
] as const) {
  test(`a newcomer with only an Anthropic key gets to a changed file (${device})`, async (t) => {
    const provider = await anthropic();
    t.after(() => provider.server.close());
    const server = await Server.start({ ATELIER_PROVIDERS__ANTHROPIC__BASE_URL: provider.url });
    t.after(() => server.stop());
    const ann = server.user("ann");
    const shop = await ann.project("shop");
    const folder = await ConnectedFolder.connect(shop, {});
    t.after(() => folder.disconnect());
    const tab = await browser.open(ann, `#/projects/${shop.id}`, { size });
    const { page } = tab;

    // Without a key, a banner says so and leads to the page.
    await page.getByText("Only the built-in demo model answers").waitFor();
    await page.getByRole("link", { name: "Enter a key" }).click();
    await page.getByRole("heading", { name: "Models", level: 1 }).waitFor();
    await tab.assertAccessible("models without a key");
    await page.getByRole("button", { name: "Enter a key: Anthropic" }).click();
    await page.getByLabel("Key", { exact: true }).fill("sk-wrong-0123456789");
    await page.getByRole("button", { name: "Test", exact: true }).first().click();
    await page.getByText("anthropic rejected its key: enter a valid one").waitFor();
    await page.getByLabel("Key", { exact: true }).fill(KEY);
    await page.getByText("anthropic rejected its key").waitFor({ state: "hidden" });
    await page.getByRole("button", { name: "Test", exact: true }).first().click();
    await page.getByText(/It works: anthropic\/claude-sonnet-4-5 answered/).waitFor();
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByText("Anthropic saved.").waitFor();
    await page.getByText("Your key", { exact: true }).waitFor();
    assert.match(await page.locator("strong.answer").innerText(), /anthropic\/claude-sonnet-4-5/);
    await tab.assertAccessible("models with a key");
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), size.width);

    // The agents say what answers for them, and the work is done by it.
    await tab.goto(`#/projects/${shop.id}`);
    await page.getByText("anthropic/claude-sonnet-4-5").first().waitFor();
    assert.equal(await page.getByText("Only the built-in demo model answers").count(), 0);
    const conversation = await shop.conversation("a change");
    await shop.send(conversation.id, { content: "write it", target_agent: "agent_coder" });
    await tab.goto("#/");
    const waits = page.getByRole("list", { name: "Waiting for you" });
    await waits.getByRole("link", { name: /new\.txt/ }).click();
    await page.getByRole("button", { name: "Approve" }).first().click();
    await tab.goto(`#/projects/${shop.id}/chat/${conversation.id}`);
    await page.getByText("I wrote it.").first().waitFor();
    assert.equal(folder.read("new.txt"), "hello");
    await tab.close();
  });
}

test("the page of models in three languages, dark and light", async (t) => {
  const server = await Server.start({});
  t.after(() => server.stop());
  const ann = server.user("ann");
  for (const [locale, title] of [
    ["ru-RU", "Модели"],
    ["ja-JP", "モデル"],
  ] as const) {
    const tab = await browser.open(ann, "#/models", { locale, scheme: "dark", size: PHONE });
    await tab.page.getByRole("heading", { name: title, level: 1 }).waitFor();
    await tab.page.getByText("OpenRouter", { exact: true }).waitFor();
    await tab.assertAccessible(`models in ${locale}`);
    await tab.close();
  }
});

test("a key that fails its test is stored only by Save anyway", async (t) => {
  const provider = await anthropic();
  t.after(() => provider.server.close());
  const server = await Server.start({ ATELIER_PROVIDERS__ANTHROPIC__BASE_URL: provider.url });
  t.after(() => server.stop());
  const tab = await browser.open(server.user("ann"), "#/models", { size: PHONE, scheme: "dark" });
  const { page } = tab;
  await page.getByRole("button", { name: "Enter a key: Anthropic" }).click();
  const key = page.getByLabel("Key", { exact: true });
  const anyway = page.getByRole("button", { name: "Save anyway" });
  await key.fill("sk-wrong-0123456789");
  await key.press("Enter");
  await page.getByText("anthropic rejected its key: enter a valid one").waitFor();
  await page.getByText("Not saved, because the test failed.").waitFor();
  assert.equal(await page.getByText("Your key", { exact: true }).count(), 0);
  await tab.assertAccessible("a key that failed its test");

  // Another key is tested anew, also by Enter, and stored when it works.
  await key.fill(KEY);
  await anyway.waitFor({ state: "hidden" });
  await key.press("Enter");
  await page.getByText("Anthropic saved.").waitFor();
  await page.getByText("Your key", { exact: true }).waitFor();

  await page.getByRole("button", { name: "Enter a key: Anthropic" }).click();
  await key.fill("sk-wrong-9876543210");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await anyway.click();
  await page.getByText("…3210").waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
  await tab.close();
});

test("the default model is chosen from the models that can answer, or by its name", async (t) => {
  const provider = await anthropic();
  t.after(() => provider.server.close());
  const server = await Server.start({
    ATELIER_PROVIDERS__ANTHROPIC__BASE_URL: provider.url,
    ANTHROPIC_API_KEY: KEY,
  });
  t.after(() => server.stop());
  const tab = await browser.open(server.user("ann"), "#/models");
  const { page } = tab;
  for (const name of ["OpenAI", "Anthropic", "OpenRouter", "Ollama"])
    await page.getByRole("heading", { name, exact: true }).waitFor();
  const choice = page.getByLabel("Another default model");
  assert.equal(await choice.locator("option:checked").innerText(), "Choose a model…");
  await choice.selectOption("anthropic/claude-new");
  await page.getByRole("button", { name: "Use as default" }).click();
  await page.locator("strong.answer", { hasText: "anthropic/claude-new" }).waitFor();
  await choice.selectOption({ label: "Another name…" });
  await page.getByLabel("Name of the model").fill("anthropic/claude-sonnet-4-5");
  await tab.assertAccessible("another name of a model");
  await page.getByRole("button", { name: "Use as default" }).click();
  await page.locator("strong.answer", { hasText: "anthropic/claude-sonnet-4-5" }).waitFor();
  await tab.close();
});
