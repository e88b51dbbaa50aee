import * as api from "../api/calls";
import { authority } from "../api/client";
import { Problem } from "../api/problem";
import type { Credential } from "./credential";

/** Where a token may rest: this tab, until it is closed. */
const KEY = "atelier.token";
const MINUTE = 60_000;
/** The longest that `setTimeout` can count to. */
const FOREVER = 2 ** 31 - 1;

type Ended = { why: "signed_out" } | { why: "refused"; detail: string };

/** Who is signed in at this tab, and for how long. */
class Session {
  state = $state<"starting" | "unreachable" | "out" | "in" | "leaving">("starting");
  me = $state.raw<api.Me | null>(null);
  ended = $state.raw<Ended | null>(null);
  #over = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** What the address brought, as long as the server has not answered to it. */
  #brought: Credential | null = null;

  constructor() {
    authority.refused = (token, problem) => {
      // An answer to an older token says nothing about the present one.
      if (token === authority.token) this.#end({ why: "refused", detail: problem.message });
    };
    // Timers sleep with the machine; a look at the clock on waking makes up for it.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.me) this.#schedule(this.me.expires_at);
    });
  }

  /** Signs in with what the address brought, or goes on with what this tab had. */
  async start(brought: Credential | null): Promise<void> {
    const kept = sessionStorage.getItem(KEY);
    this.#brought = brought;
    if (!brought && !kept) {
      this.state = "out";
      return;
    }
    this.state = "starting";
    try {
      await this.signIn(brought ?? { token: kept ?? "" });
    } catch (error) {
      if (!isRefusal(error)) this.state = "unreachable";
      else if (brought && kept) await this.start(null);
      else this.#end({ why: "refused", detail: error.message });
    }
  }

  /** Once more, after the server was not there. */
  retry(): Promise<void> {
    return this.start(this.#brought);
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
      // It runs out by itself; the person at this tab is signed out in any case.
    }
    this.#end({ why: "signed_out" });
  }

  #end(ended: Ended): void {
    this.#drop();
    this.me = null;
    this.ended = ended;
    this.state = "out";
  }

  /** Lets go of the token, and of whatever was asked with it. */
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

  /** Renews at four fifths of what is left, and not later than a minute before the end. */
  #schedule(expiresAt: string): void {
    clearTimeout(this.#timer);
    const left = Date.parse(expiresAt) - Date.now();
    const wait = Math.max(0, Math.min(left * 0.8, left - MINUTE));
    this.#timer = setTimeout(() => void this.#renew(), Math.min(wait, FOREVER));
  }

  async #renew(): Promise<void> {
    const { me } = this;
    if (!me || Date.parse(me.expires_at) - Date.now() > FOREVER) return;
    try {
      const { token, expires_at } = await api.refresh();
      this.#use(token);
      this.me = { ...me, expires_at };
      this.#schedule(expires_at);
    } catch (error) {
      // An identity provider's token is not ours to renew (403): it is used until it ends.
      if (isRefusal(error)) return;
      this.#timer = setTimeout(() => void this.#renew(), MINUTE / 4);
    }
  }
}

/**
 * Whether the server said no to what somebody showed it. Anything else is no reason to throw a token away: a server that
 * starts, one with too much to do, a proxy with nothing behind it.
 */
function isRefusal(error: unknown): error is Problem {
  return error instanceof Problem && [400, 401, 403, 422].includes(error.status);
}

async function tokenFor(credential: Credential): Promise<string> {
  if ("token" in credential) return credential.token;
  const answer = "back" in credential ? api.signInBack(credential.back) : api.signIn(credential.code);
  return (await answer).token;
}

export const session = new Session();
