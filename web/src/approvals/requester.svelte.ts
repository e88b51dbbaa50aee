import type { ToolCall } from "../api/calls";
import { t } from "../i18n/index.svelte";
import { agentsOf } from "../state/agents.svelte";

/** Who requested a call: the name of an agent, or the user through the API. */
export function requesterOf({
  project_id,
  agent_id,
}: Pick<ToolCall, "project_id" | "agent_id">): string {
  if (!agent_id) return t("approvals.by_you");
  return agentsOf(project_id).all.get(agent_id)?.name ?? t("approvals.an_agent");
}
