import { region } from "./index.svelte";

/** An amount in US dollars. Small amounts keep significant digits, because an answer costs fractions of a cent. */
export function money(dollars: number): string {
  return new Intl.NumberFormat(region(), {
    style: "currency",
    currency: "USD",
    maximumSignificantDigits: dollars < 1 ? 2 : 4,
  }).format(dollars);
}
