import { send } from "../api/client";
import { Problem } from "../api/problem";
import { parseDelta, parseEvent, type Delta, type LiveEvent } from "./event";
import { readMessages, type Message } from "./sse";

/** Heartbeats come every 15 s; two missed and the line is dead. */
const SILENCE = 40_000;
/** How much of the past a page begins with. */
const TAIL = 10_000;
const SHORTEST_WAIT = 400;
const LONGEST_WAIT = 15_000;

interface Reader {
  events: (events: LiveEvent[]) => void;
  /** What models are saying at this moment. */
  deltas: (deltas: Delta[]) => void;
  /** The thread is lost: what is known has to be loaded again. */
  reset: () => void;
  /** Connected again after a break; no event was lost. */
  resumed: () => void;
}

/** The one connection of this tab to what happens on the server. Resumes where it left off. */
class Stream {
  state = $state<"connecting" | "live" | "waiting">("connecting");
  #last: string | null = null;
  #stop: AbortController | null = null;
  #hurry: (() => void) | null = null;

  constructor() {
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.retryNow();
    });
  }

  start(reader: Reader): void {
    this.stop();
    this.#stop = new AbortController();
    this.#last = null;
    this.state = "connecting";
    void this.#run(reader, this.#stop.signal);
  }

  stop(): void {
    this.#stop?.abort();
    this.#stop = null;
  }

  /** Ends the wait before the next attempt. */
  retryNow(): void {
    this.#hurry?.();
  }

  async #run(reader: Reader, stop: AbortSignal): Promise<void> {
    let failures = 0;
    let before = false;
    while (!stop.aborted) {
      const began = Date.now();
      try {
        await this.#follow(reader, stop, () => {
          this.state = "live";
          if (before) reader.resumed();
          before = true;
        });
      } catch (error) {
        if (error instanceof Problem && error.status === 401) return;
        if (!stop.aborted) console.info("The event stream broke off; trying again.", error);
      }
      if (stop.aborted) return;
      // A stream that held for a while was fine: the server let go of it, or went away just now.
      failures = Date.now() - began > 5_000 ? 0 : failures + 1;
      this.state = "waiting";
      await this.#wait(failures, stop);
    }
  }

  async #follow(reader: Reader, stop: AbortSignal, connected: () => void): Promise<void> {
    const headers = { accept: "text/event-stream" };
    if (this.#last !== null) Object.assign(headers, { "last-event-id": this.#last });
    const silence = new AbortController();
    let watchdog = setTimeout(() => silence.abort(), SILENCE);
    try {
      const path = this.#last === null ? `/my/events?tail=${TAIL}` : "/my/events";
      const response = await send(path, { headers, signal: AbortSignal.any([stop, silence.signal]) });
      if (!response.body) return;
      connected();
      for await (const messages of readMessages(response.body)) {
        if (stop.aborted) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => silence.abort(), SILENCE);
        this.#deliver(reader, messages);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  #deliver(reader: Reader, messages: Message[]): void {
    let events: LiveEvent[] = [];
    let deltas: Delta[] = [];
    // In the order they came: what is whole puts an end to what was being said.
    const flush = () => {
      if (events.length > 0) reader.events(events);
      if (deltas.length > 0) reader.deltas(deltas);
      [events, deltas] = [[], []];
    };
    for (const message of messages) {
      if (message.name === "STREAM_RESET") {
        [events, deltas] = [[], []];
        reader.reset();
      } else if (message.name === "MESSAGE_DELTA") {
        deltas.push(parseDelta(message));
      } else {
        const event = parseEvent(message);
        if (event && deltas.length > 0) flush();
        if (event) events.push(event);
      }
      if (message.id) this.#last = message.id;
    }
    flush();
  }

  #wait(failures: number, stop: AbortSignal): Promise<void> {
    const longest = Math.min(LONGEST_WAIT, SHORTEST_WAIT * 2 ** Math.min(failures, 10));
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        stop.removeEventListener("abort", done);
        this.#hurry = null;
        resolve();
      };
      // Not all tabs at the same moment.
      const timer = setTimeout(done, longest * (0.5 + Math.random() / 2));
      this.#hurry = done;
      stop.addEventListener("abort", done, { once: true });
    });
  }
}

export const stream = new Stream();
