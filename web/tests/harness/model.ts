// A model that gives scripted replies: an HTTP server with OpenAI's chat completions API.

import { createServer, type Server as HttpServer } from "node:http";
import type { AddressInfo } from "node:net";

export interface Reply {
  text?: string;
  calls?: { tool: string; params: object }[];
  /** Sends the text and then nothing more, as a model that is still writing. */
  unfinished?: boolean;
}

export class ScriptedModel {
  #server: HttpServer;

  private constructor(server: HttpServer) {
    this.#server = server;
  }

  /** Answers the requests of an agent one after another with these replies. */
  static async start(replies: Reply[]): Promise<ScriptedModel> {
    const left = [...replies];
    const server = createServer((request, response) => {
      // The list of models, which the console asks for, is not an answer of the script.
      if (request.method === "GET") {
        response.writeHead(200, { "content-type": "application/json" });
        response.end('{"data": []}');
        return;
      }
      const reply = left.shift();
      response.writeHead(reply ? 200 : 400, { "content-type": "text/event-stream" });
      if (!reply) response.end("the script has ended");
      else if (reply.unfinished) response.write(chunks(reply)[0]);
      else response.end(chunks(reply).join(""));
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return new ScriptedModel(server);
  }

  /** The server settings that make all agents use this model. */
  get settings(): Record<string, string> {
    const { port } = this.#server.address() as AddressInfo;
    return {
      OPENAI_API_KEY: "sk-scripted",
      ATELIER_PROVIDERS__OPENAI__BASE_URL: `http://127.0.0.1:${port}/v1`,
      // With an OpenAI key, memory would ask the script for embeddings.
      ATELIER_MEMORY__EMBEDDER__KIND: "builtin",
    };
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

function chunks({ text = "", calls = [] }: Reply): string[] {
  const delta = (delta: object, finish_reason: string | null = null) => ({
    id: "chatcmpl-1",
    object: "chat.completion.chunk",
    created: 1,
    model: "scripted",
    choices: [{ index: 0, delta, finish_reason }],
  });
  const tool_calls = calls.map(({ tool, params }, index) => ({
    index,
    id: `call_${index}`,
    type: "function",
    function: { name: tool, arguments: JSON.stringify(params) },
  }));
  const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
  const events = [
    ...(text ? [delta({ content: text })] : []),
    ...(calls.length > 0 ? [delta({ tool_calls })] : []),
    delta({}, calls.length > 0 ? "tool_calls" : "stop"),
    { ...delta({}), choices: [], usage },
  ];
  return [...events.map((event) => `data: ${JSON.stringify(event)}\n\n`), "data: [DONE]\n\n"];
}
