import * as api from "../api/calls";
import { detached } from "./detached.svelte";
import { Known } from "./known.svelte";

const byProject = new Map<string, Known<api.Agent>>();

/** The agents of a project, whether loaded yet or not. */
export function agentsOf(project: string): Known<api.Agent> {
  let agents = byProject.get(project);
  if (!agents) {
    agents = detached(() => new Known(() => api.agents(project)));
    byProject.set(project, agents);
  }
  return agents;
}

/** Those that somebody has looked at: the others are loaded when somebody does. */
export function loadedAgentsOf(project: string): Known<api.Agent> | undefined {
  return byProject.get(project);
}

export function reloadAgents(which: "all" | "failed" = "all"): void {
  for (const agents of byProject.values()) {
    if (which === "all" || agents.state === "failed") void agents.load();
  }
}

export function forgetAgents(project?: string): void {
  if (project) byProject.delete(project);
  else byProject.clear();
}
