import * as api from "../api/calls";
import { Problem } from "../api/problem";

export interface BulkDecision {
  approve: boolean;
  reason: string | null;
}

/** The maximum number of decisions in one request. */
const BATCH_SIZE = 100;

/** Sends one decision for many calls; returns the reasons for decisions that the server refused. */
export async function decideAll(
  calls: readonly api.ToolCall[],
  { approve, reason }: BulkDecision,
): Promise<string[]> {
  const refused: string[] = [];
  for (const [project, mine] of Map.groupBy(calls, (call) => call.project_id)) {
    for (let from = 0; from < mine.length; from += BATCH_SIZE) {
      const some = mine.slice(from, from + BATCH_SIZE).filter((call) => call.approval_id);
      const decisions = some.map((call) => ({
        approval_id: call.approval_id ?? "",
        approve,
        reason,
        scope: "once" as const,
      }));
      for (const result of await api.decide(project, decisions)) {
        if ("detail" in result) refused.push(result.detail);
      }
    }
  }
  return refused;
}

/** Whether the call was already decided, for example in another tab. */
export function isDecided(error: unknown): boolean {
  return error instanceof Problem && error.status === 409;
}
