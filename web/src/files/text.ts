export interface Text {
  content: string;
  /** The bytes were not UTF-8, so the encoding is a guess. */
  guessed: boolean;
}

/** Decodes bytes as text; `null` if they are not text. */
export function readText(bytes: ArrayBuffer, type: string): Text | null {
  if (new Uint8Array(bytes).includes(0)) return null;
  try {
    return { content: new TextDecoder("utf-8", { fatal: true }).decode(bytes), guessed: false };
  } catch {
    // Text that is not UTF-8 is most likely Windows-1252.
    return type.startsWith("text/")
      ? { content: new TextDecoder("windows-1252").decode(bytes), guessed: true }
      : null;
  }
}
