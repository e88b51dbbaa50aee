import * as api from "../api/calls";
import { detached } from "./detached.svelte";
import { EntityStore } from "./entityStore.svelte";

const byProject = new Map<string, EntityStore<api.Conversation>>();

/** The conversations of a project; they may not be loaded yet. */
export function conversationsOf(project: string): EntityStore<api.Conversation> {
  let sessions = byProject.get(project);
  if (!sessions) {
    sessions = detached(() => new EntityStore(() => api.sessions(project)));
    byProject.set(project, sessions);
  }
  return sessions;
}

/** The conversations of a project if a page has shown them. */
export const loadedConversationsOf = (project: string): EntityStore<api.Conversation> | undefined =>
  byProject.get(project);

export function reloadConversations(which: "all" | "failed" = "all"): void {
  for (const sessions of byProject.values())
    if (which === "all" || sessions.state === "failed") void sessions.load();
}

export function clearConversations(project?: string): void {
  if (project) byProject.delete(project);
  else byProject.clear();
}
