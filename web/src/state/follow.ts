import { openConversation } from "../chat/conversation.svelte";
import { openLayer } from "../changes/layer.svelte";
import { openFiles } from "../files/conversationFiles.svelte";
import type { LiveEvent } from "../live/event";
import { log } from "../live/log.svelte";
import { stream } from "../live/stream.svelte";
import { clearAgents, loadedAgentsOf, reloadAgents } from "./agents.svelte";
import { clients } from "./clients.svelte";
import { queues } from "./queues.svelte";
import { grants } from "./grants.svelte";
import { inbox } from "./inbox.svelte";
import { models } from "./models.svelte";
import { pendingPlans } from "./plans.svelte";
import { recentTasks } from "./recentTasks.svelte";
import { projects } from "./projects.svelte";
import {
  clearConversations,
  loadedConversationsOf,
  reloadConversations,
} from "./conversations.svelte";
import { openWorkerSpace } from "./workerSpace.svelte";

/** Keeps the state of all pages up to date by events. Returns the function that stops it at sign-out. */
export function follow(): () => void {
  void projects.load();
  void inbox.load();
  void models.load();
  stream.start({
    events: (events) => {
      log.append(events);
      events.forEach(apply);
    },
    deltas: (deltas) => deltas.forEach((delta) => openConversation()?.applyDelta(delta)),
    reset: () => {
      log.clear(true);
      void projects.load();
      pendingPlans.clear();
      void inbox.load();
      reloadAgents();
      clients.refreshAll();
      queues.refreshAll();
      recentTasks.refreshAll();
      grants.refreshAll();
      reloadConversations();
      void openConversation()?.load();
      void openFiles()?.load();
      void openLayer()?.load();
      openWorkerSpace()?.resumed();
    },
    resumed: () => {
      openWorkerSpace()?.resumed();
      // Loads what could not be loaded while the server was unreachable.
      if (projects.state === "failed") void projects.load();
      void inbox.load();
      reloadAgents("failed");
      reloadConversations("failed");
      if (openConversation()?.state === "failed") void openConversation()?.load();
      clients.refreshAll();
    },
  });
  return () => {
    stream.stop();
    log.clear(false);
    projects.clear();
    inbox.clear();
    models.clear();
    clearAgents();
    clearConversations();
    pendingPlans.clear();
    clients.clear();
    queues.clear();
    recentTasks.clear();
    grants.clear();
  };
}

function apply(event: LiveEvent): void {
  const { project_id, created_at, data } = event;
  openConversation()?.apply(event);
  if (data.type.startsWith("TASK_")) queues.refresh(project_id);
  // Calls of this page are no tasks, so loading the changes never leads to loading them again.
  if (data.type === "TASK_PROGRESS") void openLayer(data.session_id)?.load();
  if (data.type === "TASK_COMPLETED" || data.type === "TASK_FAILED")
    void openLayer(data.task.session_id)?.load();
  // A task waits for its calls, which is a status of its own.
  if (data.type.startsWith("TASK_") || data.type === "TOOL_CALL_UPDATED")
    recentTasks.refresh(project_id);
  switch (data.type) {
    case "PROJECT_CREATED":
    case "PROJECT_UPDATED":
      projects.put(data.project);
      break;
    case "PROJECT_DELETED":
      projects.drop(project_id);
      inbox.clearProject(project_id);
      clearAgents(project_id);
      clearConversations(project_id);
      pendingPlans.clear(project_id);
      clients.clear(project_id);
      grants.clear(project_id);
      queues.clear(project_id);
      recentTasks.clear(project_id);
      break;
    case "AGENT_CREATED":
    case "AGENT_UPDATED":
      loadedAgentsOf(project_id)?.put(data.agent);
      openWorkerSpace(project_id)?.changed();
      break;
    case "AGENT_DELETED":
      loadedAgentsOf(project_id)?.drop(data.agent_id);
      openWorkerSpace(project_id)?.changed();
      break;
    case "CONVERSATION_CREATED":
    case "CONVERSATION_UPDATED":
      loadedConversationsOf(project_id)?.put(data.conversation);
      break;
    case "CONVERSATION_DELETED":
      loadedConversationsOf(project_id)?.drop(data.session_id);
      break;
    case "PLAN_APPROVAL_REQUEST":
      pendingPlans.approvalRequested(data.plan);
      break;
    case "PLAN_UPDATED":
      pendingPlans.planUpdated(data.plan);
      break;
    case "FILES_CHANGED":
    case "FILES_PRESENTED":
      void openFiles(data.conversation_id)?.load();
      break;
    case "WORKER_SPACE_READY":
      openWorkerSpace(project_id)?.ready(created_at);
      break;
    case "WORKER_SPACE_CLOSED":
      openWorkerSpace(project_id)?.closedByEvent(data.reason, created_at);
      break;
    case "WORKER_SPACE_ALERT":
      openWorkerSpace(project_id)?.changed();
      break;
    case "CLIENT_CONNECTED":
    case "CLIENT_DISCONNECTED":
      clients.refresh(project_id);
      break;
    case "TOOL_APPROVAL_REQUEST":
      inbox.approvalRequested(project_id, data.tool_id, data.approval_id, data.expires_at);
      break;
    case "TOOL_APPROVAL_EXTENDED":
      inbox.approvalExtended(data.tool_id, data.approval_id, data.expires_at);
      break;
    case "TOOL_CALL_UPDATED":
      inbox.callUpdated(project_id, data.tool_id, data.status, created_at);
      break;
    case "GRANT_MADE":
    case "GRANT_WITHDRAWN":
      grants.refresh(project_id);
      break;
  }
}
