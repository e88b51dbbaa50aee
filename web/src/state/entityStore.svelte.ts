import { untrack } from "svelte";
import { Loader } from "./loader";
import { isNewer } from "./time";

interface Entity {
  id: string;
  updated_at: string;
}

/**
 * All entities of one kind, such as projects. Responses and events, replayed ones too, may arrive in any order: the
 * newest version of an entity wins, and a deleted entity stays deleted.
 */
export class EntityStore<T extends Entity> {
  all = $state.raw<ReadonlyMap<string, T>>(new Map());
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  #fetch: () => Promise<T[]>;
  #loader = new Loader(() => untrack(() => this.#load()));
  #deleted = new Set<string>();
  /** Ids of the entities that events brought while a response was under way. */
  #changed = new Set<string>();
  /** Incremented at sign-out, so that responses for the previous user are ignored. */
  #generation = 0;

  constructor(fetch: () => Promise<T[]>) {
    this.#fetch = fetch;
  }

  load(): Promise<void> {
    return this.#loader.load();
  }

  /** Loads the entities unless they are loaded already. */
  ensureLoaded(): void {
    void this.whenLoaded();
  }

  /** Resolves when the entities are loaded or loading them has failed. */
  async whenLoaded(): Promise<void> {
    if (untrack(() => this.state) !== "ready") await this.#loader.join();
  }

  put(...items: T[]): void {
    for (const { id } of items) this.#changed.add(id);
    // Outdated entities cause no copy of the map: a replay brings thousands.
    const news = items.filter((item) => this.#isNews(item));
    if (news.length > 0)
      this.all = new Map([...this.all, ...news.map((item) => [item.id, item] as const)]);
  }

  drop(id: string): void {
    this.#deleted.add(id);
    if (!this.all.has(id)) return;
    const next = new Map(this.all);
    next.delete(id);
    this.all = next;
  }

  #isNews(item: T): boolean {
    const known = this.all.get(item.id);
    return !this.#deleted.has(item.id) && (!known || isNewer(item.updated_at, known.updated_at));
  }

  /** Forgets everything, for the next user of this tab. */
  clear(): void {
    this.all = new Map();
    this.#deleted.clear();
    this.#generation += 1;
    this.state = "loading";
  }

  async #load(): Promise<void> {
    if (this.all.size === 0) this.state = "loading";
    this.#changed.clear();
    const generation = this.#generation;
    try {
      const items = await this.#fetch();
      if (generation !== this.#generation) return;
      const present = new Set(items.map((item) => item.id));
      const kept = [...this.all.values()].filter(
        ({ id }) => present.has(id) || this.#changed.has(id),
      );
      this.all = new Map(kept.map((item) => [item.id, item]));
      this.put(...items);
      this.state = "ready";
      this.error = null;
    } catch (error) {
      if (generation !== this.#generation) return;
      this.error = error;
      this.state = "failed";
    }
  }
}
