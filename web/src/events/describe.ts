import { riskName, toolName } from "../calls/describe";
import { number, t } from "../i18n/index.svelte";
import { money } from "../i18n/money";
import type { LiveEvent } from "../live/event";

export const KINDS = [
  "project",
  "agent",
  "chat",
  "tool",
  "client",
  "memory",
  "file",
  "space",
  "other",
] as const;
export type Kind = (typeof KINDS)[number];

const BY_PREFIX: readonly (readonly [string, Kind])[] = [
  ["PROJECT_", "project"],
  ["AGENT_", "agent"],
  ["TOOL_", "tool"],
  ["GRANT_", "tool"],
  ["CLIENT_", "client"],
  ["WORKER_SPACE_", "space"],
  ["CONVERSATION_", "chat"],
  ["MESSAGE_", "chat"],
  ["PLAN_", "chat"],
  ["TASK_", "chat"],
  ["USAGE", "chat"],
  ["CONTEXT_", "memory"],
  ["FILE", "file"],
];

export function kindOf({ data }: LiveEvent): Kind {
  return BY_PREFIX.find(([prefix]) => data.type.startsWith(prefix))?.[1] ?? "other";
}

/** Describes an event in a few words. */
export function describe({ data }: LiveEvent): string {
  switch (data.type) {
    case "PROJECT_CREATED":
    case "PROJECT_UPDATED":
      return t(`event.${data.type}`, { name: data.project.name });
    case "AGENT_CREATED":
    case "AGENT_UPDATED":
      return t(`event.${data.type}`, { name: data.agent.name });
    case "AGENT_DELETED":
      return t("event.AGENT_DELETED", { name: data.name });
    case "WORKER_SPACE_CLOSED":
      return t(`event.WORKER_SPACE_CLOSED.${data.reason}`);
    case "WORKER_SPACE_ALERT":
      return t("event.WORKER_SPACE_ALERT", { detail: data.detail });
    case "CLIENT_CONNECTED":
      return t("event.CLIENT_CONNECTED", { root: data.root });
    case "TOOL_APPROVAL_REQUEST":
      return t("event.TOOL_APPROVAL_REQUEST", {
        tool: toolName(data.tool_name),
        risk: riskName(data.risk_level),
      });
    case "TOOL_PREVIEW_REQUEST":
    case "TOOL_EXECUTION_SIGNAL":
      return t(`event.${data.type}`, { tool: toolName(data.tool_name) });
    case "TOOL_RESULT_ACK":
    case "TOOL_CALL_UPDATED":
      return t(`event.${data.type}`, { status: t(`call.${data.status}`) });
    case "GRANT_MADE":
      return t("event.GRANT_MADE", { words: data.grant.words });
    case "FILES_CHANGED":
      return t("event.FILES_CHANGED", { paths: named(data.changes) });
    case "FILES_PRESENTED":
      return t("event.FILES_PRESENTED", { paths: named(data.files) });
    case "MESSAGE_CREATED":
      return t("event.MESSAGE_CREATED", { text: short(data.message.content) });
    case "TASK_QUEUED":
    case "TASK_COMPLETED":
    case "TASK_FAILED":
    case "TASK_CANCELLED":
      return t(`event.${data.type}`, {
        text: short(data.task.error?.detail ?? data.task.description),
      });
    case "TASK_STARTED":
      return t("event.TASK_STARTED", { name: data.agent_name ?? "—" });
    case "TASK_PROGRESS":
      return t("event.TASK_PROGRESS", {
        step: String(data.step),
        calls: data.calls.map((call) => toolName(call.name)).join(", "),
      });
    case "PLAN_CREATED":
    case "PLAN_APPROVAL_REQUEST":
      return t(`event.${data.type}`, { count: String(data.tasks.length) });
    case "PLAN_UPDATED":
      return t("event.PLAN_UPDATED", { status: t(`plan.status.${data.plan.status}`) });
    case "USAGE":
      return t("event.USAGE", {
        model: data.model,
        tokens: String(data.usage.input_tokens + data.usage.output_tokens),
      });
    case "CONTEXT_RETRIEVED":
      return t("event.CONTEXT_RETRIEVED", { count: String(data.interactions.length) });
    case "BUDGET_WARNING": {
      const amount = data.unit === "cost" ? money : number;
      if (data.limit == null || data.used == null) return t(`event.BUDGET_WARNING.${data.scope}`);
      return t("event.BUDGET_WARNING", { used: amount(data.used), limit: amount(data.limit) });
    }
    case "CONTEXT_LIMIT_WARNING":
      return t("event.CONTEXT_LIMIT_WARNING", {
        total: String(data.total_vectors),
        max: String(data.max_vectors),
      });
    case "CONTEXT_PRUNED":
      return t("event.CONTEXT_PRUNED", { count: String(data.removed) });
    case "CONVERSATION_CREATED":
    case "CONVERSATION_UPDATED":
    case "CONVERSATION_DELETED":
    case "PROJECT_DELETED":
    case "WORKER_SPACE_READY":
    case "CLIENT_DISCONNECTED":
    case "TOOL_APPROVAL_WARNING":
    case "TOOL_APPROVAL_EXTENDED":
    case "GRANT_WITHDRAWN":
      return t(`event.${data.type}`);
    default:
      return newer(data);
  }
}

/** The first few paths of a list. */
function named(files: { file_path: string }[]): string {
  const paths = files.slice(0, 3).map((file) => file.file_path);
  return files.length > 3 ? `${paths.join(", ")} …` : paths.join(", ");
}

/** The beginning of a text. */
function short(text: string): string {
  const line = text.split("\n", 1)[0] ?? "";
  return line.length > 80 ? `${line.slice(0, 80)}…` : line;
}

/** Newer servers may send events that this page has no text for. */
function newer(data: never): string {
  const { type, project_id, created_at, ...rest } = data as Record<string, unknown>;
  void [type, project_id, created_at];
  return JSON.stringify(rest);
}
