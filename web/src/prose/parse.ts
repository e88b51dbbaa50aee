// Parses a small subset of Markdown into plain data, which is rendered as text and never as HTML.

export type Inline =
  | { kind: "text" | "code" | "strong" | "em"; text: string }
  | { kind: "link"; text: string; href: string };

export type Block =
  | { kind: "paragraph" | "quote"; inlines: Inline[] }
  | { kind: "heading"; inlines: Inline[] }
  | { kind: "list"; ordered: boolean; items: Inline[][] }
  | { kind: "code"; language: string; text: string };

const FENCE = /^\s*```\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^\s*(?:([-*+])|(\d{1,4})[.)])\s+(.*)$/;

export function parseProse(text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  for (let at = 0; at < lines.length;) {
    const line = lines[at] ?? "";
    const fence = FENCE.exec(line);
    if (fence) {
      const from = ++at;
      while (at < lines.length && !/^\s*```\s*$/.test(lines[at] ?? "")) at++;
      blocks.push({
        kind: "code",
        language: fence[1] ?? "",
        text: lines.slice(from, at).join("\n"),
      });
      at++;
    } else if (line.trim() === "") {
      at++;
    } else if (/^#{1,6}\s/.test(line)) {
      blocks.push({ kind: "heading", inlines: parseInline(line.replace(/^#+\s+/, "")) });
      at++;
    } else if (ITEM.test(line)) {
      const ordered = ITEM.exec(line)?.[2] !== undefined;
      const items: Inline[][] = [];
      for (let item; (item = ITEM.exec(lines[at] ?? "")); at++)
        items.push(parseInline(item[3] ?? ""));
      blocks.push({ kind: "list", ordered, items });
    } else {
      const quote = line.startsWith(">");
      const from = at;
      while (
        at < lines.length &&
        isPlain(lines[at] ?? "") &&
        (lines[at] ?? "").startsWith(">") === quote
      )
        at++;
      // A line that only looks like markup is a paragraph.
      if (at === from) at++;
      const words = lines.slice(from, at).map((one) => (quote ? one.replace(/^>\s?/, "") : one));
      blocks.push({ kind: quote ? "quote" : "paragraph", inlines: parseInline(words.join("\n")) });
    }
  }
  return blocks;
}

function isPlain(line: string): boolean {
  return line.trim() !== "" && !FENCE.test(line) && !ITEM.test(line) && !/^#{1,6}\s/.test(line);
}

const INLINE =
  /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+)/g;

function parseInline(text: string): Inline[] {
  const inlines: Inline[] = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > from) inlines.push({ kind: "text", text: text.slice(from, match.index) });
    const [whole, code, strong, em, label, href, bare] = match;
    if (code !== undefined) inlines.push({ kind: "code", text: code });
    else if (strong !== undefined) inlines.push({ kind: "strong", text: strong });
    else if (em !== undefined) inlines.push({ kind: "em", text: em });
    else inlines.push({ kind: "link", text: label ?? bare ?? whole, href: href ?? bare ?? whole });
    from = match.index + whole.length;
  }
  if (from < text.length) inlines.push({ kind: "text", text: text.slice(from) });
  return inlines;
}
