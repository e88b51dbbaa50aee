import { router } from "../router.svelte";

interface Notice {
  id: number;
  text: string;
}

// A page that the user leaves takes its notices with it. Pages that open another one by themselves, such as after
// creating something, keep them.
addEventListener("hashchange", () => {
  if (router.wasLeftByUser) shown = [];
});

const SHOWN_FOR = 5_000;
let next = 0;
let shown = $state.raw<readonly Notice[]>([]);

export function notices(): readonly Notice[] {
  return shown;
}

/** Shows for a few seconds that an action succeeded. Errors are shown in place instead, and stay. */
export function notify(text: string): void {
  const id = next++;
  shown = [...shown, { id, text }];
  setTimeout(() => (shown = shown.filter((notice) => notice.id !== id)), SHOWN_FOR);
}
