import * as api from "../api/calls";
import { isNewer } from "./time";

/** Looking counts as use, so the page looks seldom. */
const PAUSE = 2_000;

/** The worker space of the project on show. */
export class Space {
  report = $state.raw<api.WorkerSpace | null>(null);
  /** When the report was taken, by this machine's clock. */
  seen = $state(0);
  /** Why there is none at present. The next request to the project would make one. */
  closed = $state.raw<{ reason: api.CloseReason; at: string } | null>(null);
  error = $state.raw<unknown>(null);
  readonly project: string;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(project: string) {
    this.project = project;
  }

  async load(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    try {
      this.#show(await api.workerSpace(this.project));
    } catch (error) {
      this.error = error;
    }
  }

  async reset(): Promise<void> {
    this.#show(await api.resetWorkerSpace(this.project));
  }

  async end(): Promise<void> {
    await api.endSession(this.project);
  }

  /** An event told that it is gone. */
  close(reason: api.CloseReason, at: string): void {
    // A replay also tells of earlier ones.
    if (!this.report || isNewer(this.report.created_at, at)) return;
    this.cancel();
    this.closed = { reason, at };
  }

  /** An event told that there is a new one. */
  ready(at: string): void {
    if (this.closed && isNewer(at, this.closed.at)) this.#lookSoon();
  }

  /** Something changed that its figures may show. */
  changed(): void {
    if (this.report && !this.closed) this.#lookSoon();
  }

  /** The connection is back: the server may be another process by now. */
  resumed(): void {
    if (!this.closed) this.#lookSoon();
  }

  cancel(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #lookSoon(): void {
    const wait = Math.max(100, this.seen + PAUSE - Date.now());
    this.#timer ??= setTimeout(() => void this.load(), wait);
  }

  #show(report: api.WorkerSpace): void {
    this.report = report;
    this.seen = Date.now();
    this.error = null;
    if (this.closed && isNewer(report.created_at, this.closed.at)) this.closed = null;
  }
}

let shown: Space | null = null;

export function showSpace(space: Space | null): void {
  shown?.cancel();
  shown = space;
}

export function shownSpace(project?: string): Space | null {
  return !project || shown?.project === project ? shown : null;
}
