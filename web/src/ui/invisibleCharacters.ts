// Invisible and direction-changing characters are shown by their code point: nobody should approve text that looks
// different from what it is.

const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

export interface Piece {
  text: string;
  invisible: boolean;
}

/** Splits a text so that each invisible character is a piece of its own. */
export function splitInvisible(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), invisible: false });
    found.push({ text: name(match[0]), invisible: true });
    from = match.index + match[0].length;
  }
  if (from < text.length || found.length === 0)
    found.push({ text: text.slice(from), invisible: false });
  return found;
}

function name(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}
