import type { Grant } from "../api/calls";
import { describeClass, toolOfRule } from "../calls/describe";
import { t } from "../i18n/index.svelte";
import { requesterOf } from "./requester.svelte";

/** Browsers also include the names of others in their user agent, so the more specific marks come first. */
const BROWSERS = [
  ["Edg/", "Edge"],
  ["OPR/", "Opera"],
  ["Firefox/", "Firefox"],
  ["Chrome/", "Chrome"],
  ["Safari/", "Safari"],
] as const;

/** The name of the program that made a decision, from its user agent. */
export function programName(agent: string): string {
  return (
    BROWSERS.find(([mark]) => agent.startsWith("Mozilla/") && agent.includes(mark))?.[1] ?? agent
  );
}

/** Describes what a permission covers. */
export function describeGrant(grant: Grant): string {
  if (grant.scope === "agent")
    return t("approvals.trust_agent.words", {
      who: requesterOf({ project_id: grant.project_id, agent_id: grant.agent_id ?? null }),
    });
  if (grant.scope === "local_git") return t("class.local_git");
  if (!grant.rule) return grant.words;
  return describeClass({
    tool_name: toolOfRule(grant.rule),
    rule: grant.rule,
    class: grant.class,
  });
}
