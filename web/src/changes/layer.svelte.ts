import * as api from "../api/calls";
import { CallFailed } from "../api/problem";
import { splitDiff, type FileDiff } from "../diff/files";
import { Loader } from "../state/loader";

type ChangeKind = "added" | "changed" | "deleted" | "renamed";

/** A file that differs between the layer and the folder. */
export interface Change {
  file_path: string;
  change: ChangeKind;
  conflict: boolean;
}

const POLL_MS = 300;

/** The layer of the open conversation: what its scripts have changed, and what becomes of it. */
export class Layer {
  readonly project: string;
  readonly session: string;
  files = $state.raw<readonly Change[]>([]);
  /** How many files of the layer git ignores. */
  ignored = $state(0);
  diffs = $state.raw<ReadonlyMap<string, FileDiff>>(new Map());
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  /** A landing or an undo that waits for the user. */
  question = $state.raw<api.ToolCall | null>(null);
  #loader = new Loader(() => this.#load());

  constructor(project: string, session: string) {
    this.project = project;
    this.session = session;
  }

  load(): Promise<void> {
    return this.#loader.load();
  }

  async #load(): Promise<void> {
    try {
      const listed = await this.#run("changes", {});
      this.files = changesOf(listed);
      this.ignored = Number(listed.ignored ?? 0);
      const shown = this.files.length > 0 ? await this.#run("diff", {}) : {};
      this.#keep(typeof shown.diff === "string" ? shown.diff : "");
      [this.state, this.error] = ["ready", null];
    } catch (error) {
      [this.state, this.error] = ["failed", error];
    }
  }

  /** Loads the diff of one file, if it is not among those that were loaded together. */
  async show(path: string): Promise<void> {
    if (this.diffs.has(path)) return;
    const shown = await this.#run("diff", { paths: [path] });
    if (typeof shown.diff === "string") this.#keep(shown.diff, this.diffs);
  }

  #keep(text: string, others: ReadonlyMap<string, FileDiff> = new Map()): void {
    const found = splitDiff(text).map((file) => [file.path, file] as const);
    this.diffs = new Map([...others, ...found]);
  }

  /** Asks for a landing or an undo. The user decides when the machine has shown what it changes. */
  async ask(tool: "land" | "undo", params: Record<string, unknown>): Promise<void> {
    const asked = await api.requestCall(this.project, this.session, tool, params);
    const call = await this.#follow(asked, true);
    if (call.status === "pending_approval") this.question = call;
    else resultOf(call);
  }

  /** Waits for what becomes of a call that was decided; `null` if it was rejected. */
  async decided(call: api.ToolCall): Promise<Record<string, unknown> | null> {
    this.question = null;
    const settled = await this.#follow(call, false);
    return settled.status === "rejected" ? null : resultOf(settled);
  }

  async discard(paths: readonly string[]): Promise<void> {
    await this.#run("discard", { paths });
    await this.load();
  }

  async #run(tool: string, params: Record<string, unknown>): Promise<Record<string, unknown>> {
    const asked = await api.requestCall(this.project, this.session, tool, params);
    return resultOf(await this.#follow(asked, true));
  }

  /** Follows a call until it is settled or, with `stop`, until the user is asked about it. */
  async #follow(call: api.ToolCall, stop: boolean): Promise<api.ToolCall> {
    let present = call;
    while (isOpen(present.status, stop)) {
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      present = await api.toolCall(this.project, call.tool_id);
    }
    return present;
  }
}

function isOpen(status: api.CallStatus, stop: boolean): boolean {
  return (
    ["previewing", "approved", "dispatched"].includes(status) ||
    (status === "pending_approval" && !stop)
  );
}

function resultOf(call: api.ToolCall): Record<string, unknown> {
  if (call.status === "completed" && call.result) return call.result;
  const said = call.result?.error;
  throw new CallFailed(call.error?.detail ?? (typeof said === "string" ? said : call.status));
}

function changesOf(listed: Record<string, unknown>): Change[] {
  const files = Array.isArray(listed.files) ? (listed.files as Record<string, unknown>[]) : [];
  return files.map((file) => ({
    file_path: String(file.path),
    change: file.change as ChangeKind,
    conflict: Boolean(file.conflict),
  }));
}

let shown = $state.raw<Layer | null>(null);

/** The layer that is shown, if it is of this conversation. */
export function openLayer(session?: string): Layer | null {
  return session === undefined || shown?.session === session ? shown : null;
}

export function setOpenLayer(layer: Layer | null): void {
  shown = layer;
}
