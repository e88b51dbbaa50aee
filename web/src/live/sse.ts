export interface Message {
  id: string;
  name: string;
  data: string;
}

/**
 * Reads server-sent events from a response, in the batches in which they arrive. An empty batch is a heartbeat.
 * `EventSource` is not used because it cannot send a token.
 */
export async function* readMessages(body: ReadableStream<Uint8Array>): AsyncGenerator<Message[]> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
      rest = blocks.pop() ?? "";
      yield blocks.map(parseBlock).filter((message) => message !== null);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parseBlock(block: string): Message | null {
  const message: Message = { id: "", name: "message", data: "" };
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line) ?? [];
    if (field === "id") message.id = value;
    else if (field === "event") message.name = value;
    else if (field === "data") data.push(value);
  }
  message.data = data.join("\n");
  return data.length > 0 ? message : null;
}
