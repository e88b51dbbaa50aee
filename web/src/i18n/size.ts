import { language } from "./index.svelte";

const UNITS = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"] as const;

/** A size in bytes, in its largest fitting unit. */
export function size(bytes: number): string {
  const step = Math.min(UNITS.length - 1, bytes < 1 ? 0 : Math.floor(Math.log10(bytes) / 3));
  const format = { style: "unit", unit: UNITS[step] ?? "byte", unitDisplay: "short", maximumSignificantDigits: 3 } as const;
  return new Intl.NumberFormat(language(), format).format(bytes / 1000 ** step);
}
