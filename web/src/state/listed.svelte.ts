import { untrack } from "svelte";
import { detached } from "./detached.svelte";

/** A short list that the server tells whole; events only say that it changed. */
export class Listed<T> {
  list = $state.raw<readonly T[]>([]);
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  #fetch: () => Promise<readonly T[]>;
  #loading = false;
  #again = false;
  #wanted = false;

  constructor(fetch: () => Promise<readonly T[]>) {
    this.#fetch = fetch;
  }

  /** Loads it for whoever looks; from then on it is kept up to date. */
  want(): void {
    if (this.#wanted && untrack(() => this.state) !== "failed") return;
    this.#wanted = true;
    void untrack(() => this.load());
  }

  changed(): void {
    if (this.#wanted) void this.load();
  }

  async load(): Promise<void> {
    // An answer on its way may be older than what was just heard.
    this.#again = true;
    if (this.#loading) return;
    this.#loading = true;
    while (this.#again) {
      this.#again = false;
      try {
        this.list = await this.#fetch();
        this.error = null;
        this.state = "ready";
      } catch (error) {
        this.error = error;
        this.state = "failed";
      }
    }
    this.#loading = false;
  }
}

/** One list a project, made when somebody looks. */
export class ListedByProject<T> {
  #lists = new Map<string, Listed<T>>();
  #fetch: (project: string) => Promise<readonly T[]>;

  constructor(fetch: (project: string) => Promise<readonly T[]>) {
    this.#fetch = fetch;
  }

  of(project: string): Listed<T> {
    let list = this.#lists.get(project);
    if (!list) {
      list = detached(() => new Listed(() => this.#fetch(project)));
      this.#lists.set(project, list);
    }
    return list;
  }

  changed(project: string): void {
    this.#lists.get(project)?.changed();
  }

  allChanged(): void {
    for (const list of this.#lists.values()) list.changed();
  }

  forget(project?: string): void {
    if (project) this.#lists.delete(project);
    else this.#lists.clear();
  }
}
