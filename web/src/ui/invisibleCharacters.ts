// Characters that cannot be seen, or that look like others, are shown by their code point: nobody should approve text
// that looks different from what it is.

import { HIDDEN, LOOKALIKES } from "./hiddenCharacters";

const hidden = HIDDEN.map(([from, to]) => `\\u{${from.toString(16)}}-\\u{${to.toString(16)}}`).join(
  "",
);
const STRICT = new RegExp(`[${hidden}]`, "u");
const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;

/** In prose that nobody approves, spaces and emoji of all kinds stay as they are. */
const IN_PROSE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/u;

export interface Piece {
  text: string;
  invisible: boolean;
}

/** Splits a text so that each character that is shown by its code point is a piece of its own. */
export function splitInvisible(text: string, prose = false): Piece[] {
  const found: Piece[] = [];
  let plain = "";
  let word: string[] = [];
  const keep = () => {
    if (plain) found.push({ text: plain, invisible: false });
    plain = "";
  };
  const add = (character: string, invisible: boolean) => {
    if (!invisible) {
      plain += character;
      return;
    }
    keep();
    found.push({ text: name(character), invisible: true });
  };
  const endWord = () => {
    // A letter of another script is suspicious only among Latin ones.
    const mixed = !prose && word.some((character) => /[A-Za-z]/.test(character));
    for (const character of word)
      add(character, isHidden(character, prose) || (mixed && LOOKALIKES.includes(character)));
    word = [];
  };
  for (const character of text) {
    if (LETTER_OR_DIGIT.test(character)) {
      word.push(character);
      continue;
    }
    endWord();
    add(character, isHidden(character, prose));
  }
  endWord();
  keep();
  return found.length > 0 ? found : [{ text: "", invisible: false }];
}

function isHidden(character: string, prose: boolean): boolean {
  return (prose ? IN_PROSE : STRICT).test(character);
}

function name(character: string): string {
  return `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
}
