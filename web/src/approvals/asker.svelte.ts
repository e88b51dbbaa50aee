import type { ToolCall } from "../api/calls";
import { t } from "../i18n/index.svelte";
import { agentsOf } from "../state/agents.svelte";

/** Who asks for a call: an agent by its name, or a person through the API. */
export function askerOf({ project_id, agent_id }: Pick<ToolCall, "project_id" | "agent_id">): string {
  if (!agent_id) return t("approvals.by_you");
  return agentsOf(project_id).all.get(agent_id)?.name ?? t("approvals.an_agent");
}
