import { untrack } from "svelte";
import { isNewer } from "./time";

interface Entity {
  id: string;
  updated_at: string;
}

/**
 * What this page knows of a kind of thing. Answers and events reach it in any order, replayed ones
 * too, and it comes out the same: the newest version wins, and what was deleted stays so.
 */
export class Known<T extends Entity> {
  all = $state.raw<ReadonlyMap<string, T>>(new Map());
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  #fetch: () => Promise<T[]>;
  #gone = new Set<string>();
  /** What events told about while an answer was on its way. */
  #heard = new Set<string>();
  #loading: Promise<void> | null = null;
  #person = 0;

  constructor(fetch: () => Promise<T[]>) {
    this.#fetch = fetch;
  }

  load(): Promise<void> {
    this.#loading ??= untrack(() => this.#load()).finally(() => (this.#loading = null));
    return this.#loading;
  }

  /** Loads what has not been loaded yet. */
  want(): void {
    void this.wanted();
  }

  /** The same, for whoever waits for it. */
  async wanted(): Promise<void> {
    if (untrack(() => this.state) !== "ready") await this.load();
  }

  put(...items: T[]): void {
    for (const { id } of items) this.#heard.add(id);
    // Old news makes no copy: a replay brings thousands.
    const news = items.filter((item) => this.#isNews(item));
    if (news.length > 0) this.all = new Map([...this.all, ...news.map((item) => [item.id, item] as const)]);
  }

  drop(id: string): void {
    this.#gone.add(id);
    if (!this.all.has(id)) return;
    const next = new Map(this.all);
    next.delete(id);
    this.all = next;
  }

  #isNews(item: T): boolean {
    const known = this.all.get(item.id);
    return !this.#gone.has(item.id) && (!known || isNewer(item.updated_at, known.updated_at));
  }

  /** For the next person at this tab. */
  forget(): void {
    this.all = new Map();
    this.#gone.clear();
    this.#loading = null;
    this.#person += 1;
    this.state = "loading";
  }

  async #load(): Promise<void> {
    if (this.all.size === 0) this.state = "loading";
    this.#heard.clear();
    const person = this.#person;
    try {
      const items = await this.#fetch();
      if (person !== this.#person) return;
      const there = new Set(items.map((item) => item.id));
      const heard = [...this.all.values()].filter(({ id }) => there.has(id) || this.#heard.has(id));
      this.all = new Map(heard.map((item) => [item.id, item]));
      this.put(...items);
      this.state = "ready";
      this.error = null;
    } catch (error) {
      if (person !== this.#person) return;
      this.error = error;
      this.state = "failed";
    }
  }
}
