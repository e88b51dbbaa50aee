import { shownTalk } from "../chat/talk.svelte";
import { shownShelf } from "../files/shelf.svelte";
import type { LiveEvent } from "../live/event";
import { log } from "../live/log.svelte";
import { stream } from "../live/stream.svelte";
import { forgetAgents, loadedAgentsOf, reloadAgents } from "./agents.svelte";
import { clients } from "./clients.svelte";
import { queues } from "./queues.svelte";
import { grants } from "./grants.svelte";
import { inbox } from "./inbox.svelte";
import { waitingPlans } from "./plans.svelte";
import { projects } from "./projects.svelte";
import { forgetSessions, loadedSessionsOf, reloadSessions } from "./sessions.svelte";
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
    deltas: (deltas) => deltas.forEach((delta) => shownTalk()?.hear(delta)),
    reset: () => {
      log.clear(true);
      void projects.load();
      waitingPlans.forget();
      void inbox.load();
      reloadAgents();
      clients.allChanged();
      queues.allChanged();
      grants.allChanged();
      reloadSessions();
      void shownTalk()?.load();
      void shownShelf()?.load();
      shownSpace()?.resumed();
    },
    resumed: () => {
      shownSpace()?.resumed();
      // What could not be loaded while the server was away can be now.
      if (projects.state === "failed") void projects.load();
      void inbox.load();
      reloadAgents("failed");
      reloadSessions("failed");
      if (shownTalk()?.state === "failed") void shownTalk()?.load();
      clients.allChanged();
    },
  });
  return () => {
    stream.stop();
    log.clear(false);
    projects.forget();
    inbox.forget();
    forgetAgents();
    forgetSessions();
    waitingPlans.forget();
    clients.forget();
    queues.forget();
    grants.forget();
  };
}

function apply(event: LiveEvent): void {
  const { project_id, created_at, data } = event;
  shownTalk()?.apply(event);
  if (data.type.startsWith("TASK_")) queues.changed(project_id);
  switch (data.type) {
    case "PROJECT_CREATED":
    case "PROJECT_UPDATED":
      projects.put(data.project);
      break;
    case "PROJECT_DELETED":
      projects.drop(project_id);
      inbox.forgetProject(project_id);
      forgetAgents(project_id);
      forgetSessions(project_id);
      waitingPlans.forget(project_id);
      clients.forget(project_id);
      grants.forget(project_id);
      queues.forget(project_id);
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
    case "CONVERSATION_CREATED":
    case "CONVERSATION_UPDATED":
      loadedSessionsOf(project_id)?.put(data.conversation);
      break;
    case "CONVERSATION_DELETED":
      loadedSessionsOf(project_id)?.drop(data.session_id);
      break;
    case "PLAN_APPROVAL_REQUEST":
      waitingPlans.asked(data.plan);
      break;
    case "PLAN_UPDATED":
      waitingPlans.moved(data.plan);
      break;
    case "FILES_CHANGED":
    case "FILES_PRESENTED":
      void shownShelf(data.conversation_id)?.load();
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
