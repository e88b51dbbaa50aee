import * as api from "../api/calls";
import { detached } from "./detached.svelte";
import { Known } from "./known.svelte";

const byProject = new Map<string, Known<api.Conversation>>();

/** The conversations of a project, whether loaded yet or not. */
export function sessionsOf(project: string): Known<api.Conversation> {
  let sessions = byProject.get(project);
  if (!sessions) {
    sessions = detached(() => new Known(() => api.sessions(project)));
    byProject.set(project, sessions);
  }
  return sessions;
}

/** Those that somebody has looked at. */
export const loadedSessionsOf = (project: string): Known<api.Conversation> | undefined => byProject.get(project);

export function reloadSessions(which: "all" | "failed" = "all"): void {
  for (const sessions of byProject.values()) if (which === "all" || sessions.state === "failed") void sessions.load();
}

export function forgetSessions(project?: string): void {
  if (project) byProject.delete(project);
  else byProject.clear();
}
