// Signing in at an identity provider: there with a challenge, back with a code (RFC 7636).

import type { Provider } from "../api/calls";

/** Kept while the browser is away. */
const KEPT = "atelier.sign_in";

/** What the browser brings back, and what it kept to itself. */
export interface Return {
  code: string;
  verifier: string;
  redirect_uri: string;
}

/** Goes to the provider. The page ends here. */
export async function goTo(provider: Provider): Promise<void> {
  const [verifier, state] = [random(), random()];
  sessionStorage.setItem(KEPT, JSON.stringify({ verifier, state }));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const address = new URL(provider.authorization_endpoint);
  for (const [name, value] of Object.entries({
    response_type: "code",
    client_id: provider.client_id,
    scope: provider.scope,
    redirect_uri: here(),
    state,
    code_challenge: base64(new Uint8Array(digest)),
    code_challenge_method: "S256",
  })) {
    address.searchParams.set(name, value);
  }
  location.assign(address);
}

/** Takes what the provider sent along out of the address; nothing if nobody here asked for it. */
export function takeReturnFromAddress(): Return | null {
  const said = new URLSearchParams(location.search);
  const [code, state] = [said.get("code"), said.get("state")];
  if (!code || !state) return null;
  const redirect_uri = here();
  history.replaceState(null, "", location.pathname + location.hash);
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null") as { verifier: string; state: string } | null;
  sessionStorage.removeItem(KEPT);
  return kept?.state === state ? { code, verifier: kept.verifier, redirect_uri } : null;
}

const here = () => location.origin + location.pathname;
const random = () => base64(crypto.getRandomValues(new Uint8Array(32)));

function base64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
