// Takes the pictures in docs/img: the real console with example data. Run by scripts/screenshots, which fails if a
// picture would show an error.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { Browser, PHONE, type Tab } from "./harness/browser.ts";
import { ConnectedFolder, Server } from "./harness/server.ts";

const IMAGES = new URL("../../docs/img/", import.meta.url).pathname;
mkdirSync(IMAGES, { recursive: true });

const CART = `import { price } from "./prices";

export interface Item {
  sku: string;
  count: number;
}

/** The price of a basket, in cents. */
export function total(items: Item[]): number {
  let sum = 0;
  for (const item of items) {
    sum += price(item.sku) * item.count;
  }
  return sum;
}
`;
const CHANGED = CART.replace(
  "total(items: Item[]): number",
  "total(items: Item[], discount = 0): number",
).replace(
  "  return sum;",
  "  // A voucher never makes the total negative.\n  return Math.max(0, Math.round(sum * (1 - discount)));",
);

const server = await Server.start();
const browser = await Browser.start();
const owner = server.user("owner", "--role", "admin");
const project = await owner.project("web shop");
await owner.project("quarterly report", { workspace: "conversation" });
const folder = await ConnectedFolder.connect(project, {
  "src/cart.ts": CART,
  "README.md": "# Web shop\n",
});

/** Interactions of one month for an agent's memory. */
function interactions() {
  const examples = [
    ["task_execution", "Added a discount to the total of a basket, with tests for vouchers"],
    ["tool_call", "write_file src/cart.ts: the total takes a discount"],
    ["user_message", "Please round the total after the voucher, not before"],
    ["task_execution", "The checkout test failed: the voucher was applied twice"],
  ] as const;
  return Array.from({ length: 60 }, (_, n) => {
    const [interaction_type, text] = examples[(n * 7) % 4] ?? examples[0];
    const timestamp = new Date(Date.now() - ((n * n) % 31) * 86_400_000).toISOString();
    return {
      text: n < 4 ? text : `${text} (${n})`,
      interaction_type,
      success: n % 5 !== 3,
      timestamp,
      metadata: {},
    };
  });
}

async function requestCall(tool: string, params: object, agent: string) {
  const call = await project.call(tool, params, { agent_id: agent });
  await project.waitForStatus(call, "pending_approval");
}

async function picture(tab: Tab, name: string) {
  // Fonts, highlighting and the last events need a moment.
  await tab.page.waitForTimeout(400);
  assert.deepEqual(await tab.errorsShown(), [], `docs/img/${name}.png would show an error`);
  await tab.page.screenshot({ path: `${IMAGES}${name}.png` });
  console.info(`docs/img/${name}.png`);
}

try {
  await requestCall("write_file", { path: "src/cart.ts", content: CHANGED }, "agent_coder");
  await requestCall("execute_command", { command: "npm", args: ["install", "zod"] }, "agent_coder");
  const workflow = "on: push\njobs:\n  test:\n    runs-on: ubuntu-latest\n";
  await requestCall(
    "write_file",
    { path: ".github/workflows/test.yml", content: workflow, create_dirs: true },
    "agent_writer",
  );
  const read = await project.call(
    "read_file",
    { path: "README.md" },
    { agent_id: "agent_analyzer" },
  );
  await project.waitForStatus(read, "completed");

  for (const scheme of ["light", "dark"] as const) {
    const tab = await browser.open(owner, "#/approvals", { scheme });
    await tab.page.getByRole("heading", { name: "Write file" }).waitFor();
    await tab.page.locator(".diff .hl-keyword").first().waitFor();
    await picture(tab, `approvals-${scheme}`);
    await tab.close();
  }
  const tab = await browser.open(owner, "#/approvals");
  await tab.page.getByRole("link", { name: /npm install/ }).click();
  await picture(tab, "command");
  await tab.goto(`#/projects/${project.id}`);
  await tab.page.getByRole("heading", { name: "Connected machines" }).waitFor();
  await picture(tab, "project");
  await tab.goto(`#/projects/${project.id}/server`);
  await tab.page.getByRole("heading", { name: "Worker space" }).waitFor();
  await picture(tab, "project-server");
  await tab.goto("#/");
  await tab.page.getByRole("list", { name: "Waiting for you" }).waitFor();
  await picture(tab, "home");
  await tab.goto("#/activity");
  await picture(tab, "activity");
  await tab.close();

  const basket = await project.conversation("Rename total to sum in all files");
  const script = "sed -i s/total/sum/g src/cart.ts README.md; echo 'The sum.' >> README.md";
  const ran = await project.call("shell", { script }, { session_id: basket.id });
  await project.waitForStatus(ran, "completed");
  const changes = await browser.open(owner, `#/projects/${project.id}/changes/${basket.id}`);
  await changes.page.getByRole("button", { name: /cart\.ts/ }).click();
  await changes.page.locator(".diff .hl-keyword").first().waitFor();
  await picture(changes, "changes");
  await changes.close();

  const chat = await browser.open(owner, `#/projects/${project.id}/chat/new`);
  const message =
    "read README.md and list src and then write CHANGES.md: Vouchers: the total takes a discount.";
  await chat.page.getByRole("textbox", { name: "Message" }).fill(message);
  await chat.page.keyboard.press("Enter");
  await chat.page.getByRole("button", { name: "Approve" }).waitFor();
  await picture(chat, "chat-asks");
  await chat.page.getByRole("button", { name: "Approve" }).click();
  await chat.page.getByRole("article", { name: "Project" }).waitFor();
  await chat.page.getByRole("img", { name: "3 of 3 tasks done" }).waitFor();
  // The plan with its tasks, rather than the end of the answer.
  await chat.page
    .getByRole("group", { name: "Plan graph" })
    .evaluate((graph) => graph.scrollIntoView());
  await picture(chat, "chat");
  await chat.goto(`#/projects/${project.id}/decisions`);
  await chat.page.getByRole("cell", { name: "you" }).first().waitFor();
  await picture(chat, "decisions");
  await chat.goto(`#/projects/${project.id}/files`);
  const upload = (name: string, text: string) =>
    chat.page
      .locator("input[type=file]")
      .setInputFiles({ name, mimeType: "text/csv", buffer: Buffer.from(text) });
  const rows = "month,region,sold\nMay,north,120\nMay,south,98\nJune,north,134\nJune,south,101\n";
  await upload("sales.csv", rows);
  await chat.page.getByText("1 file").waitFor();
  await upload("sales.csv", rows.replace("134", "143"));
  await chat.page.getByText("v2").first().waitFor();
  await chat.page.getByRole("button", { name: /sales/ }).click();
  await chat.page.getByRole("button", { name: "Compare" }).click();
  await chat.page.locator(".diff").waitFor();
  await picture(chat, "files");
  await chat.close();

  const [coder] = await project.agents();
  assert.ok(coder);
  await owner.request("POST", `${project.path}/agents/${coder.id}/context/import`, {
    interactions: interactions(),
  });
  const memory = await browser.open(owner, `#/projects/${project.id}/memory/${coder.id}`);
  await memory.page.getByRole("searchbox").fill("voucher discount");
  await memory.page.getByRole("button", { name: "Search", exact: true }).click();
  await memory.page.getByRole("list", { name: "Results, best first" }).waitFor();
  await picture(memory, "memory");
  await memory.close();

  const signIn = await browser.open(owner, "", { signedIn: false });
  await signIn.page.getByRole("heading", { name: "Sign in to Atelier" }).waitFor();
  await picture(signIn, "sign-in");
  await signIn.close();

  const admin = await browser.open(owner, "#/overview");
  // Long enough for a few points in each chart.
  await admin.page.waitForTimeout(13_000);
  await picture(admin, "server");
  await admin.close();

  const phone = await browser.open(owner, "#/approvals", { size: PHONE });
  await phone.page.getByRole("link", { name: /cart/ }).waitFor();
  await picture(phone, "phone-list");
  await phone.page.getByRole("link", { name: /cart/ }).click();
  await phone.page.locator(".diff .hl-keyword").first().waitFor();
  await picture(phone, "phone");
  await phone.close();
} catch (error) {
  // The reason of an error in a picture is in the server's log.
  console.error(server.output);
  throw error;
} finally {
  await browser.stop();
  await folder.disconnect();
  await server.stop();
}
