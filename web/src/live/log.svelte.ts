import type { LiveEvent } from "./event";

/** How many events a tab keeps; older ones make room. */
const KEPT = 10_000;

/** The last events of all projects, oldest first. */
class EventLog {
  events = $state.raw<readonly LiveEvent[]>([]);
  /** Events before the first one shown are gone, from here or from the server. */
  cut = $state(false);
  #arrived: LiveEvent[] = [];
  #painting = false;

  append(events: LiveEvent[]): void {
    this.#arrived.push(...events);
    // A hidden tab paints nothing, for days perhaps.
    if (this.#arrived.length > 2 * KEPT) this.#arrived = this.#arrived.slice(-KEPT - 1);
    if (this.#painting) return;
    // One new list a frame, however many arrive: a replay brings thousands.
    this.#painting = true;
    requestAnimationFrame(() => this.#publish());
  }

  clear(cut: boolean): void {
    this.#arrived = [];
    this.events = [];
    this.cut = cut;
  }

  #publish(): void {
    this.#painting = false;
    const all = [...this.events, ...this.#arrived];
    this.#arrived = [];
    if (all.length > KEPT) this.cut = true;
    this.events = all.slice(-KEPT);
  }
}

export const log = new EventLog();
