import { region } from "./index.svelte";

/** US dollars; answers cost fractions of a cent, so small sums keep their figures. */
export function money(dollars: number): string {
  return new Intl.NumberFormat(region(), { style: "currency", currency: "USD", maximumSignificantDigits: dollars < 1 ? 2 : 4 }).format(dollars);
}
