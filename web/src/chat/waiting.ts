import type { Task, ToolCall } from "../api/calls";
import { runsCommands } from "../calls/describe";
import { t } from "../i18n/index.svelte";

/** What a parked task waits for: the user, a machine, a command that runs, or another tool. */
export interface Wait {
  for: "approval" | "machine" | "command" | "call";
  /** When the call began to run, if it runs. */
  since: string | null;
}

type Call = Pick<ToolCall, "status" | "tool_name" | "created_at" | "approval">;

export function waitOf(calls: readonly Call[], noMachine: boolean): Wait {
  if (calls.some(({ status }) => status === "pending_approval"))
    return { for: "approval", since: null };
  const runs = calls.find(({ status }) => status === "dispatched");
  if (runs)
    return {
      for: runsCommands(runs.tool_name) ? "command" : "call",
      since: runs.approval?.decided_at ?? runs.created_at,
    };
  const isReady = calls.some(({ status }) => status === "approved" || status === "previewing");
  return { for: noMachine || isReady ? "machine" : "call", since: null };
}

/** The status of a task in words, with what it waits for. */
export function statusText(status: Task["status"], wait: Wait): string {
  return status === "parked" ? t(`task.waits.${wait.for}`) : t(`task.${status}`);
}
