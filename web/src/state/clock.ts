import { createSubscriber } from "svelte/reactivity";

/** How far the server's clock is ahead of this machine's, in milliseconds. */
let ahead = 0;

/** Learns the server's time from the `date` header of a response. */
export function heardServerTime(date: string | null): void {
  const time = date ? Date.parse(date) : NaN;
  if (Number.isNaN(time)) return;
  // The header has whole seconds, so smaller differences mean nothing.
  const difference = time + 500 - Date.now();
  ahead = Math.abs(difference) > 1_500 ? difference : 0;
}

const everySecond = createSubscriber((update) => {
  const timer = setInterval(update, 1_000);
  return () => clearInterval(timer);
});

/** The server's current time. A component that reads it is updated every second. */
export function serverNow(): number {
  everySecond();
  return Date.now() + ahead;
}
