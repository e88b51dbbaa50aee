import { SvelteMap } from "svelte/reactivity";
import type { Plan } from "../api/calls";

/** Plans that wait for this person, as events tell of them. */
export const waitingPlans = new SvelteMap<string, Plan>();

export function planAsks(plan: Plan): void {
  waitingPlans.set(plan.id, plan);
}

export function planMoved(plan: Plan): void {
  if (plan.status !== "pending_approval") waitingPlans.delete(plan.id);
}

export function forgetPlans(project?: string): void {
  for (const plan of waitingPlans.values()) if (!project || plan.project_id === project) waitingPlans.delete(plan.id);
}
