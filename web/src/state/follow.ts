import type { LiveEvent } from "../live/event";
import { log } from "../live/log.svelte";
import { stream } from "../live/stream.svelte";
import { forgetAgents, loadedAgentsOf, reloadAgents } from "./agents.svelte";
import { clients } from "./clients.svelte";
import { grants } from "./grants.svelte";
import { inbox } from "./inbox.svelte";
import { projects } from "./projects.svelte";
import { shownSpace } from "./space.svelte";

/** Keeps what the pages show in step with the server, from sign-in to sign-out. */
export function follow(): () => void {
  void projects.load();
  void inbox.load();
  stream.start({
    events: (events) => {
      log.append(events);
      events.forEach(apply);
    },
    reset: () => {
      log.clear(true);
      void projects.load();
      void inbox.load();
      reloadAgents();
      clients.allChanged();
      grants.allChanged();
      shownSpace()?.resumed();
    },
    resumed: () => {
      shownSpace()?.resumed();
      // What could not be loaded while the server was away can be now.
      if (projects.state === "failed") void projects.load();
      void inbox.load();
      reloadAgents("failed");
      clients.allChanged();
    },
  });
  return () => {
    stream.stop();
    log.clear(false);
    projects.forget();
    inbox.forget();
    forgetAgents();
    clients.forget();
    grants.forget();
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
      inbox.forgetProject(project_id);
      forgetAgents(project_id);
      clients.forget(project_id);
      grants.forget(project_id);
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
    case "CLIENT_CONNECTED":
    case "CLIENT_DISCONNECTED":
      clients.changed(project_id);
      break;
    case "TOOL_APPROVAL_REQUEST":
      inbox.asked(project_id, data.tool_id, data.approval_id, data.expires_at);
      break;
    case "TOOL_CALL_UPDATED":
      inbox.moved(project_id, data.tool_id, data.status, created_at);
      break;
    case "GRANT_MADE":
    case "GRANT_WITHDRAWN":
      grants.changed(project_id);
      break;
  }
}
