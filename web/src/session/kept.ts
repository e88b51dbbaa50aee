// What this browser keeps of its session. The token is in a cookie that no script can read; the key that belongs to it
// is in the storage of this origin, where pages of other ports and hosts have no access.

const STORAGE_KEY = "atelier.session";

export interface KeptSession {
  key: string;
  /** When the session should be renewed, in milliseconds. All tabs share it, so that one of them does it. */
  renewAt: number;
}

export function readKept(): KeptSession | null {
  return JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "null") as KeptSession | null;
}

export function keep(session: KeptSession): void {
  localStorage.setItem(STORAGE_KEY, JSON.stringify(session));
}

/** Forgets this session, unless another tab has signed in anew. */
export function forget(key: string): void {
  if (readKept()?.key === key) localStorage.removeItem(STORAGE_KEY);
}

/** Calls `changed` when another tab signs in or out. */
export function onChangeElsewhere(changed: () => void): void {
  addEventListener("storage", ({ key }) => {
    if (key === STORAGE_KEY || key === null) changed();
  });
}
