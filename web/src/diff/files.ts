// Splits a diff of several files into one diff for each file.

export interface FileDiff {
  path: string;
  /** The diff of this file alone. */
  text: string;
  added: number;
  removed: number;
}

/**
 * The files of a diff, in order; empty if the diff does not say where a file begins. A hunk has as many
 * lines as its header says, so that no line of a file can pass for the beginning of another file.
 */
export function splitDiff(text: string): FileDiff[] {
  const files: (FileDiff & { lines: string[] })[] = [];
  let before = 0;
  let after = 0;
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const file = files.at(-1);
    const isInHunk = before > 0 || after > 0;
    const begins = isInHunk ? null : /^diff --git a\/.* b\/(.*)$/.exec(line);
    if (begins) {
      files.push({ path: begins[1] ?? "", text: "", added: 0, removed: 0, lines: [] });
      continue;
    }
    if (!file) return [];
    file.lines.push(line);
    if (!isInHunk) {
      const head = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(line);
      if (head) [before, after] = [Number(head[1] ?? 1), Number(head[2] ?? 1)];
    } else if (line.startsWith("-")) {
      before -= 1;
      file.removed += 1;
    } else if (line.startsWith("+")) {
      after -= 1;
      file.added += 1;
    } else if (!line.startsWith("\\")) {
      before -= 1;
      after -= 1;
    }
  }
  return files.map(({ lines, ...file }) => ({ ...file, text: `${lines.join("\n")}\n` }));
}
