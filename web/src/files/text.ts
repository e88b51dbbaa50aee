export interface Text {
  words: string;
  /** It is not UTF-8; this is what it most likely says. */
  guessed: boolean;
}

/** Bytes as text, if they are any. */
export function readText(bytes: ArrayBuffer, type: string): Text | null {
  if (new Uint8Array(bytes).includes(0)) return null;
  try {
    return { words: new TextDecoder("utf-8", { fatal: true }).decode(bytes), guessed: false };
  } catch {
    // Older text of Western Europe, if it calls itself text at all.
    return type.startsWith("text/") ? { words: new TextDecoder("windows-1252").decode(bytes), guessed: true } : null;
  }
}
