// Parses Markdown into plain data, which is rendered as text and never as HTML. `markdown-it` finds the structure; its
// own HTML renderer is not used.

import MarkdownIt, { type Token } from "markdown-it";
import { keepMaths } from "./maths";

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "em" | "del"; inlines: Inline[] }
  | { kind: "link"; href: string; inlines: Inline[] };

export interface Item {
  /** Whether the box of a task list is ticked; `null` if the item has no box. */
  checked: boolean | null;
  blocks: Block[];
}

export interface Cell {
  align: "left" | "center" | "right";
  inlines: Inline[];
}

export type Block =
  | { kind: "paragraph"; inlines: Inline[] }
  | { kind: "heading"; level: number; inlines: Inline[] }
  | { kind: "list"; start: number | null; items: Item[] }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "table"; head: Cell[]; rows: Cell[][] }
  | { kind: "rule" };

/** A short text can describe a huge table; one with more cells is shown as text. */
const MAX_CELLS = 4_000;

const markdown = new MarkdownIt({ html: false, linkify: true, maxNesting: 20 }).use(keepMaths);
// File names such as README.md are not links.
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = (href) => /^(https?|mailto):/i.test(href);
// The text of a link is shown as it was written, not decoded.
markdown.normalizeLinkText = (text) => text;

export function parseProse(text: string): Block[] {
  return new Reader(markdown.parse(text, {}), text.split(/\r\n|\r|\n/)).blocks();
}

/** Turns the flat list of tokens, in which elements open and close, into a tree. */
class Reader {
  #tokens: readonly Token[];
  #lines: readonly string[];
  #at = 0;

  constructor(tokens: readonly Token[], lines: readonly string[]) {
    this.#tokens = tokens;
    this.#lines = lines;
  }

  /** The blocks up to the token that closes the current element. */
  blocks(): Block[] {
    const blocks: Block[] = [];
    for (let token; (token = this.#tokens[this.#at]) && token.nesting >= 0;) {
      this.#at++;
      const block = this.#block(token);
      if (block) blocks.push(block);
    }
    this.#at++;
    return blocks;
  }

  #block(token: Token): Block | null {
    switch (token.type) {
      case "paragraph_open":
        return { kind: "paragraph", inlines: this.#inlines() };
      case "heading_open":
        return { kind: "heading", level: Number(token.tag.slice(1)), inlines: this.#inlines() };
      case "blockquote_open":
        return { kind: "quote", blocks: this.blocks() };
      case "bullet_list_open":
        return { kind: "list", start: null, items: this.#items() };
      case "ordered_list_open":
        return { kind: "list", start: Number(token.attrGet("start") ?? 1), items: this.#items() };
      case "table_open":
        return this.#table(token);
      case "fence":
      case "code_block":
        return {
          kind: "code",
          language: /^[\w+#.-]*/.exec(token.info)?.[0] ?? "",
          text: token.content.replace(/\n$/, ""),
        };
      case "maths":
        return { kind: "paragraph", inlines: [{ kind: "text", text: token.content }] };
      case "hr":
        return { kind: "rule" };
      default:
        return token.content ? { kind: "paragraph", inlines: inlinesOf(token) } : null;
    }
  }

  /** The inlines of an element that holds nothing else, and the token that closes it. */
  #inlines(): Inline[] {
    const found: Inline[] = [];
    for (let token; (token = this.#tokens[this.#at++]) && token.nesting >= 0;)
      found.push(...inlinesOf(token));
    return found;
  }

  #items(): Item[] {
    const items: Item[] = [];
    while (this.#tokens[this.#at++]?.nesting === 1) items.push(taskOf(this.blocks()));
    return items;
  }

  #table(open: Token): Block {
    const rows: Cell[][] = [];
    let cells = 0;
    for (let token; (token = this.#tokens[this.#at++]) && token.type !== "table_close";) {
      if (token.type === "tr_open") rows.push([]);
      if (token.type !== "th_open" && token.type !== "td_open") continue;
      const align = /(left|center|right)$/.exec(attribute(token, "style"))?.[1] ?? "left";
      const inlines = this.#inlines();
      if (++cells <= MAX_CELLS) rows.at(-1)?.push({ align: align as Cell["align"], inlines });
    }
    if (cells > MAX_CELLS)
      return {
        kind: "code",
        language: "",
        text: this.#lines.slice(...(open.map ?? [])).join("\n"),
      };
    const [head = [], ...rest] = rows;
    return { kind: "table", head, rows: rest };
  }
}

/** An item of a task list begins with a box: `[ ]` or `[x]`. */
function taskOf(blocks: Block[]): Item {
  const [first] = blocks;
  const [begin] = first?.kind === "paragraph" ? first.inlines : [];
  const box = begin?.kind === "text" ? /^\[([ xX])\]\s+/.exec(begin.text) : null;
  if (begin?.kind !== "text" || !box) return { checked: null, blocks };
  begin.text = begin.text.slice(box[0].length);
  return { checked: box[1] !== " ", blocks };
}

const attribute = (token: Token, name: string) => String(token.attrGet(name) ?? "");

const MARKS = { strong: "strong", em: "em", s: "del" } as const;

function inlinesOf({ children, content }: Token): Inline[] {
  const root: Inline[] = [];
  const open = [root];
  const add = (inline: Inline) => open.at(-1)?.push(inline);
  const text = (words: string) => {
    const last = open.at(-1)?.at(-1);
    if (last?.kind === "text") last.text += words;
    else if (words) add({ kind: "text", text: words });
  };
  if (!children) text(content);
  for (const token of children ?? []) {
    const mark = MARKS[token.tag as keyof typeof MARKS];
    if (token.nesting < 0) {
      if (open.length > 1) open.pop();
    } else if (token.type === "link_open" || (token.nesting > 0 && mark)) {
      const inlines: Inline[] = [];
      add(
        mark ? { kind: mark, inlines } : { kind: "link", href: attribute(token, "href"), inlines },
      );
      open.push(inlines);
    } else if (token.type === "image") {
      // A picture would be a request to another server, so it is a link.
      const href = attribute(token, "src");
      add({ kind: "link", href, inlines: [{ kind: "text", text: token.content || href }] });
    } else if (token.type === "code_inline") add({ kind: "code", text: token.content });
    else if (token.type === "softbreak" || token.type === "hardbreak") text("\n");
    else text(token.content);
  }
  return root;
}
