/**
 * Creates an object with reactive state outside the current effect or derived value. Svelte does not track state that
 * was created in the reaction that reads it, so the first reader would never see a change.
 */
export function detached<T>(make: () => T): T {
  let made: T | undefined;
  $effect.root(() => {
    made = make();
  });
  return made as T;
}
