/** A file by its path from the root. */
interface Placed {
  file_path: string;
}

export interface Row<F extends Placed> {
  /** Path of the file or folder; a folder's path ends with a slash. */
  path: string;
  name: string;
  depth: number;
  file: F | null;
}

/** The rows of a file tree: folders before files, without the contents of closed folders. */
export function rows<F extends Placed>(files: readonly F[], closed: ReadonlySet<string>): Row<F>[] {
  const sorted = [...files].sort((a, b) => compare(a.file_path.split("/"), b.file_path.split("/")));
  const found: Row<F>[] = [];
  const seen = new Set<string>();
  for (const file of sorted) {
    const parts = file.file_path.split("/");
    const name = parts.pop() ?? "";
    let path = "";
    let hidden = false;
    parts.forEach((part, depth) => {
      path += `${part}/`;
      if (!hidden && !seen.has(path)) {
        seen.add(path);
        found.push({ path, name: part, depth, file: null });
      }
      hidden ||= closed.has(path);
    });
    if (!hidden) found.push({ path: file.file_path, name, depth: parts.length, file });
  }
  return found;
}

function compare(a: string[], b: string[]): number {
  for (let at = 0; ; at++) {
    const [left, right] = [a[at], b[at]];
    if (left === undefined || right === undefined) return a.length - b.length;
    const [leftLast, rightLast] = [at === a.length - 1, at === b.length - 1];
    if (leftLast !== rightLast) return leftLast ? 1 : -1;
    if (left !== right) return left.localeCompare(right);
  }
}
