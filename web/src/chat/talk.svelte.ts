import { SvelteMap } from "svelte/reactivity";
import * as api from "../api/calls";
import type { Delta, LiveEvent } from "../live/event";
import { isNewer } from "../state/time";

/** Events come in bursts; one look at a task for all of them. */
const GATHER = 80;

const ENDED: readonly api.TaskStatus[] = ["completed", "failed", "cancelled"];
export const isActive = ({ status }: Pick<api.Task, "status">) => !ENDED.includes(status);

/** The conversation on show: what was said, what is being done about it, and what is being said right now. */
export class Talk {
  readonly project: string;
  readonly session: string;
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  readonly messages = new SvelteMap<string, api.Message>();
  readonly tasks = new SvelteMap<string, api.Task>();
  readonly plans = new SvelteMap<string, api.Plan>();
  /** Tasks with all their steps and calls, as far as somebody looks at them. */
  readonly details = new SvelteMap<string, api.TaskDetails>();
  /** What a task's model has said since its last step. */
  readonly spoken = new SvelteMap<string, string>();
  #early: LiveEvent[] = [];
  #stale = new Set<string>();
  /** Tasks whose answer is on its way, and whether something happened to them meanwhile. */
  #looking = new Map<string, boolean>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  readonly inOrder = $derived([...this.messages.values()].sort((a, b) => a.created_at.localeCompare(b.created_at) || a.id.localeCompare(b.id)));
  readonly active = $derived([...this.tasks.values()].filter(isActive));

  constructor(project: string, session: string) {
    this.project = project;
    this.session = session;
  }

  async load(): Promise<void> {
    const before = [...this.tasks.keys()];
    try {
      const [messages, tasks, plans] = await Promise.all([
        api.messages(this.project, this.session),
        api.tasks(this.project, this.session),
        api.plans(this.project, this.session),
      ]);
      for (const message of messages) this.messages.set(message.id, message);
      // A plan that was changed before it ran has other tasks now.
      const there = new Set(tasks.map(({ id }) => id));
      for (const id of before.filter((id) => !there.has(id))) {
        this.tasks.delete(id);
        this.details.delete(id);
      }
      for (const task of tasks) this.tasks.set(task.id, task);
      for (const plan of plans) this.plans.set(plan.id, plan);
      this.state = "ready";
      this.error = null;
      this.#early.splice(0).forEach((event) => this.apply(event));
      for (const id of this.details.keys()) this.look(id);
    } catch (error) {
      this.error = error;
      this.state = "failed";
    }
  }

  /** Shows all of a task, and keeps it up to date. */
  look(task: string): void {
    this.#stale.add(task);
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      const tasks = [...this.#stale];
      this.#stale.clear();
      // Of a plan that was changed meanwhile, some are no more; of one that may still be changed, nothing was done.
      for (const id of tasks) if ((this.tasks.get(id)?.status ?? "waiting") !== "waiting") void this.#fetch(id);
    }, GATHER);
  }

  hear({ session_id, task_id, text }: Delta): void {
    if (session_id === this.session) this.spoken.set(task_id, (this.spoken.get(task_id) ?? "") + text);
  }

  apply(event: LiveEvent): void {
    if (event.project_id !== this.project) return;
    if (this.state !== "ready") {
      // Answers on their way may be older.
      this.#early.push(event);
      return;
    }
    const { data, created_at } = event;
    switch (data.type) {
      case "MESSAGE_CREATED":
        if (data.message.session_id !== this.session) return;
        this.messages.set(data.message.id, data.message);
        if (data.message.task_id) this.spoken.delete(data.message.task_id);
        break;
      case "TASK_QUEUED":
      case "TASK_COMPLETED":
      case "TASK_FAILED":
      case "TASK_CANCELLED":
        this.#putTask(data.task, created_at);
        break;
      case "TASK_STARTED": {
        const task = this.tasks.get(data.task_id);
        if (task && (task.status === "queued" || task.status === "waiting")) this.tasks.set(task.id, { ...task, status: "running", started_at: created_at });
        break;
      }
      case "TASK_PROGRESS":
        if (data.session_id !== this.session) return;
        this.spoken.delete(data.task_id);
        this.look(data.task_id);
        break;
      case "TOOL_APPROVAL_REQUEST":
        if (data.task_id && data.session_id === this.session) this.look(data.task_id);
        break;
      case "TOOL_CALL_UPDATED":
        for (const task of this.details.values()) if (task.calls.some((call) => call.tool_id === data.tool_id)) this.look(task.id);
        break;
      case "PLAN_CREATED":
      case "PLAN_APPROVAL_REQUEST":
        if (data.plan.session_id !== this.session) return;
        if (this.#putPlan(data.plan, created_at)) this.#putTasksOf(data.plan, data.tasks);
        break;
      case "PLAN_UPDATED":
        if (data.plan.session_id === this.session) this.#putPlan(data.plan, created_at);
        break;
    }
  }

  /** Ends everything that is being done here. */
  async stop(): Promise<void> {
    const plans = new Set(this.active.map((task) => task.plan_id).filter((id) => id != null));
    const alone = this.active.filter((task) => !task.plan_id);
    await Promise.all([
      ...[...plans].map(async (id) => this.plans.set(id, await api.cancelPlan(this.project, id))),
      ...alone.map(async ({ id }) => this.tasks.set(id, await api.cancelTask(this.project, id))),
    ]);
    await this.load();
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  #putTask(task: api.Task, at: string): void {
    if (task.session_id !== this.session) return;
    const known = this.tasks.get(task.id);
    // A replay tells how a task came to its end; it may have begun again after that, or be over.
    if (known?.completed_at && !isNewer(at, known.completed_at)) return;
    this.tasks.set(task.id, task);
    if (this.details.has(task.id) || isActive(task)) this.look(task.id);
    if (!isActive(task)) this.spoken.delete(task.id);
  }

  /** Whether it was news: a replay tells of the question when it is answered already. */
  #putPlan(plan: api.Plan, at: string): boolean {
    const known = this.plans.get(plan.id);
    const answered = plan.status === "pending_approval" && known !== undefined && !["planning", "pending_approval"].includes(known.status);
    if (answered || (known?.completed_at && !isNewer(at, known.completed_at))) return false;
    this.plans.set(plan.id, plan);
    return true;
  }

  /** A plan that was changed before it ran has other tasks than it had. */
  #putTasksOf(plan: api.Plan, tasks: readonly api.Task[]): void {
    const now = new Set(tasks.map(({ id }) => id));
    for (const { id, plan_id, kind } of this.tasks.values()) {
      if (plan_id !== plan.id || kind !== "work" || now.has(id)) continue;
      this.tasks.delete(id);
      this.details.delete(id);
    }
    for (const task of tasks) if (!this.tasks.has(task.id)) this.tasks.set(task.id, task);
  }

  /** One look at a time: of two answers under way, the older might come last. */
  async #fetch(id: string): Promise<void> {
    if (this.#looking.has(id)) {
      this.#looking.set(id, true);
      return;
    }
    this.#looking.set(id, false);
    try {
      const details = await api.taskDetails(this.project, id);
      // It may be gone since it was asked for.
      if (details.session_id !== this.session || !this.tasks.has(id)) return;
      this.details.set(id, details);
      this.tasks.set(id, details);
    } catch (error) {
      // The next event or connection brings it.
      console.info("A task could not be shown.", error);
    } finally {
      const again = this.#looking.get(id);
      this.#looking.delete(id);
      if (again) this.look(id);
    }
  }
}

let shown: Talk | null = null;

export function showTalk(talk: Talk | null): void {
  shown?.end();
  shown = talk;
}

export const shownTalk = (): Talk | null => shown;
