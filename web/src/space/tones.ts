import type { Status } from "../api/calls";

export const TONES = {
  healthy: "good",
  degraded: "warn",
  unhealthy: "bad",
} as const satisfies Record<Status, string>;
