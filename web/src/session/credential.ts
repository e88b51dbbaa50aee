import type { ProviderCallback } from "./provider";

export type Credential = { code: string } | { token: string } | { provider: ProviderCallback };

/** Recognizes a pasted sign-in link, a code or a token. */
export function readCredential(pasted: string): Credential | null {
  const text = pasted.trim().replace(/^bearer\s+/i, "");
  const code = codeIn(text);
  if (code) return { code };
  if (/^[\w-]+\.[\w-]+\.[\w-]+$/.test(text)) return { token: text };
  return /^[\w-]{1,100}$/.test(text) ? { code: text } : null;
}

/** Takes the one-time code and removes it from the address bar, so that no history or screenshot contains it. */
export function takeSignInCode(): string | null {
  const code = codeIn(location.hash);
  if (code) history.replaceState(null, "", location.pathname + location.search);
  return code;
}

function codeIn(text: string): string | null {
  return /#sign-in=([\w-]+)/.exec(text)?.[1] ?? null;
}
