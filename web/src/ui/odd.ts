// Characters that a reader cannot see, or that make text look like other text: a person must not approve
// what they cannot read. They are shown by their number instead.

const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

export interface Piece {
  text: string;
  odd: boolean;
}

/** The text in pieces, odd characters apart. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(ODD)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), odd: false });
    found.push({ text: name(match[0]), odd: true });
    from = match.index + match[0].length;
  }
  if (from < text.length || found.length === 0) found.push({ text: text.slice(from), odd: false });
  return found;
}

function name(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}
