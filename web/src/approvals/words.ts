import type { Grant } from "../api/calls";
import { classWords } from "../calls/describe";
import { t } from "../i18n/index.svelte";
import { askerOf } from "./asker.svelte";

/** Browsers also name those they want to be taken for; the one it is comes first here. */
const BROWSERS = [
  ["Edg/", "Edge"],
  ["OPR/", "Opera"],
  ["Firefox/", "Firefox"],
  ["Chrome/", "Chrome"],
  ["Safari/", "Safari"],
] as const;

/** The program that answered, by a name that people know it by. */
export function programName(agent: string): string {
  return BROWSERS.find(([mark]) => agent.startsWith("Mozilla/") && agent.includes(mark))?.[1] ?? agent;
}

/** What a permission allows. */
export function grantWords(grant: Grant): string {
  if (grant.scope === "agent") return t("approvals.agent.words", { who: askerOf({ project_id: grant.project_id, agent_id: grant.agent_id ?? null }) });
  if (!grant.rule) return grant.words;
  const [first = ""] = grant.rule.split(" ");
  const tool = /^(write|edit|move|delete|read|create|list|search|get)_|^grep$/.test(first) ? first : "execute_command";
  return classWords({ tool_name: tool, rule: grant.rule });
}
