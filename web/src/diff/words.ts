/** From one character of a line to before another. */
export interface Span {
  from: number;
  to: number;
}

/** Longer lines are minified, as a rule: nobody reads them word by word. */
const MOST_WORDS = 400;
/** Lines with less in common than this are two lines, not one that changed. */
const ALIKE = 0.35;

/** Which words differ between two lines; `null` when they have too little in common to say. */
export function changedWords(before: string, after: string): { before: Span[]; after: Span[] } | null {
  const [old, fresh] = [split(before), split(after)];
  if (old.length > MOST_WORDS || fresh.length > MOST_WORDS) return null;
  const [keptOld, keptNew] = common(old, fresh);
  const kept = old.filter((word, at) => keptOld[at] && word.trim() !== "").join("").length;
  const most = Math.max(before.replace(/\s/g, "").length, after.replace(/\s/g, "").length);
  if (most === 0 || kept / most < ALIKE) return null;
  return { before: spans(old, keptOld), after: spans(fresh, keptNew) };
}

function split(line: string): string[] {
  return line.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** Which words belong to the longest common subsequence. */
function common(a: string[], b: string[]): [boolean[], boolean[]] {
  const width = b.length + 1;
  const length = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number) => length[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const [inA, inB] = [a.map(() => false), b.map(() => false)];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) [inA[i++], inB[j++]] = [true, true];
    else if (at(i + 1, j) >= at(i, j + 1)) i++;
    else j++;
  }
  return [inA, inB];
}

/** The words that are not kept, neighbours joined. */
function spans(words: string[], kept: boolean[]): Span[] {
  const found: Span[] = [];
  let from = 0;
  words.forEach((word, index) => {
    const last = found.at(-1);
    if (!kept[index]) {
      if (last?.to === from) last.to += word.length;
      else found.push({ from, to: from + word.length });
    }
    from += word.length;
  });
  return found;
}
