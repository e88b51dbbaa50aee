import type { createLowlight } from "lowlight";
import type { Line } from "./parse";

type Node = ReturnType<ReturnType<typeof createLowlight>["highlight"]>["children"][number];

/** A range of a line and its syntax class, such as `keyword` or `string`. */
export interface Token {
  from: number;
  to: number;
  kind: string;
}

/** Longer texts are not highlighted, because it would take too long. */
const MAX_LENGTH = 200_000;

const BY_ENDING: Record<string, string> = {
  rs: "rust",
  ts: "typescript",
  tsx: "typescript",
  mts: "typescript",
  js: "javascript",
  jsx: "javascript",
  mjs: "javascript",
  cjs: "javascript",
  py: "python",
  go: "go",
  java: "java",
  kt: "kotlin",
  kts: "kotlin",
  c: "c",
  h: "c",
  cc: "cpp",
  cpp: "cpp",
  hpp: "cpp",
  cxx: "cpp",
  cs: "csharp",
  css: "css",
  scss: "css",
  html: "xml",
  htm: "xml",
  xml: "xml",
  svg: "xml",
  svelte: "xml",
  vue: "xml",
  json: "json",
  md: "markdown",
  markdown: "markdown",
  yml: "yaml",
  yaml: "yaml",
  toml: "ini",
  ini: "ini",
  cfg: "ini",
  conf: "ini",
  sh: "bash",
  bash: "bash",
  zsh: "bash",
  sql: "sql",
  rb: "ruby",
  php: "php",
  swift: "swift",
  mk: "makefile",
};

const BY_NAME: Record<string, string> = {
  makefile: "makefile",
  dockerfile: "bash",
  gemfile: "ruby",
  rakefile: "ruby",
};

/** The highlighting language for a file name; `null` if there is none. */
export function languageOf(path: string): string | null {
  const name = path.split("/").at(-1)?.toLowerCase() ?? "";
  return BY_NAME[name] ?? BY_ENDING[name.split(".").at(-1) ?? ""] ?? null;
}

/** The tokens of each line. The old and the new side of a hunk are highlighted separately. */
export async function tokensOf(lines: Line[], language: string): Promise<Map<Line, Token[]>> {
  const { lowlight } = await import("./languages");
  const tokens = new Map<Line, Token[]>();
  for (const other of ["new", "old"] as const) {
    const side = lines.filter(({ kind }) => kind !== other && kind !== "note");
    const text = side.map((line) => line.text).join("\n");
    if (text.length > MAX_LENGTH) continue;
    const found = byLine(lowlight.highlight(language, text).children);
    side.forEach((line, index) => tokens.set(line, found[index] ?? []));
  }
  return tokens;
}

function byLine(nodes: Node[]): Token[][] {
  const lines: Token[][] = [[]];
  let column = 0;
  const walk = (node: Node, kind: string) => {
    if (node.type === "element") {
      const names = node.properties.className;
      const inner = Array.isArray(names) ? String(names[0]).replace(/^hljs-/, "") : kind;
      for (const child of node.children) walk(child as Node, inner);
    } else if (node.type === "text") {
      node.value.split("\n").forEach((part, index) => {
        if (index > 0) {
          lines.push([]);
          column = 0;
        }
        if (part && kind) lines.at(-1)?.push({ from: column, to: column + part.length, kind });
        column += part.length;
      });
    }
  };
  for (const node of nodes) walk(node, "");
  return lines;
}
