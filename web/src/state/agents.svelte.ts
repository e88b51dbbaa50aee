import * as api from "../api/calls";
import { detached } from "./detached.svelte";
import { EntityStore } from "./entityStore.svelte";

const byProject = new Map<string, EntityStore<api.Agent>>();

/** The agents of a project; they may not be loaded yet. */
export function agentsOf(project: string): EntityStore<api.Agent> {
  let agents = byProject.get(project);
  if (!agents) {
    agents = detached(() => new EntityStore(() => api.agents(project)));
    byProject.set(project, agents);
  }
  return agents;
}

/** The agents of a project if a page has shown them. */
export function loadedAgentsOf(project: string): EntityStore<api.Agent> | undefined {
  return byProject.get(project);
}

export function reloadAgents(which: "all" | "failed" = "all"): void {
  for (const agents of byProject.values()) {
    if (which === "all" || agents.state === "failed") void agents.load();
  }
}

export function clearAgents(project?: string): void {
  if (project) byProject.delete(project);
  else byProject.clear();
}
