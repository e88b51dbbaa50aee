// Formulas stay as they were written: `$a*b*c$` has no emphasis in it. They are not typeset.

import type { MarkdownIt } from "markdown-it";

const PAIRS = [
  ["$$", "$$"],
  ["\\[", "\\]"],
  ["\\(", "\\)"],
] as const;

/** Longer formulas are ordinary text, so that text with many beginnings and no end is searched only this far each time. */
const MAX_LENGTH = 2_000;

/** The end of the formula that begins at `from`, or -1 if none begins there. */
function endOfFormula(source: string, from: number, max: number): number {
  const text = source.slice(from, Math.min(max, from + MAX_LENGTH));
  for (const [open, close] of PAIRS) {
    if (!text.startsWith(open)) continue;
    const end = text.indexOf(close, open.length);
    return end < 0 ? -1 : from + end + close.length;
  }
  const end = text.indexOf("$", 1);
  // Two prices, such as "$5 and $10", are not a formula.
  const isFormula =
    /^\$\S/.test(text) &&
    end > 1 &&
    /[^\s\\]/.test(text.charAt(end - 1)) &&
    !/\d/.test(source.charAt(from + end + 1));
  return isFormula ? from + end + 1 : -1;
}

export function keepMaths(markdown: MarkdownIt): void {
  markdown.inline.ruler.before("escape", "maths", (state, silent) => {
    const end = endOfFormula(state.src, state.pos, state.posMax);
    if (end < 0) return false;
    if (!silent) state.push("text_special", "", 0).content = state.src.slice(state.pos, end);
    state.pos = end;
    return true;
  });
  // A formula of several lines, some of which may look like lists or headings.
  markdown.block.ruler.before(
    "fence",
    "maths",
    (state, line, last, silent) => {
      const begin = (state.bMarks[line] ?? 0) + (state.tShift[line] ?? 0);
      const pair = PAIRS.slice(0, 2).find(([open]) => state.src.startsWith(open, begin));
      if (!pair) return false;
      const end = state.src.indexOf(pair[1], begin + 2);
      if (end < 0 || end > (state.eMarks[last - 1] ?? 0)) return false;
      let after = line;
      while (after < last && (state.eMarks[after] ?? 0) < end) after++;
      // Text after the formula makes it part of a paragraph.
      if (state.src.slice(end + 2, state.eMarks[after]).trim() !== "") return false;
      if (silent) return true;
      state.line = after + 1;
      const token = state.push("maths", "", 0);
      token.content = state.getLines(line, after + 1, state.blkIndent, false).trim();
      token.map = [line, after + 1];
      return true;
    },
    { alt: ["paragraph", "blockquote", "list"] },
  );
}
