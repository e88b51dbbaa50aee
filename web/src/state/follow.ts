import type { LiveEvent } from "../live/event";
import { log } from "../live/log.svelte";
import { stream } from "../live/stream.svelte";
import { forgetAgents, loadedAgentsOf, reloadAgents } from "./agents.svelte";
import { projects } from "./projects.svelte";
import { shownSpace } from "./space.svelte";

/** Keeps what the pages show in step with the server, from sign-in to sign-out. */
export function follow(): () => void {
  void projects.load();
  stream.start({
    events: (events) => {
      log.append(events);
      events.forEach(apply);
    },
    reset: () => {
      log.clear(true);
      void projects.load();
      reloadAgents();
      shownSpace()?.resumed();
    },
    resumed: () => {
      shownSpace()?.resumed();
      // What could not be loaded while the server was away can be now.
      if (projects.state === "failed") void projects.load();
      reloadAgents("failed");
    },
  });
  return () => {
    stream.stop();
    log.clear(false);
    projects.forget();
    forgetAgents();
  };
}

function apply({ project_id, created_at, data }: LiveEvent): void {
  switch (data.type) {
    case "PROJECT_CREATED":
    case "PROJECT_UPDATED":
      projects.put(data.project);
      break;
    case "PROJECT_DELETED":
      projects.drop(project_id);
      forgetAgents(project_id);
      break;
    case "AGENT_CREATED":
    case "AGENT_UPDATED":
      loadedAgentsOf(project_id)?.put(data.agent);
      shownSpace(project_id)?.changed();
      break;
    case "AGENT_DELETED":
      loadedAgentsOf(project_id)?.drop(data.agent_id);
      shownSpace(project_id)?.changed();
      break;
    case "WORKER_SPACE_READY":
      shownSpace(project_id)?.ready(created_at);
      break;
    case "WORKER_SPACE_CLOSED":
      shownSpace(project_id)?.close(data.reason, created_at);
      break;
    case "WORKER_SPACE_ALERT":
      shownSpace(project_id)?.changed();
      break;
  }
}
