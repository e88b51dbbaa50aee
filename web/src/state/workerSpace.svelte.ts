import * as api from "../api/calls";
import { Loader } from "./loader";
import { isNewer } from "./time";

/** The minimum time between two requests: each counts as use of the worker space. */
const MIN_INTERVAL_MS = 2_000;

/** The worker space that the project page shows. */
export class OpenWorkerSpace {
  report = $state.raw<api.WorkerSpace | null>(null);
  /** When the report was loaded, by this computer's clock. */
  loadedAt = $state(0);
  /** Why the worker space was closed; `null` while it is open. The next request to the project starts a new one. */
  closed = $state.raw<{ reason: api.CloseReason; at: string } | null>(null);
  error = $state.raw<unknown>(null);
  readonly project: string;
  #loader = new Loader(() => this.#load());

  constructor(project: string) {
    this.project = project;
  }

  load(): Promise<void> {
    return this.#loader.load();
  }

  async reset(): Promise<void> {
    this.#show(await api.resetWorkerSpace(this.project));
  }

  async close(): Promise<void> {
    await api.endSession(this.project);
  }

  /** Handles the event that the worker space was closed. */
  closedByEvent(reason: api.CloseReason, at: string): void {
    // A replay also repeats events of earlier worker spaces.
    if (!this.report || isNewer(this.report.created_at, at)) return;
    this.cancel();
    this.closed = { reason, at };
  }

  /** Handles the event that a new worker space is ready. */
  ready(at: string): void {
    if (this.closed && isNewer(at, this.closed.at)) this.#loadSoon();
  }

  /** Something changed that the report may show. */
  changed(): void {
    if (this.report && !this.closed) this.#loadSoon();
  }

  /** The connection is back; the server may have been restarted. */
  resumed(): void {
    if (!this.closed) this.#loadSoon();
  }

  cancel(): void {
    this.#loader.cancel();
  }

  #loadSoon(): void {
    this.#loader.loadSoon(Math.max(100, this.loadedAt + MIN_INTERVAL_MS - Date.now()));
  }

  async #load(): Promise<void> {
    try {
      this.#show(await api.workerSpace(this.project));
    } catch (error) {
      this.error = error;
    }
  }

  #show(report: api.WorkerSpace): void {
    this.report = report;
    this.loadedAt = Date.now();
    this.error = null;
    if (this.closed && isNewer(report.created_at, this.closed.at)) this.closed = null;
  }
}

let shown: OpenWorkerSpace | null = null;

export function setOpenWorkerSpace(space: OpenWorkerSpace | null): void {
  shown?.cancel();
  shown = space;
}

export function openWorkerSpace(project?: string): OpenWorkerSpace | null {
  return !project || shown?.project === project ? shown : null;
}
