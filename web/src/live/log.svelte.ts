import type { LiveEvent } from "./event";

/** How many events a tab keeps; older events are dropped. */
const MAX_EVENTS = 10_000;

/** The most recent events of all projects, oldest first. */
class EventLog {
  events = $state.raw<readonly LiveEvent[]>([]);
  /** Whether older events are missing, here or on the server. */
  truncated = $state(false);
  #arrived: LiveEvent[] = [];
  #scheduled = false;

  append(events: LiveEvent[]): void {
    this.#arrived.push(...events);
    // A hidden tab may not render for days, so the backlog is limited.
    if (this.#arrived.length > 2 * MAX_EVENTS) this.#arrived = this.#arrived.slice(-MAX_EVENTS - 1);
    if (this.#scheduled) return;
    // At most one update per frame, because a replay brings thousands of events.
    this.#scheduled = true;
    requestAnimationFrame(() => this.#publish());
  }

  clear(truncated: boolean): void {
    this.#arrived = [];
    this.events = [];
    this.truncated = truncated;
  }

  #publish(): void {
    this.#scheduled = false;
    const all = [...this.events, ...this.#arrived];
    this.#arrived = [];
    if (all.length > MAX_EVENTS) this.truncated = true;
    this.events = all.slice(-MAX_EVENTS);
  }
}

export const log = new EventLog();
