import { createSubscriber } from "svelte/reactivity";

/** How far the server's clock is ahead of this machine's, in milliseconds. */
let ahead = 0;

/** An answer told the server's time, to the second. */
export function heardServerTime(date: string | null): void {
  const told = date ? Date.parse(date) : NaN;
  if (Number.isNaN(told)) return;
  // The header is cut to whole seconds, so anything within one is no difference.
  const difference = told + 500 - Date.now();
  ahead = Math.abs(difference) > 1_500 ? difference : 0;
}

const everySecond = createSubscriber((update) => {
  const timer = setInterval(update, 1_000);
  return () => clearInterval(timer);
});

/** The server's time now; whatever shows it is kept up to date. */
export function serverNow(): number {
  everySecond();
  return Date.now() + ahead;
}
