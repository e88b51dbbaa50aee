// Sends tool calls through the official TypeScript client: reads JSON calls, writes JSON answers.
// Usage: client.mjs MODULES (--stdio COMMAND… | --http URL). MCP_BEARER may hold a bearer token. A call with
// "progress" also returns its progress messages.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [modules, how, ...where] = process.argv.slice(2);
const resolve = createRequire(`${modules}/`).resolve;
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/sdk/client/${name}.js`)));

const { Client } = await load('index');
const { StdioClientTransport } = await load('stdio');
const { StreamableHTTPClientTransport } = await load('streamableHttp');

const token = process.env.MCP_BEARER;
const headers = token ? { Authorization: `Bearer ${token}` } : {};
const transport =
  how === '--http'
    ? new StreamableHTTPClientTransport(new URL(where[0]), { requestInit: { headers } })
    : new StdioClientTransport({ command: where[0], args: where.slice(1) });
const client = new Client({ name: 'atelier-tests', version: '1' });
await client.connect(transport);
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const answers = [];
for (const { tool, args, progress } of JSON.parse(readFileSync(0, 'utf8'))) {
  try {
    const told = [];
    const hear = progress ? { onprogress: ({ message }) => told.push(message) } : {};
    const result = await client.callTool({ name: tool, arguments: args }, undefined, hear);
    const text = result.content.map((block) => block.text).join('');
    answers.push({ progress: told, text, error: result.isError === true, data: result.structuredContent ?? null });
  } catch (error) {
    answers.push({ raised: String(error) });
  }
}
await client.close();
console.log(JSON.stringify({ protocol: transport.protocolVersion ?? null, tools, answers }));
