import * as api from "../api/calls";
import { authority } from "../api/client";
import { Problem } from "../api/problem";
import type { Credential } from "./credential";

/** The session storage key of the token: it is kept until the tab is closed. */
const KEY = "atelier.token";
const MINUTE = 60_000;
/** The longest delay that `setTimeout` supports. */
const MAX_DELAY = 2 ** 31 - 1;

type Ended = { why: "signed_out" } | { why: "refused"; detail: string };

/** The sign-in session of this tab: who is signed in, and until when. */
class Session {
  state = $state<"starting" | "unreachable" | "out" | "in" | "leaving">("starting");
  me = $state.raw<api.Me | null>(null);
  ended = $state.raw<Ended | null>(null);
  #over = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** The credential from the address, kept for another attempt. */
  #fromAddress: Credential | null = null;

  constructor() {
    authority.refused = (token, problem) => {
      // A response to an earlier token says nothing about the current one.
      if (token === authority.token) this.#end({ why: "refused", detail: problem.message });
    };
    // Timers stop while the computer sleeps, so the renewal is scheduled again on waking.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.me) this.#schedule(this.me.expires_at);
    });
  }

  /** Signs in with the credential from the address, or with the token that this tab has stored. */
  async start(fromAddress: Credential | null): Promise<void> {
    const kept = sessionStorage.getItem(KEY);
    this.#fromAddress = fromAddress;
    if (!fromAddress && !kept) {
      this.state = "out";
      return;
    }
    this.state = "starting";
    try {
      await this.signIn(fromAddress ?? { token: kept ?? "" });
    } catch (error) {
      if (!isRefusal(error)) this.state = "unreachable";
      else if (fromAddress && kept) await this.start(null);
      else this.#end({ why: "refused", detail: error.message });
    }
  }

  /** Tries again after the server was unreachable. */
  retry(): Promise<void> {
    return this.start(this.#fromAddress);
  }

  /** Throws when the server does not accept the credential. */
  async signIn(credential: Credential): Promise<void> {
    const token = await tokenFor(credential);
    this.me = await api.me(token);
    this.#use(token);
    this.#schedule(this.me.expires_at);
    this.ended = null;
    this.state = "in";
  }

  async signOut(): Promise<void> {
    const { token } = authority;
    this.state = "leaving";
    this.#drop();
    try {
      if (token) await api.revoke(token);
    } catch {
      // The token expires by itself; the user is signed out of this tab in any case.
    }
    this.#end({ why: "signed_out" });
  }

  /** Ends all sessions of the user. Throws when the server does not do it: then nothing has ended. */
  async signOutEverywhere(): Promise<void> {
    await api.signOutEverywhere();
    this.#end({ why: "signed_out" });
  }

  #end(ended: Ended): void {
    this.#drop();
    this.me = null;
    this.ended = ended;
    this.state = "out";
  }

  /** Deletes the token and aborts the requests that use it. */
  #drop(): void {
    clearTimeout(this.#timer);
    this.#over.abort();
    authority.token = null;
    sessionStorage.removeItem(KEY);
  }

  #use(token: string): void {
    if (this.#over.signal.aborted) this.#over = new AbortController();
    authority.until = this.#over.signal;
    authority.token = token;
    sessionStorage.setItem(KEY, token);
  }

  /** Renews the token after four fifths of its remaining time, at the latest one minute before it expires. */
  #schedule(expiresAt: string): void {
    clearTimeout(this.#timer);
    const left = Date.parse(expiresAt) - Date.now();
    const wait = Math.max(0, Math.min(left * 0.8, left - MINUTE));
    this.#timer = setTimeout(() => void this.#renew(), Math.min(wait, MAX_DELAY));
  }

  async #renew(): Promise<void> {
    const { me } = this;
    if (!me || Date.parse(me.expires_at) - Date.now() > MAX_DELAY) return;
    try {
      const { token, expires_at } = await api.refresh();
      this.#use(token);
      this.me = { ...me, expires_at };
      this.#schedule(expires_at);
    } catch (error) {
      // The server cannot renew an identity provider's token (403): it is used until it expires.
      if (isRefusal(error)) return;
      this.#timer = setTimeout(() => void this.#renew(), MINUTE / 4);
    }
  }
}

/**
 * Whether the server rejected the credential. Other errors, such as a server that is starting or overloaded, are no
 * reason to delete the token.
 */
function isRefusal(error: unknown): error is Problem {
  return error instanceof Problem && [400, 401, 403, 422].includes(error.status);
}

async function tokenFor(credential: Credential): Promise<string> {
  if ("token" in credential) return credential.token;
  const answer =
    "back" in credential ? api.signInBack(credential.back) : api.signIn(credential.code);
  return (await answer).token;
}

export const session = new Session();
