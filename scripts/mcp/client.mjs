// Plays tool calls through the official TypeScript client: JSON calls in, JSON answers out.
// Usage: client.mjs MODULES (--stdio COMMAND… | --http URL)
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [modules, how, ...where] = process.argv.slice(2);
const resolve = createRequire(`${modules}/`).resolve;
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/sdk/client/${name}.js`)));

const { Client } = await load('index');
const { StdioClientTransport } = await load('stdio');
const { StreamableHTTPClientTransport } = await load('streamableHttp');

const transport =
  how === '--http'
    ? new StreamableHTTPClientTransport(new URL(where[0]))
    : new StdioClientTransport({ command: where[0], args: where.slice(1) });
const client = new Client({ name: 'atelier-tests', version: '1' });
await client.connect(transport);
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const answers = [];
for (const { tool, args } of JSON.parse(readFileSync(0, 'utf8'))) {
  try {
    const result = await client.callTool({ name: tool, arguments: args });
    const text = result.content.map((block) => block.text).join('');
    answers.push({ text, error: result.isError === true, data: result.structuredContent ?? null });
  } catch (error) {
    answers.push({ raised: String(error) });
  }
}
await client.close();
console.log(JSON.stringify({ protocol: transport.protocolVersion ?? null, tools, answers }));
