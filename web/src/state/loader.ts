/**
 * Runs at most one load at a time. A load that is requested during another one starts after it, because the response
 * under way may be older than the reason for the request. The load function handles its own errors.
 */
export class Loader {
  #load: () => Promise<void>;
  #running: Promise<void> | null = null;
  #again = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(load: () => Promise<void>) {
    this.#load = load;
  }

  get isLoading(): boolean {
    return this.#running !== null;
  }

  /** Loads now or, if a load is under way, once more after it. Resolves when nothing is left to load. */
  load(): Promise<void> {
    this.cancel();
    this.#again = true;
    this.#running ??= this.#run();
    return this.#running;
  }

  /** Loads after a while. Further requests until then need no load of their own. */
  loadSoon(delayMs: number): void {
    this.#timer ??= setTimeout(() => void this.load(), delayMs);
  }

  /** Forgets the load that was to start after a while. */
  cancel(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Waits for the load under way; starts one if there is none. */
  join(): Promise<void> {
    return this.#running ?? this.load();
  }

  async #run(): Promise<void> {
    try {
      while (this.#again) {
        this.#again = false;
        await this.#load();
      }
    } finally {
      this.#running = null;
    }
  }
}

interface ItemLoaderOptions<T> {
  key: (item: T) => string;
  /** Loads one item. It handles its own errors. */
  load: (item: T) => Promise<void>;
  /** How long requests are collected: events come in bursts. */
  delayMs: number;
  maxParallel?: number;
}

/**
 * Loads items soon after they are requested, each at most once at a time. An item that is requested while it is being
 * loaded is loaded again afterwards.
 */
export class ItemLoader<T> {
  #options: ItemLoaderOptions<T>;
  #requested = new Map<string, T>();
  #loading = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #paused = false;

  constructor(options: ItemLoaderOptions<T>) {
    this.#options = options;
  }

  request(item: T): void {
    this.#requested.set(this.#options.key(item), item);
    this.#schedule();
  }

  /** Whether an item is still to be loaded, so that a response under way is out of date. */
  isRequested(key: string): boolean {
    return this.#requested.has(key);
  }

  cancel(key: string): void {
    this.#requested.delete(key);
  }

  clear(): void {
    this.#requested.clear();
    this.#stopTimer();
  }

  /** Collects requests without loading until `resume` is called. */
  pause(): void {
    this.#paused = true;
    this.#stopTimer();
  }

  resume(): void {
    this.#paused = false;
    this.#schedule();
  }

  #stopTimer(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #schedule(): void {
    if (this.#paused || this.#requested.size === 0) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.#start();
    }, this.#options.delayMs);
  }

  #start(): void {
    const { load, maxParallel = Infinity } = this.#options;
    for (const [key, item] of this.#requested) {
      if (this.#loading.size >= maxParallel) return;
      if (this.#loading.has(key)) continue;
      this.#requested.delete(key);
      this.#loading.add(key);
      void load(item).finally(() => {
        this.#loading.delete(key);
        this.#schedule();
      });
    }
  }
}
