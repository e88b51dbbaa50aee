// The days of a report. The server counts in days of UTC.

import type { UsageReport, UsageSum } from "../api/calls";

export const RANGES = ["7", "30", "90", "month"] as const;
export type Range = (typeof RANGES)[number];

const DAY_MS = 86_400_000;

function isoDay(time: number): string {
  return new Date(time).toISOString().slice(0, 10);
}

/** The first and the last day of a range that ends today. */
export function rangeOf(range: Range, now: Date): { from: string; to: string } {
  const to = isoDay(now.getTime());
  if (range === "month") return { from: `${to.slice(0, 8)}01`, to };
  return { from: isoDay(now.getTime() - (Number(range) - 1) * DAY_MS), to };
}

/** All days of a report, also those on which nothing was used. */
export function daysOf({ from, to, rows }: UsageReport): { day: string; sum: UsageSum | null }[] {
  const sums = new Map(rows.map((row) => [row.day, row]));
  const days = [];
  for (let time = Date.parse(from); time <= Date.parse(to); time += DAY_MS) {
    const day = isoDay(time);
    days.push({ day, sum: sums.get(day) ?? null });
  }
  return days;
}
