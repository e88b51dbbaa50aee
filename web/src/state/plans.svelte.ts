import { SvelteMap } from "svelte/reactivity";
import * as api from "../api/calls";
import { ItemLoader } from "./loader";

/** The plans that need this user's approval, in all their projects. */
class PendingPlansState {
  readonly all = new SvelteMap<string, api.Plan>();
  /** Called when a plan begins to need approval while this page is open. */
  onrequest: (plan: api.Plan) => void = () => {};
  /** A plan that was decided once never needs approval again, whatever arrives late. */
  #decided = new Set<string>();
  #ready = false;
  #plans = new ItemLoader<api.Plan>({
    key: ({ id }) => id,
    load: (plan) => this.#loadPlan(plan),
    delayMs: 60,
  });

  constructor() {
    // Requests are collected until the list is loaded: a replay of events repeats them, most of them decided.
    this.#plans.pause();
  }

  get size(): number {
    return this.all.size;
  }

  /** Takes the list of pending plans. Plans that began to need approval later come by events. */
  put(plans: readonly api.Plan[]): void {
    for (const plan of plans) if (!this.#decided.has(plan.id)) this.all.set(plan.id, plan);
    this.#ready = true;
    this.#plans.resume();
  }

  /** Handles the event that a plan needs approval. */
  approvalRequested(plan: api.Plan): void {
    this.#plans.request(plan);
  }

  /** Handles the event that a plan has a new status. */
  planUpdated({ id, status }: api.Plan): void {
    if (status === "planning" || status === "pending_approval") return;
    this.#decided.add(id);
    this.#plans.cancel(id);
    this.all.delete(id);
  }

  clear(project?: string): void {
    for (const { id, project_id } of this.all.values()) {
      if (!project || project_id === project) this.all.delete(id);
    }
    if (project) return;
    this.#plans.clear();
    this.#plans.pause();
    this.#decided.clear();
    this.#ready = false;
  }

  async #loadPlan({ project_id, id }: api.Plan): Promise<void> {
    if (this.all.has(id)) return;
    try {
      const plan = await api.plan(project_id, id);
      if (!this.#ready || plan.status !== "pending_approval" || this.#decided.has(id)) return;
      this.all.set(id, plan);
      this.onrequest(plan);
    } catch {
      // The project was deleted, or the server is unreachable; reconnecting loads the whole list.
    }
  }
}

export const pendingPlans = new PendingPlansState();
