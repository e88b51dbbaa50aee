import type { Plan, Task, TaskDetails } from "../api/calls";
import { t } from "../i18n/index.svelte";

/** How many calls of a task failed. Calls that a person rejected did not fail. */
export function failedCalls(details: Pick<TaskDetails, "calls"> | undefined): number {
  return (details?.calls ?? []).filter(({ status }) => status === "failed" || status === "unknown")
    .length;
}

/** What came of a task, in one line: that it failed, its failed calls or its result. */
export function outcome(
  task: Task,
  details: Pick<TaskDetails, "calls"> | undefined,
): { text: string; bad: boolean } | null {
  const failed = failedCalls(details);
  // The error itself is said once, in the row of the task or for the whole plan.
  if (task.status === "failed" || task.status === "cancelled")
    return { text: t(`task.${task.status}`), bad: task.status === "failed" };
  if (failed > 0) return { text: t("task.failed_calls", { n: failed }), bad: true };
  return task.result ? { text: task.result, bad: false } : null;
}

/** The tasks that say their errors, so that an error of a plan or of several tasks is said once. */
export function sayErrors(tasks: readonly Task[], plan: Plan | undefined): ReadonlySet<string> {
  const said = plan?.error ? [plan.error.detail] : [];
  const speakers = new Set<string>();
  for (const { id, error } of tasks) {
    if (!error || said.some((text) => text.includes(error.detail) || error.detail.includes(text)))
      continue;
    said.push(error.detail);
    speakers.add(id);
  }
  return speakers;
}
