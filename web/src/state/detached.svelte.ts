/**
 * Makes something with state of its own, also while a page is being drawn. What a reaction makes, it does not
 * watch: without this, whoever looks first would never see it change.
 */
export function detached<T>(make: () => T): T {
  let made: T | undefined;
  $effect.root(() => {
    made = make();
  });
  return made as T;
}
