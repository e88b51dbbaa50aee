// Parses a unified diff into lines with line numbers and marked words.

import { changedWords, type Span } from "./wordDiff";

export interface Line {
  kind: "same" | "old" | "new" | "note";
  /** Line numbers in the old and the new file; `null` on the side without this line. */
  before: number | null;
  after: number | null;
  text: string;
  /** The changed words, if the line replaces a similar one. */
  marks: Span[];
}

export interface Hunk {
  title: string;
  lines: Line[];
}

export interface Diff {
  hunks: Hunk[];
  added: number;
  removed: number;
  /** Whether the diff creates the file. */
  created: boolean;
}

export function parseDiff(text: string): Diff {
  const diff: Diff = { hunks: [], added: 0, removed: 0, created: /^--- \/dev\/null/m.test(text) };
  let hunk: Hunk | null = null;
  let before = 0;
  let after = 0;
  for (const raw of text.replace(/\n$/, "").split("\n")) {
    const head = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/.exec(raw);
    if (head) {
      [before, after] = [Number(head[1]), Number(head[2])];
      hunk = { title: (head[3] ?? "").trim(), lines: [] };
      diff.hunks.push(hunk);
    } else if (!hunk) {
      // The file names are shown elsewhere; any other text before the first hunk is a note.
      if (raw !== "" && !/^(---|\+\+\+) /.test(raw))
        diff.hunks.push({ title: "", lines: [note(raw)] });
    } else if (raw.startsWith("-")) {
      hunk.lines.push({
        kind: "old",
        before: before++,
        after: null,
        text: raw.slice(1),
        marks: [],
      });
      diff.removed += 1;
    } else if (raw.startsWith("+")) {
      hunk.lines.push({ kind: "new", before: null, after: after++, text: raw.slice(1), marks: [] });
      diff.added += 1;
    } else if (raw.startsWith(" ") || raw === "") {
      hunk.lines.push({
        kind: "same",
        before: before++,
        after: after++,
        text: raw.slice(1),
        marks: [],
      });
    } else {
      hunk.lines.push(note(raw));
    }
  }
  for (const { lines } of diff.hunks) markWords(lines);
  return diff;
}

function note(text: string): Line {
  return { kind: "note", before: null, after: null, text, marks: [] };
}

/** Marks the changed words of removed lines and the lines that replace them. */
function markWords(lines: Line[]): void {
  for (const { left, right } of pairs(lines)) {
    if (left?.kind !== "old" || right?.kind !== "new") continue;
    const changed = changedWords(left.text, right.text);
    if (changed) [left.marks, right.marks] = [changed.before, changed.after];
  }
}

export interface Pair {
  left: Line | null;
  right: Line | null;
}

/** Pairs old lines with the new lines that replace them. */
export function pairs(lines: Line[]): Pair[] {
  const rows: Pair[] = [];
  let olds: Line[] = [];
  let news: Line[] = [];
  const flush = () => {
    for (let at = 0; at < Math.max(olds.length, news.length); at++)
      rows.push({ left: olds[at] ?? null, right: news[at] ?? null });
    [olds, news] = [[], []];
  };
  for (const line of lines) {
    if (line.kind === "old") {
      if (news.length > 0) flush();
      olds.push(line);
    } else if (line.kind === "new") {
      news.push(line);
    } else {
      // "No newline at end of file" belongs to the line above and must not separate a pair.
      if (line.kind === "note" && (olds.length > 0 || news.length > 0)) continue;
      flush();
      rows.push({ left: line, right: line });
    }
  }
  flush();
  return rows;
}
