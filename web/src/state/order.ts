/** A sorted copy, with what was changed last at the beginning. */
export function newestFirst<T extends { updated_at: string }>(all: Iterable<T>): T[] {
  return [...all].sort((a, b) => b.updated_at.localeCompare(a.updated_at));
}
