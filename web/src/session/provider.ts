// Sign-in through an identity provider, by authorization code with PKCE (RFC 7636).

import type { Provider } from "../api/calls";

/** The session storage key of the PKCE verifier and state. */
const STORAGE_KEY = "atelier.sign_in";

/** The code from the provider, and what the server needs to redeem it. */
export interface ProviderCallback {
  code: string;
  verifier: string;
  redirect_uri: string;
}

/** Leaves the console for the provider's sign-in page. */
export async function redirectToProvider(provider: Provider): Promise<void> {
  const [verifier, state] = [random(), random()];
  sessionStorage.setItem(STORAGE_KEY, JSON.stringify({ verifier, state }));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const address = new URL(provider.authorization_endpoint);
  for (const [name, value] of Object.entries({
    response_type: "code",
    client_id: provider.client_id,
    scope: provider.scope,
    redirect_uri: redirectUri(),
    state,
    code_challenge: base64(new Uint8Array(digest)),
    code_challenge_method: "S256",
  })) {
    address.searchParams.set(name, value);
  }
  location.assign(address);
}

/** Takes the provider's code and removes it from the address; `null` if this tab did not start the sign-in. */
export function takeProviderCallback(): ProviderCallback | null {
  const query = new URLSearchParams(location.search);
  const [code, state] = [query.get("code"), query.get("state")];
  if (!code || !state) return null;
  const redirect_uri = redirectUri();
  history.replaceState(null, "", location.pathname + location.hash);
  const kept = JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "null") as {
    verifier: string;
    state: string;
  } | null;
  sessionStorage.removeItem(STORAGE_KEY);
  return kept?.state === state ? { code, verifier: kept.verifier, redirect_uri } : null;
}

const redirectUri = () => location.origin + location.pathname;
const random = () => base64(crypto.getRandomValues(new Uint8Array(32)));

function base64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
