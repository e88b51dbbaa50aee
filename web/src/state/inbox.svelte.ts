import * as api from "../api/calls";
import { agentsOf } from "./agents.svelte";
import { waitingPlans } from "./plans.svelte";
import { isNewer } from "./time";

/** Events come in bursts; one look for all of them. */
const GATHER = 60;
/** Requests at a time, when many calls were asked about at once. */
const TOGETHER = 6;
const DECIDED_SHOWN = 6;

/** What waits for this person's decision, in all their projects. */
class Inbox {
  /** By tool id: a stale call asks again under the same id, with a new approval. */
  waiting = $state.raw<ReadonlyMap<string, api.ToolCall>>(new Map());
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  /** What was decided at this tab, newest first, and what becomes of it. */
  decided = $state.raw<readonly api.ToolCall[]>([]);
  /** Tells of a call that has begun to wait while this page was open. */
  onasked: (call: api.ToolCall) => void = () => {};
  /** What events told of calls that have left the list: the answer to a decision may come later, and say less. */
  #told = new Map<string, api.CallStatus>();
  /** Calls to look at again, with their project. */
  #changed = new Map<string, string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #loading = false;
  #person = 0;

  readonly inOrder = $derived(
    [...this.waiting.values()].sort((a, b) => (a.approval?.expires_at ?? "").localeCompare(b.approval?.expires_at ?? "")),
  );

  async load(): Promise<void> {
    const person = this.#person;
    this.#loading = true;
    try {
      const { approvals: calls, plans } = await api.waiting();
      if (person !== this.#person) return;
      // What events told meanwhile is looked at afterwards, one by one: the answer may be older.
      this.waiting = new Map(calls.map((call) => [call.tool_id, call]));
      // Who asks is told by name.
      for (const project of new Set(calls.map((call) => call.project_id))) agentsOf(project).want();
      waitingPlans.put(plans);
      this.state = "ready";
      this.error = null;
    } catch (error) {
      if (person !== this.#person) return;
      this.error = error;
      this.state = "failed";
    } finally {
      this.#loading = false;
    }
    this.#lookSoon();
  }

  /** An event told that somebody has to decide. */
  asked(project: string, tool: string, approval: string, expiresAt: string): void {
    if (this.waiting.get(tool)?.approval_id === approval) return;
    // A replay tells of questions that time has answered long ago.
    if (Date.parse(expiresAt) + 60_000 < Date.now()) return;
    this.#changed.set(tool, project);
    this.#lookSoon();
  }

  /** This person decided, and this is the answer. */
  settled(call: api.ToolCall): void {
    this.#drop(call.tool_id);
    const settled = { ...call, status: this.#told.get(call.tool_id) ?? call.status };
    this.#told.delete(call.tool_id);
    this.decided = [settled, ...this.decided.filter(({ tool_id }) => tool_id !== call.tool_id)].slice(0, DECIDED_SHOWN);
  }

  /** An event told what became of a call. */
  moved(project: string, tool: string, status: api.CallStatus, at: string): void {
    const asked = this.waiting.get(tool)?.approval?.requested_at;
    // A replay tells how the call came to be asked about, which it is by now.
    if (asked && isNewer(asked, at)) return;
    if (this.decided.some(({ tool_id }) => tool_id === tool)) {
      this.decided = this.decided.map((call) => (call.tool_id === tool ? { ...call, status } : call));
    }
    if (status === "pending_approval" || status === "previewing") this.#told.delete(tool);
    else if (this.waiting.has(tool) || this.#told.has(tool)) this.#told.set(tool, status);
    if (status === "pending_approval") {
      this.#changed.set(tool, project);
    } else if (this.#loading) {
      this.#changed.set(tool, project);
      this.#drop(tool);
    } else {
      this.#changed.delete(tool);
      this.#drop(tool);
    }
    this.#lookSoon();
  }

  forgetProject(project: string): void {
    this.waiting = new Map([...this.waiting].filter(([, call]) => call.project_id !== project));
  }

  /** For the next person at this tab. */
  forget(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#changed.clear();
    this.#told.clear();
    this.#person += 1;
    this.waiting = new Map();
    this.decided = [];
    this.state = "loading";
  }

  #lookSoon(): void {
    if (this.#loading || this.#changed.size === 0) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.#look();
    }, GATHER);
  }

  async #look(): Promise<void> {
    const person = this.#person;
    const some = [...this.#changed].slice(0, TOGETHER);
    for (const [tool] of some) this.#changed.delete(tool);
    await Promise.all(
      some.map(async ([tool, project]) => {
        try {
          const [call] = await Promise.all([api.toolCall(project, tool), agentsOf(project).wanted()]);
          if (person === this.#person && !this.#changed.has(tool)) this.#show(call);
        } catch {
          // Gone with its project, or the server is away: then the next connection loads everything anew.
        }
      }),
    );
    this.#lookSoon();
  }

  #show(call: api.ToolCall): void {
    if (call.status !== "pending_approval") return this.#drop(call.tool_id);
    const known = this.waiting.get(call.tool_id);
    this.waiting = new Map(this.waiting).set(call.tool_id, call);
    if (known?.approval_id !== call.approval_id) this.onasked(call);
  }

  #drop(tool: string): void {
    if (!this.waiting.has(tool)) return;
    const next = new Map(this.waiting);
    next.delete(tool);
    this.waiting = next;
  }
}

export const inbox = new Inbox();
