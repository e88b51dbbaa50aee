import { RECENT_TASKS, type Task } from "../api/calls";

export interface Spent {
  tasks: number;
  tokens: number;
  cost: number;
  /** Whether there may be older tasks of today that are not counted. */
  partial: boolean;
}

/** What the tasks of today used, from the newest tasks of each project. */
export function spentToday(lists: readonly (readonly Task[])[], now = new Date()): Spent {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const isToday = ({ created_at }: Task) => Date.parse(created_at) >= midnight;
  const spent: Spent = { tasks: 0, tokens: 0, cost: 0, partial: false };
  for (const list of lists) {
    const today = list.filter(isToday);
    spent.partial ||= today.length >= RECENT_TASKS;
    for (const { usage, cost } of today) {
      spent.tasks += 1;
      spent.tokens += usage.input_tokens + usage.output_tokens;
      spent.cost += cost;
    }
  }
  return spent;
}
