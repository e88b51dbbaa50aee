import { SvelteMap } from "svelte/reactivity";
import * as api from "../api/calls";

/** Events come in bursts, replayed ones with their end: one look for those that are left. */
const GATHER = 60;

/** Plans that wait for this person, in all their projects. */
class WaitingPlans {
  readonly all = new SvelteMap<string, api.Plan>();
  /** Tells of a plan that has begun to wait while this page was open. */
  onasked: (plan: api.Plan) => void = () => {};
  #asked = new Map<string, api.Plan>();
  /** What was answered once never waits again, whatever arrives late. */
  #answered = new Set<string>();
  #ready = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  get size(): number {
    return this.all.size;
  }

  /** The server told what waits; events told the rest. */
  put(plans: readonly api.Plan[]): void {
    for (const plan of plans) if (!this.#answered.has(plan.id)) this.all.set(plan.id, plan);
    this.#ready = true;
    this.#lookSoon();
  }

  asked(plan: api.Plan): void {
    this.#asked.set(plan.id, plan);
    this.#lookSoon();
  }

  moved({ id, status }: api.Plan): void {
    if (status === "planning" || status === "pending_approval") return;
    this.#answered.add(id);
    this.#asked.delete(id);
    this.all.delete(id);
  }

  forget(project?: string): void {
    for (const { id, project_id } of this.all.values()) if (!project || project_id === project) this.all.delete(id);
    if (project) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#asked.clear();
    this.#answered.clear();
    this.#ready = false;
  }

  #lookSoon(): void {
    if (!this.#ready || this.#asked.size === 0) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      const asked = [...this.#asked.values()];
      this.#asked.clear();
      for (const plan of asked) if (!this.all.has(plan.id)) void this.#look(plan);
    }, GATHER);
  }

  async #look({ project_id, id }: api.Plan): Promise<void> {
    try {
      const plan = await api.plan(project_id, id);
      if (!this.#ready || plan.status !== "pending_approval" || this.#answered.has(id)) return;
      this.all.set(id, plan);
      this.onasked(plan);
    } catch {
      // Gone with its project, or the server is away: then the next connection loads what waits.
    }
  }
}

export const waitingPlans = new WaitingPlans();
