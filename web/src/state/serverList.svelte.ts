import { untrack } from "svelte";
import { detached } from "./detached.svelte";
import { Loader } from "./loader";

/** A short list that is always loaded as a whole; events only tell that it changed. */
export class ServerList<T> {
  list = $state.raw<readonly T[]>([]);
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  #loader: Loader;
  #inUse = false;

  constructor(fetch: () => Promise<readonly T[]>) {
    this.#loader = new Loader(async () => {
      try {
        this.list = await fetch();
        this.error = null;
        this.state = "ready";
      } catch (error) {
        this.error = error;
        this.state = "failed";
      }
    });
  }

  /** Loads the list on first use; from then on `refresh` keeps it up to date. */
  ensureLoaded(): void {
    if (this.#inUse && untrack(() => this.state) !== "failed") return;
    this.#inUse = true;
    void untrack(() => this.load());
  }

  /** Loads the list again if a page has used it. */
  refresh(): void {
    if (this.#inUse) void this.load();
  }

  load(): Promise<void> {
    return this.#loader.load();
  }
}

/** One list for each project, created on first use. */
export class ServerListByProject<T> {
  #lists = new Map<string, ServerList<T>>();
  #fetch: (project: string) => Promise<readonly T[]>;

  constructor(fetch: (project: string) => Promise<readonly T[]>) {
    this.#fetch = fetch;
  }

  of(project: string): ServerList<T> {
    let list = this.#lists.get(project);
    if (!list) {
      list = detached(() => new ServerList(() => this.#fetch(project)));
      this.#lists.set(project, list);
    }
    return list;
  }

  refresh(project: string): void {
    this.#lists.get(project)?.refresh();
  }

  refreshAll(): void {
    for (const list of this.#lists.values()) list.refresh();
  }

  clear(project?: string): void {
    if (project) this.#lists.delete(project);
    else this.#lists.clear();
  }
}
