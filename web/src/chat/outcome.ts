import type { Task, TaskDetails } from "../api/calls";
import { t } from "../i18n/index.svelte";

/** How many calls of a task failed. Calls that a person rejected did not fail. */
export function failedCalls(details: Pick<TaskDetails, "calls"> | undefined): number {
  return (details?.calls ?? []).filter(({ status }) => status === "failed" || status === "unknown")
    .length;
}

/** What came of a task, in one line: its error, its failed calls or its result. */
export function outcome(
  task: Task,
  details: Pick<TaskDetails, "calls"> | undefined,
): { text: string; bad: boolean } | null {
  const failed = failedCalls(details);
  if (task.error) return { text: task.error.detail, bad: true };
  if (failed > 0) return { text: t("task.failed_calls", { n: failed }), bad: true };
  return task.result ? { text: task.result, bad: false } : null;
}
