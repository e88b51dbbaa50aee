import type { Token } from "./highlight";
import type { Span } from "./wordDiff";

/** A piece of a line with uniform highlighting. */
export interface Segment {
  text: string;
  kind: string;
  changed: boolean;
}

/** Splits a line at the boundaries of its tokens and changed words. */
export function segments(
  text: string,
  tokens: readonly Token[],
  marks: readonly Span[],
): Segment[] {
  const edges = new Set([0, text.length]);
  for (const { from, to } of [...tokens, ...marks]) edges.add(from).add(to);
  const sorted = [...edges].filter((edge) => edge <= text.length).sort((a, b) => a - b);
  return sorted.slice(0, -1).map((from, index) => {
    const inside = ({ from: begin, to }: Span) => begin <= from && from < to;
    return {
      text: text.slice(from, sorted[index + 1]),
      kind: tokens.find(inside)?.kind ?? "",
      changed: marks.some(inside),
    };
  });
}
