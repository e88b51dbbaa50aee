import { send } from "../api/client";
import { Problem } from "../api/problem";
import {
  parseDelta,
  parseEvent,
  parseOutput,
  type Delta,
  type LiveEvent,
  type ToolOutput,
} from "./event";
import { readMessages, type Message } from "./sse";

/** Heartbeats come every 15 s; after two missed ones the connection is considered dead. */
const HEARTBEAT_TIMEOUT_MS = 40_000;
/** How many past events a new page requests. */
const TAIL = 10_000;
const MIN_WAIT_MS = 400;
const MAX_WAIT_MS = 15_000;

interface Reader {
  events: (events: LiveEvent[]) => void;
  /** Pieces of text that models are writing at this moment. */
  deltas: (deltas: Delta[]) => void;
  /** What running commands have just printed. */
  output: (output: ToolOutput) => void;
  /** The server no longer has the missed events: everything has to be loaded again. */
  reset: () => void;
  /** Connected again after an interruption; no event was missed. */
  resumed: () => void;
}

/** The only event stream of this tab. After an interruption it resumes at the last event. */
class Stream {
  state = $state<"connecting" | "live" | "waiting">("connecting");
  #last: string | null = null;
  #stop: AbortController | null = null;
  #skipWait: (() => void) | null = null;

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

  /** Skips the wait before the next attempt. */
  retryNow(): void {
    this.#skipWait?.();
  }

  async #run(reader: Reader, stop: AbortSignal): Promise<void> {
    let failures = 0;
    let connectedBefore = false;
    while (!stop.aborted) {
      const began = Date.now();
      try {
        await this.#follow(reader, stop, () => {
          this.state = "live";
          if (connectedBefore) reader.resumed();
          connectedBefore = true;
        });
      } catch (error) {
        if (error instanceof Problem && error.status === 401) return;
        if (!stop.aborted) console.info("The event stream broke off; trying again.", error);
      }
      if (stop.aborted) return;
      // A stream that lasted for a while was working, so the next attempt starts without backoff.
      failures = Date.now() - began > 5_000 ? 0 : failures + 1;
      this.state = "waiting";
      await this.#wait(failures, stop);
    }
  }

  async #follow(reader: Reader, stop: AbortSignal, connected: () => void): Promise<void> {
    const headers = { accept: "text/event-stream" };
    if (this.#last !== null) Object.assign(headers, { "last-event-id": this.#last });
    const silence = new AbortController();
    let watchdog = setTimeout(() => silence.abort(), HEARTBEAT_TIMEOUT_MS);
    try {
      const path = this.#last === null ? `/my/events?tail=${TAIL}` : "/my/events";
      const response = await send(path, {
        headers,
        signal: AbortSignal.any([stop, silence.signal]),
      });
      if (!response.body) return;
      connected();
      for await (const messages of readMessages(response.body)) {
        if (stop.aborted) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => silence.abort(), HEARTBEAT_TIMEOUT_MS);
        this.#deliver(reader, messages);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  #deliver(reader: Reader, messages: Message[]): void {
    let events: LiveEvent[] = [];
    let deltas: Delta[] = [];
    // Delivered in order, because an event with the complete message ends its deltas.
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
      } else if (message.name === "TOOL_OUTPUT") {
        // After the events so far: one of them may say that the call has begun.
        flush();
        reader.output(parseOutput(message));
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
    const longest = Math.min(MAX_WAIT_MS, MIN_WAIT_MS * 2 ** Math.min(failures, 10));
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        stop.removeEventListener("abort", done);
        this.#skipWait = null;
        resolve();
      };
      // Random, so that not all tabs reconnect at the same moment.
      const timer = setTimeout(done, longest * (0.5 + Math.random() / 2));
      this.#skipWait = done;
      stop.addEventListener("abort", done, { once: true });
    });
  }
}

export const stream = new Stream();
