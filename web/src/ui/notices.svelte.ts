interface Notice {
  id: number;
  text: string;
}

const SHOWN_FOR = 5_000;
let next = 0;
let shown = $state.raw<readonly Notice[]>([]);

export function notices(): readonly Notice[] {
  return shown;
}

/** Says for a moment that something is done. What went wrong is said where it happened, and stays. */
export function notify(text: string): void {
  const id = next++;
  shown = [...shown, { id, text }];
  setTimeout(() => (shown = shown.filter((notice) => notice.id !== id)), SHOWN_FOR);
}
