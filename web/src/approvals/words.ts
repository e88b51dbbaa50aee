import type { Grant } from "../api/calls";
import { classWords } from "../calls/describe";
import { t } from "../i18n/index.svelte";
import { askerOf } from "./asker.svelte";

/** What a permission allows. */
export function grantWords(grant: Grant): string {
  if (grant.scope === "agent") return t("approvals.agent.words", { who: askerOf({ project_id: grant.project_id, agent_id: grant.agent_id ?? null }) });
  if (!grant.rule) return grant.words;
  const [first = ""] = grant.rule.split(" ");
  const tool = /^(write|edit|move|delete|read|create|list|search|get)_|^grep$/.test(first) ? first : "execute_command";
  return classWords({ tool_name: tool, rule: grant.rule });
}
