// Checks how Markdown is parsed, in particular text that was written to do harm. `npm run check` runs them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { parseProse, type Block, type Inline } from "../src/prose/parse.ts";

/** A short notation of blocks, for comparison. */
function show(blocks: readonly Block[]): string {
  return blocks.map(block).join(" ");
}

function block(block: Block): string {
  switch (block.kind) {
    case "paragraph":
      return `p(${words(block.inlines)})`;
    case "heading":
      return `h${block.level}(${words(block.inlines)})`;
    case "quote":
      return `quote(${show(block.blocks)})`;
    case "list": {
      const box = { true: "☑", false: "☐", null: "" };
      const items = block.items.map(({ checked, blocks }) => `${box[`${checked}`]}${show(blocks)}`);
      return `${block.start ?? "list"}(${items.join("; ")})`;
    }
    case "code":
      return `code[${block.language}](${block.text})`;
    case "table":
      return `table(${[block.head, ...block.rows]
        .map((row) => row.map(({ align, inlines }) => `${align[0]}:${words(inlines)}`).join("|"))
        .join(" / ")})`;
    case "rule":
      return "rule";
  }
}

function words(inlines: readonly Inline[]): string {
  return inlines
    .map((inline) => {
      if (inline.kind === "text") return inline.text;
      if (inline.kind === "code") return `\`${inline.text}\``;
      if (inline.kind === "link") return `<${inline.href}>(${words(inline.inlines)})`;
      return `${inline.kind}(${words(inline.inlines)})`;
    })
    .join("");
}

const parsed = (text: string) => show(parseProse(text));

test("tables, task lists, nested lists and the other parts of GitHub's Markdown", () => {
  assert.equal(
    parsed("| a | b |\n|:-:|--:|\n| `1` | **2** |\n"),
    "table(c:a|r:b / c:`1`|r:strong(2))",
  );
  assert.equal(parsed("- [x] a\n- [ ] b\n- c"), "list(☑p(a); ☐p(b); p(c))");
  assert.equal(parsed("1. a\n   - b\n2. c"), "1(p(a) list(p(b)); p(c))");
  assert.equal(parsed("3) a"), "3(p(a))");
  assert.equal(
    parsed("# A\n\n> b\n> c\n\n---\n\n~~d~~ *e*"),
    "h1(A) quote(p(b\nc)) rule p(del(d) em(e))",
  );
  assert.equal(parsed("```rust\nfn a() {}\n```\nb"), "code[rust](fn a() {}) p(b)");
  // The end of a code block may not have arrived yet.
  assert.equal(parsed("```js\nlet a"), "code[js](let a)");
  assert.equal(
    parsed("see https://a.example/b_c_d."),
    "p(see <https://a.example/b_c_d>(https://a.example/b_c_d).)",
  );
  assert.equal(parsed("README.md and snake_case_name"), "p(README.md and snake_case_name)");
});

test("formulas stay as they were written", () => {
  for (const formula of ["$a*b*c$", "$$x_1 * y_1 * z$$", "\\(a*b*c\\)", "\\[a_b_c\\]"])
    assert.equal(parsed(`so ${formula} holds`), `p(so ${formula} holds)`);
  assert.equal(parsed("$$\na\n= b\n- c\n$$\n\nd"), "p($$\na\n= b\n- c\n$$) p(d)");
  assert.equal(parsed("\\[\n- c\n\\]"), "p(\\[\n- c\n\\])");
  assert.equal(parsed("from $5 to *$10*"), "p(from $5 to em($10))");
  assert.equal(parsed("$$ never closed\n- a"), "p($$ never closed) list(p(a))");
});

test("HTML stays text, and links lead only to web and mail addresses", () => {
  const evil = `<img src=x onerror="a()"><script>b()</script>`;
  assert.equal(parsed(evil), `p(${evil})`);
  assert.equal(parsed("<div>\n*a*\n</div>"), "p(<div>\nem(a)\n</div>)");
  for (const href of [
    "javascript:a()",
    "JavaScript:a()",
    "java&#115;cript:a",
    "data:text/html,a",
    "vbscript:a",
    "file:///etc/passwd",
    "//evil.example",
    "#/approvals",
    "blob:a",
  ])
    assert.doesNotMatch(parsed(`[x](${href}) ![x](${href}) <${href}>`), /<[^>]*>\(/);
  // A picture would be a request to another server.
  assert.equal(parsed("![alt](https://a.example/p.png)"), "p(<https://a.example/p.png>(alt))");
  assert.equal(parsed("[a](MAILTO:b@c.example)"), "p(<MAILTO:b@c.example>(a))");
});

test("text that is deeply nested or huge is parsed, and only up to a limit", () => {
  const n = 20_000;
  for (const text of [
    `${">".repeat(n)}a`,
    `${"- ".repeat(n)}a`,
    Array.from({ length: 500 }, (_, depth) => `${"  ".repeat(depth)}- a`).join("\n"),
    "[".repeat(n),
    "[a](".repeat(n),
    "**a *b ".repeat(n),
    "$".repeat(n),
    "$a ".repeat(n),
    "\\(".repeat(n),
    `${"a.".repeat(n)}@`,
    "`".repeat(n),
    "<a ".repeat(n),
  ]) {
    const depth = (blocks: readonly Block[]): number =>
      Math.max(
        0,
        ...blocks.map((block) =>
          block.kind === "quote"
            ? 1 + depth(block.blocks)
            : block.kind === "list"
              ? 1 + Math.max(...block.items.map(({ blocks }) => depth(blocks)))
              : 0,
        ),
      );
    assert.ok(depth(parseProse(text)) <= 20);
  }
  const table = `${"a|".repeat(500)}\n${"-|".repeat(500)}\n${"x\n".repeat(500)}`;
  assert.equal(parseProse(table)[0]?.kind, "code");
});
