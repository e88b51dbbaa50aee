import * as api from "../api/calls";
import { agentsOf } from "./agents.svelte";
import { ItemLoader, Loader } from "./loader";
import { pendingPlans } from "./plans.svelte";
import { isNewer } from "./time";

const MAX_RECENT = 6;

interface CallRef {
  project: string;
  tool: string;
}

/** When a question runs out, for sorting: those that wait until they are answered come last. */
const expiry = ({ approval }: api.ToolCall) => approval?.expires_at ?? "~";

/** The tool calls that need this user's approval, in all their projects. */
class Inbox {
  /** Pending calls by tool id. A stale call is asked about again under the same id, with a new approval. */
  pending = $state.raw<ReadonlyMap<string, api.ToolCall>>(new Map());
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  /** Calls that were decided in this tab, newest first, with their current status. */
  recent = $state.raw<readonly api.ToolCall[]>([]);
  /** Called when a call begins to need approval while this page is open. */
  onrequest: (call: api.ToolCall) => void = () => {};
  /** The latest status from events. The response to a decision may arrive later and have an older status. */
  #statusFromEvents = new Map<string, api.CallStatus>();
  #loader = new Loader(() => this.#load());
  #calls = new ItemLoader<CallRef>({
    key: ({ tool }) => tool,
    load: (call) => this.#loadCall(call),
    delayMs: 60,
    maxParallel: 6,
  });
  /** Incremented at sign-out, so that responses for the previous user are ignored. */
  #generation = 0;

  readonly inOrder = $derived(
    [...this.pending.values()].sort((a, b) => expiry(a).localeCompare(expiry(b))),
  );

  load(): Promise<void> {
    return this.#loader.load();
  }

  /** Handles the event that a call needs approval. */
  approvalRequested(
    project: string,
    tool: string,
    approval: string,
    expiresAt: string | null | undefined,
  ): void {
    if (this.pending.get(tool)?.approval_id === approval) return;
    // A replay repeats requests that expired long ago.
    if (expiresAt && Date.parse(expiresAt) + 60_000 < Date.now()) return;
    this.#calls.request({ project, tool });
  }

  /** Handles the event that a question waits longer. */
  approvalExtended(tool: string, approval: string, expiresAt: string | null | undefined): void {
    const call = this.pending.get(tool);
    if (!call?.approval || call.approval_id !== approval) return;
    this.changedHere({ ...call, approval: { ...call.approval, expires_at: expiresAt ?? null } });
  }

  /** Takes the new state of a call that still waits. */
  changedHere(call: api.ToolCall): void {
    if (this.pending.has(call.tool_id))
      this.pending = new Map(this.pending).set(call.tool_id, call);
  }

  /** Takes the response to a decision that was made in this tab. */
  decidedHere(call: api.ToolCall): void {
    this.#drop(call.tool_id);
    const decided = { ...call, status: this.#statusFromEvents.get(call.tool_id) ?? call.status };
    this.#statusFromEvents.delete(call.tool_id);
    const others = this.recent.filter(({ tool_id }) => tool_id !== call.tool_id);
    this.recent = [decided, ...others].slice(0, MAX_RECENT);
  }

  /** Handles the event that a call has a new status. */
  callUpdated(project: string, tool: string, status: api.CallStatus, at: string): void {
    const requestedAt = this.pending.get(tool)?.approval?.requested_at;
    // A replay also repeats the events that led to the present request.
    if (requestedAt && isNewer(requestedAt, at)) return;
    if (this.recent.some(({ tool_id }) => tool_id === tool)) {
      this.recent = this.recent.map((call) => (call.tool_id === tool ? { ...call, status } : call));
    }
    if (status === "pending_approval" || status === "previewing")
      this.#statusFromEvents.delete(tool);
    else if (this.pending.has(tool) || this.#statusFromEvents.has(tool))
      this.#statusFromEvents.set(tool, status);
    if (status === "pending_approval") {
      this.#calls.request({ project, tool });
      return;
    }
    this.#drop(tool);
    // The list under way may still contain the call, so the call is loaded after it.
    if (this.#loader.isLoading) this.#calls.request({ project, tool });
    else this.#calls.cancel(tool);
  }

  clearProject(project: string): void {
    this.pending = new Map([...this.pending].filter(([, call]) => call.project_id !== project));
  }

  /** Forgets everything, for the next user of this tab. */
  clear(): void {
    this.#calls.clear();
    this.#statusFromEvents.clear();
    this.#generation += 1;
    this.pending = new Map();
    this.recent = [];
    this.state = "loading";
  }

  async #load(): Promise<void> {
    const generation = this.#generation;
    // Calls that events mention meanwhile are loaded after the list, which may be older than the events.
    this.#calls.pause();
    try {
      const { approvals: calls, plans } = await api.waiting();
      if (generation !== this.#generation) return;
      this.pending = new Map(calls.map((call) => [call.tool_id, call]));
      // The names of the requesting agents are shown.
      for (const project of new Set(calls.map((call) => call.project_id)))
        agentsOf(project).ensureLoaded();
      pendingPlans.put(plans);
      this.state = "ready";
      this.error = null;
    } catch (error) {
      if (generation !== this.#generation) return;
      this.error = error;
      this.state = "failed";
    } finally {
      this.#calls.resume();
    }
  }

  async #loadCall({ project, tool }: CallRef): Promise<void> {
    const generation = this.#generation;
    try {
      const [call] = await Promise.all([
        api.toolCall(project, tool),
        agentsOf(project).whenLoaded(),
      ]);
      if (generation === this.#generation && !this.#calls.isRequested(tool)) this.#show(call);
    } catch {
      // The project was deleted, or the server is unreachable; reconnecting loads the whole list.
    }
  }

  #show(call: api.ToolCall): void {
    if (call.status !== "pending_approval") return this.#drop(call.tool_id);
    const known = this.pending.get(call.tool_id);
    this.pending = new Map(this.pending).set(call.tool_id, call);
    if (known?.approval_id !== call.approval_id) this.onrequest(call);
  }

  #drop(tool: string): void {
    if (!this.pending.has(tool)) return;
    const next = new Map(this.pending);
    next.delete(tool);
    this.pending = next;
  }
}

export const inbox = new Inbox();
