/** Whether time `a` is after `b`: RFC 3339 in UTC, with more precision than a `Date` has. */
export function isNewer(a: string, b: string): boolean {
  return sortable(a) > sortable(b);
}

function sortable(time: string): string {
  const [seconds = "", fraction = ""] = time.replace(/Z|\+00:00$/, "").split(".");
  return `${seconds}.${fraction.padEnd(9, "0")}`;
}
