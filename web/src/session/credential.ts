import type { Return } from "./provider";

export type Credential = { code: string } | { token: string } | { back: Return };

/** Understands what a person pastes: the whole sign-in link, its code alone, or a token. */
export function readCredential(pasted: string): Credential | null {
  const text = pasted.trim().replace(/^bearer\s+/i, "");
  const code = codeIn(text);
  if (code) return { code };
  if (/^[\w-]+\.[\w-]+\.[\w-]+$/.test(text)) return { token: text };
  return /^[\w-]{1,100}$/.test(text) ? { code: text } : null;
}

/** Takes the one-time code out of the address bar, so that it stays in no history and no screenshot. */
export function takeCodeFromAddress(): string | null {
  const code = codeIn(location.hash);
  if (code) history.replaceState(null, "", location.pathname + location.search);
  return code;
}

function codeIn(text: string): string | null {
  return /#sign-in=([\w-]+)/.exec(text)?.[1] ?? null;
}
