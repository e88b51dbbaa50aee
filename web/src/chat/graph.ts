import type { Task } from "../api/calls";

export interface Node {
  task: Task;
  x: number;
  y: number;
}

export interface Edge {
  from: Node;
  to: Node;
}

export interface Graph {
  nodes: Node[];
  edges: Edge[];
  width: number;
  height: number;
}

export const NODE = { width: 200, height: 70, across: 56, down: 14 } as const;

/** Lays out tasks in columns: each task is to the right of the tasks it depends on. */
export function layOut(tasks: readonly Task[]): Graph {
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const columns = new Map<string, number>();
  const column = (task: Task): number => {
    const known = columns.get(task.id);
    if (known !== undefined) return known;
    // Set before the recursion, so that a cyclic plan cannot hang the page.
    columns.set(task.id, 0);
    const before = task.depends_on.map((id) => byId.get(id)).filter((one) => one !== undefined);
    const found = before.length === 0 ? 0 : Math.max(...before.map(column)) + 1;
    columns.set(task.id, found);
    return found;
  };
  const filled: number[] = [];
  const nodes = tasks.map((task): Node => {
    const at = column(task);
    const row = filled[at] ?? 0;
    filled[at] = row + 1;
    return { task, x: at * (NODE.width + NODE.across), y: row * (NODE.height + NODE.down) };
  });
  const place = new Map(nodes.map((node) => [node.task.id, node]));
  const edges = nodes.flatMap((to) =>
    to.task.depends_on
      .map((id) => place.get(id))
      .filter((from) => from !== undefined)
      .map((from): Edge => ({ from, to })),
  );
  return {
    nodes,
    edges,
    width: Math.max(1, filled.length) * (NODE.width + NODE.across) - NODE.across,
    height: Math.max(1, ...filled) * (NODE.height + NODE.down) - NODE.down,
  };
}

/** Shortens a text to fit a node. */
export function shorten(text: string, maxLength = 27): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > maxLength ? `${line.slice(0, maxLength - 1)}…` : line;
}
