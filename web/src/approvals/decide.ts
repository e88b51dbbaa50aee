import * as api from "../api/calls";
import { Problem } from "../api/problem";

export interface Verdict {
  approve: boolean;
  reason: string | null;
}

/** How many decisions a request may hold. */
const TOGETHER = 100;

/** Decides about many, each for itself; says what was not taken. */
export async function decideAll(calls: readonly api.ToolCall[], { approve, reason }: Verdict): Promise<string[]> {
  const refused: string[] = [];
  for (const [project, mine] of Map.groupBy(calls, (call) => call.project_id)) {
    for (let from = 0; from < mine.length; from += TOGETHER) {
      const some = mine.slice(from, from + TOGETHER).filter((call) => call.approval_id);
      const decisions = some.map((call) => ({ approval_id: call.approval_id ?? "", approve, reason, scope: "once" as const }));
      for (const result of await api.decide(project, decisions)) {
        if ("detail" in result) refused.push(result.detail);
      }
    }
  }
  return refused;
}

/** Somebody or something else was faster. */
export function isDecided(error: unknown): boolean {
  return error instanceof Problem && error.status === 409;
}
