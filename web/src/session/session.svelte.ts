import * as api from "../api/calls";
import { authority } from "../api/client";
import { Problem } from "../api/problem";
import type { Credential } from "./credential";
import { forget, keep, onChangeElsewhere, readKept } from "./kept";

/** The longest delay that `setTimeout` supports. */
const MAX_DELAY = 2 ** 31 - 1;
/** A session that ends sooner than this is not renewed any more. */
const TOO_LATE = 2_000;
const RETRY_AFTER = 15_000;

type Ended = { why: "signed_out" } | { why: "refused"; detail: string };

/** The sign-in session of this browser: who is signed in, and until when. */
class Session {
  state = $state<"starting" | "unreachable" | "link" | "out" | "in" | "leaving">("starting");
  me = $state.raw<api.Me | null>(null);
  ended = $state.raw<Ended | null>(null);
  #over = new AbortController();
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** The credential from the address, kept for another attempt. */
  #fromAddress: Credential | null = null;

  constructor() {
    authority.refused = (key, problem) => {
      // A response to an earlier session says nothing about the current one.
      if (key === authority.key) this.#end({ why: "refused", detail: problem.message });
    };
    // Timers stop while the computer sleeps, so the renewal is scheduled again on waking.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.me) this.#schedule();
    });
    onChangeElsewhere(() => this.#follow());
  }

  /** Signs in with the credential from the address, or goes on with the session of this browser. */
  async start(fromAddress: Credential | null): Promise<void> {
    this.#fromAddress = fromAddress;
    // Anybody can send a link, so it is used only if the person wants it.
    if (fromAddress && "code" in fromAddress) {
      this.#suspend();
      this.state = "link";
    } else await this.#start(fromAddress);
  }

  async #start(fromAddress: Credential | null): Promise<void> {
    const kept = readKept();
    if (!fromAddress && !kept) {
      this.state = "out";
      return;
    }
    this.state = "starting";
    try {
      if (fromAddress) await this.signIn(fromAddress);
      else if (kept) await this.#goOn(kept.key);
    } catch (error) {
      if (!isRefusal(error)) this.state = "unreachable";
      else if (fromAddress && kept) await this.#start(null);
      else this.#end({ why: "refused", detail: error.message });
    }
  }

  /** Whether this browser is signed in already, while it is asked about a link. */
  get isKept(): boolean {
    return readKept() !== null;
  }

  /** Uses the link that this page was opened with, or leaves it unused. */
  async decideLink(use: boolean): Promise<void> {
    if (!use) this.#fromAddress = null;
    await this.#start(this.#fromAddress);
  }

  /** Tries again after the server was unreachable. */
  retry(): Promise<void> {
    return this.#start(this.#fromAddress);
  }

  /** Throws when the server does not accept the credential. */
  async signIn(credential: Credential): Promise<void> {
    // The server ends the session that this browser had before.
    const { key, expires_at } = await api.signIn(credential, readKept()?.key ?? null);
    keep({ key, renewAt: renewAt(expires_at) });
    this.#fromAddress = null;
    await this.#goOn(key);
  }

  async signOut(): Promise<void> {
    const { key } = authority;
    this.state = "leaving";
    this.#drop();
    try {
      if (key) await api.signOut(key);
    } catch {
      // Without its key, the cookie is of no use to anybody; the session expires by itself.
    }
    this.#end({ why: "signed_out" });
  }

  /** Ends all sessions of the user. Throws when the server does not do it: then nothing has ended. */
  async signOutEverywhere(): Promise<void> {
    await api.signOutEverywhere();
    this.#end({ why: "signed_out" });
  }

  async #goOn(key: string): Promise<void> {
    if (this.#over.signal.aborted) this.#over = new AbortController();
    authority.until = this.#over.signal;
    authority.key = key;
    this.me = await api.me();
    this.#schedule();
    this.ended = null;
    this.state = "in";
  }

  /** Another tab of this browser has signed in or out. */
  #follow(): void {
    const kept = readKept();
    if (kept?.key === authority.key) return;
    if (!kept && this.state === "in") this.#end({ why: "signed_out" });
    else if (kept && this.state === "out") void this.#start(null);
    // It may be somebody else: nothing of the former person stays.
    else if (kept && this.state === "in") location.reload();
  }

  #end(ended: Ended): void {
    this.#drop();
    this.me = null;
    this.ended = ended;
    this.state = "out";
  }

  /** Forgets the session and aborts the requests that use it. */
  #drop(): void {
    if (authority.key) forget(authority.key);
    this.#suspend();
  }

  #suspend(): void {
    clearTimeout(this.#timer);
    this.#over.abort();
    authority.key = null;
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    const kept = readKept();
    if (!kept) return;
    const wait = Math.max(0, kept.renewAt - Date.now());
    this.#timer = setTimeout(() => void this.#renew(), Math.min(wait, MAX_DELAY));
  }

  async #renew(): Promise<void> {
    const kept = readKept();
    if (!this.me || kept?.key !== authority.key) return;
    // Another tab has done it, or the timer could not wait that long.
    if (kept.renewAt > Date.now()) return this.#schedule();
    try {
      const { key, expires_at } = await api.renew();
      keep({ key, renewAt: renewAt(expires_at) });
      this.me = { ...this.me, expires_at };
      if (Date.parse(expires_at) - Date.now() > TOO_LATE) this.#schedule();
    } catch (error) {
      if (isRefusal(error)) return;
      this.#timer = setTimeout(() => void this.#renew(), RETRY_AFTER);
    }
  }
}

/** Half of the time that is left, so that a browser that is used now and then stays signed in. */
function renewAt(expiresAt: string): number {
  const now = Date.now();
  return now + (Date.parse(expiresAt) - now) / 2;
}

/**
 * Whether the server rejected the credential. Other errors, such as a server that is starting or overloaded, are no
 * reason to forget the session.
 */
function isRefusal(error: unknown): error is Problem {
  return error instanceof Problem && [400, 401, 403, 422].includes(error.status);
}

export const session = new Session();
