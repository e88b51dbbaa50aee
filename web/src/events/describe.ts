import { t } from "../i18n/index.svelte";
import type { LiveEvent } from "../live/event";

export const KINDS = ["project", "agent", "space", "other"] as const;
export type Kind = (typeof KINDS)[number];

export function kindOf({ data }: LiveEvent): Kind {
  if (data.type.startsWith("PROJECT_")) return "project";
  if (data.type.startsWith("AGENT_")) return "agent";
  return data.type.startsWith("WORKER_SPACE_") ? "space" : "other";
}

/** What happened, in a few words. */
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
    case "PROJECT_DELETED":
    case "WORKER_SPACE_READY":
      return t(`event.${data.type}`);
    default:
      return newer(data);
  }
}

/** A newer server says what this page has no words for. */
function newer(data: never): string {
  const { type, project_id, created_at, ...rest } = data as Record<string, unknown>;
  void [type, project_id, created_at];
  return JSON.stringify(rest);
}
