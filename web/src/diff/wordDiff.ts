/** A range of characters in a line; `to` is exclusive. */
export interface Span {
  from: number;
  to: number;
}

/** Longer lines are usually minified code, which is not compared word by word. */
const MAX_WORDS = 400;
/** Lines with a smaller common part are treated as unrelated. */
const MIN_SIMILARITY = 0.35;

/** The words that differ between two lines; `null` if the lines are too different. */
export function changedWords(
  before: string,
  after: string,
): { before: Span[]; after: Span[] } | null {
  const [old, fresh] = [split(before), split(after)];
  if (old.length > MAX_WORDS || fresh.length > MAX_WORDS) return null;
  const [keptOld, keptNew] = common(old, fresh);
  const kept = old.filter((word, at) => keptOld[at] && word.trim() !== "").join("").length;
  const most = Math.max(before.replace(/\s/g, "").length, after.replace(/\s/g, "").length);
  if (most === 0 || kept / most < MIN_SIMILARITY) return null;
  return { before: spans(old, keptOld), after: spans(fresh, keptNew) };
}

function split(line: string): string[] {
  return line.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** Marks the words of the longest common subsequence. */
function common(a: string[], b: string[]): [boolean[], boolean[]] {
  const width = b.length + 1;
  const length = new Uint16Array((a.length + 1) * width);
  const at = (i: number, j: number) => length[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i * width + j] =
        a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const [inA, inB] = [a.map(() => false), b.map(() => false)];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) [inA[i++], inB[j++]] = [true, true];
    else if (at(i + 1, j) >= at(i, j + 1)) i++;
    else j++;
  }
  return [inA, inB];
}

/** The ranges of the changed words; adjacent ranges are merged. */
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
