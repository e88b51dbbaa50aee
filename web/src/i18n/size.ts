import { region } from "./index.svelte";

const UNITS = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"] as const;

/** A size in bytes, shown in the largest fitting unit. */
export function size(bytes: number): string {
  const step = Math.min(UNITS.length - 1, bytes < 1 ? 0 : Math.floor(Math.log10(bytes) / 3));
  // The short form would be "391 byte" in English.
  const format = {
    style: "unit",
    unit: UNITS[step] ?? "byte",
    unitDisplay: step === 0 ? "long" : "short",
    maximumSignificantDigits: 3,
  } as const;
  return new Intl.NumberFormat(region(), format).format(bytes / 1000 ** step);
}
