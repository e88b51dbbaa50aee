// Writes the pictures of docs/img: the real console with something to show. Run by scripts/screenshots.

import { mkdirSync } from "node:fs";
import { Browser, PHONE } from "./harness/browser.mjs";
import { Folder, Server } from "./harness/server.mjs";

const IMAGES = new URL("../../docs/img/", import.meta.url).pathname;
mkdirSync(IMAGES, { recursive: true });

const CART = `import { price } from "./prices";

export interface Item {
  sku: string;
  count: number;
}

/** What a basket costs, in cents. */
export function total(items: Item[]): number {
  let sum = 0;
  for (const item of items) {
    sum += price(item.sku) * item.count;
  }
  return sum;
}
`;
const CHANGED = CART.replace("total(items: Item[]): number", "total(items: Item[], discount = 0): number").replace(
  "  return sum;",
  "  // Never below nothing, whatever the voucher says.\n  return Math.max(0, Math.round(sum * (1 - discount)));",
);

const server = await Server.start();
const browser = await Browser.start();
const owner = server.person("owner", "--role", "admin");
const shop = await owner.project("web shop");
await owner.project("quarterly report", { workspace: "conversation" });
const folder = await Folder.connect(shop, { "src/cart.ts": CART, "README.md": "# Web shop\n" });

/** A month of work, to be remembered. */
function memories() {
  const kinds = [
    ["task_execution", "Added a discount to the total of a basket, with tests for vouchers"],
    ["tool_call", "write_file src/cart.ts: the total takes a discount"],
    ["user_message", "Please round the total after the voucher, not before"],
    ["task_execution", "The checkout test failed: the voucher was applied twice"],
  ];
  return Array.from({ length: 60 }, (_, n) => {
    const [interaction_type, text] = kinds[(n * 7) % 4];
    const timestamp = new Date(Date.now() - ((n * n) % 31) * 86_400_000).toISOString();
    return { text: n < 4 ? text : `${text} (${n})`, interaction_type, success: n % 5 !== 3, timestamp, metadata: {} };
  });
}

async function ask(tool, params, agent) {
  await shop.until(await shop.call(tool, params, { agent_id: agent }), "pending_approval");
}

async function picture(tab, name) {
  // Fonts, colours of code and the last events settle.
  await tab.page.waitForTimeout(400);
  await tab.page.screenshot({ path: `${IMAGES}${name}.png` });
  console.log(`docs/img/${name}.png`);
}

try {
  await ask("write_file", { path: "src/cart.ts", content: CHANGED }, "agent_coder");
  await ask("execute_command", { command: "npm", args: ["install", "zod"] }, "agent_coder");
  await ask("write_file", { path: ".github/workflows/test.yml", content: "on: push\njobs:\n  test:\n    runs-on: ubuntu-latest\n", create_dirs: true }, "agent_writer");
  await shop.until(await shop.call("read_file", { path: "README.md" }, { agent_id: "agent_analyzer" }), "completed");

  for (const scheme of ["light", "dark"]) {
    const tab = await browser.open(owner, "#/approvals", { scheme });
    await tab.page.getByRole("heading", { name: "Write file" }).waitFor();
    await tab.page.locator(".diff .hl-keyword").first().waitFor();
    await picture(tab, `approvals-${scheme}`);
    await tab.close();
  }
  const tab = await browser.open(owner, "#/approvals");
  await tab.page.getByRole("link", { name: /npm install/ }).click();
  await picture(tab, "command");
  await tab.go(`#/projects/${shop.id}`);
  await tab.page.getByRole("heading", { name: "Connected machines" }).waitFor();
  await picture(tab, "project");
  await tab.go("#/activity");
  await picture(tab, "activity");
  await tab.close();

  const chat = await browser.open(owner, `#/projects/${shop.id}/chat/new`);
  const say = async (text) => {
    await chat.page.getByRole("textbox", { name: "Message" }).fill(text);
    await chat.page.keyboard.press("Enter");
  };
  await say("read README.md and list src and then write CHANGES.md: Vouchers: the total takes a discount.");
  await chat.page.getByRole("button", { name: "Approve" }).waitFor();
  await picture(chat, "chat-asks");
  await chat.page.getByRole("button", { name: "Approve" }).click();
  await chat.page.getByRole("article", { name: "Project" }).waitFor();
  await picture(chat, "chat");
  await chat.go(`#/projects/${shop.id}/decisions`);
  await chat.page.getByRole("cell", { name: "you" }).first().waitFor();
  await picture(chat, "decisions");
  await chat.go(`#/projects/${shop.id}/files`);
  const bring = (name, text) => chat.page.locator("input[type=file]").setInputFiles({ name, mimeType: "text/csv", buffer: Buffer.from(text) });
  await bring("sales.csv", "month,region,sold\nMay,north,120\nMay,south,98\nJune,north,134\nJune,south,101\n");
  await chat.page.getByText("1 file").waitFor();
  await bring("sales.csv", "month,region,sold\nMay,north,120\nMay,south,98\nJune,north,143\nJune,south,101\n");
  await chat.page.getByText("v2").first().waitFor();
  await chat.page.getByRole("button", { name: /sales/ }).click();
  await chat.page.getByRole("button", { name: "Compare" }).click();
  await chat.page.locator(".diff").waitFor();
  await picture(chat, "files");
  await chat.close();

  const [coder] = await shop.agents();
  await owner.ask("POST", `${shop.path}/agents/${coder.id}/context/import`, { interactions: memories() });
  const memory = await browser.open(owner, `#/projects/${shop.id}/memory/${coder.id}`);
  await memory.page.getByRole("searchbox").fill("voucher discount");
  await memory.page.getByRole("button", { name: "Find" }).click();
  await memory.page.getByRole("list", { name: "Results, best first" }).waitFor();
  await picture(memory, "memory");
  await memory.close();

  const door = await browser.open(owner, "", { signedIn: false });
  await door.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await picture(door, "sign-in");
  await door.close();

  const admin = await browser.open(owner, "#/overview");
  await admin.page.waitForTimeout(13_000);
  await picture(admin, "server");
  await admin.close();

  const phone = await browser.open(owner, "#/approvals", { size: PHONE });
  await picture(phone, "phone-list");
  await phone.page.getByRole("link", { name: /cart/ }).click();
  await phone.page.locator(".diff .hl-keyword").first().waitFor();
  await picture(phone, "phone");
  await phone.close();
} finally {
  await browser.stop();
  await folder.disconnect();
  await server.stop();
}
