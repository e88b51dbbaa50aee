import type { Token } from "./highlight";
import type { Span } from "./words";

/** A piece of a line that looks the same from end to end. */
export interface Segment {
  text: string;
  kind: string;
  changed: boolean;
}

/** Cuts a line wherever its language or its change begins or ends. */
export function segments(text: string, tokens: readonly Token[], marks: readonly Span[]): Segment[] {
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
