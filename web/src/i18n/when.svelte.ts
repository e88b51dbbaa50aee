import { region } from "./index.svelte";

const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];

let now = $state(Date.now());
setInterval(() => (now = Date.now()), 20_000);

/** A relative time such as "2 minutes ago", which is updated as time passes. */
export function ago(time: string | number, style: "long" | "short" = "long"): string {
  const seconds = Math.max(0, (now - new Date(time).getTime()) / 1000);
  const format = new Intl.RelativeTimeFormat(region(), { numeric: "auto", style });
  for (const [unit, size] of STEPS) {
    if (seconds >= size) return format.format(-Math.floor(seconds / size), unit);
  }
  return format.format(0, "second");
}

export function dateTime(time: string): string {
  return new Intl.DateTimeFormat(region(), { dateStyle: "medium", timeStyle: "medium" }).format(
    new Date(time),
  );
}

/** A day of UTC, such as `2026-01-31`, in the user's form. */
export function day(iso: string): string {
  const format = { day: "numeric", month: "short", timeZone: "UTC" } as const;
  return new Intl.DateTimeFormat(region(), format).format(new Date(iso));
}

export function clock(time: string | number): string {
  return formatClock(region()).format(new Date(time));
}

/** A duration in its largest whole unit. */
export function duration(seconds: number): string {
  const [unit, size] =
    STEPS.find(([, size]) => seconds >= size && seconds % size === 0) ?? (["second", 1] as const);
  const format = { style: "unit", unit, unitDisplay: "short" } as const;
  return new Intl.NumberFormat(region(), format).format(seconds / size);
}

/** A duration as on a stopwatch: minutes and seconds, and hours if there are any. */
export function minutes(seconds: number): string {
  const whole = Math.floor(seconds);
  const [hours, rest] = [Math.floor(whole / 3_600), whole % 3_600];
  const two = (n: number) => String(n).padStart(2, "0");
  const short = `${Math.floor(rest / 60)}:${two(rest % 60)}`;
  return hours > 0 ? `${hours}:${short.padStart(5, "0")}` : short;
}

// Formatters are cached: creating one is slow, and a list of events needs one per row.
const clocks = new Map<string, Intl.DateTimeFormat>();

function formatClock(region: string): Intl.DateTimeFormat {
  let format = clocks.get(region);
  if (!format) {
    format = new Intl.DateTimeFormat(region, {
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      hourCycle: "h23",
    });
    clocks.set(region, format);
  }
  return format;
}
