import type { Stats } from "../api/memory";

/** How many of the newest interactions are shown. */
export const NEWEST = 10;
/** More than this in one period are not loaded just to show a few. */
const MAX_LOADED = 500;
const HOUR_MS = 3_600_000;

/** The time from which the newest interactions are loaded: enough to show, but not a whole memory. */
export function newestFrom({ periods, newest_interaction }: Stats): string | null {
  if (!newest_interaction) return null;
  let from: string | null = null;
  let count = 0;
  for (const { start, total } of [...(periods ?? [])].reverse()) {
    if (count >= NEWEST || count + total > MAX_LOADED) break;
    [from, count] = [start, count + total];
  }
  return from ?? new Date(Date.parse(newest_interaction) - HOUR_MS).toISOString();
}
