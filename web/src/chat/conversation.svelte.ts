import { SvelteMap } from "svelte/reactivity";
import * as api from "../api/calls";
import type { Delta, LiveEvent } from "../live/event";
import { ItemLoader, Loader } from "../state/loader";
import { isNewer } from "../state/time";

const ENDED: readonly api.TaskStatus[] = ["completed", "failed", "cancelled"];
export const isActive = ({ status }: Pick<api.Task, "status">) => !ENDED.includes(status);

/** The conversation that the chat page shows, kept up to date by events. */
export class OpenConversation {
  readonly project: string;
  readonly session: string;
  state = $state<"loading" | "ready" | "failed">("loading");
  error = $state.raw<unknown>(null);
  readonly messages = new SvelteMap<string, api.Message>();
  readonly tasks = new SvelteMap<string, api.Task>();
  readonly plans = new SvelteMap<string, api.Plan>();
  /** Steps and tool calls of the tasks that are expanded. */
  readonly details = new SvelteMap<string, api.TaskDetails>();
  /** Text that a task's model has written since its last step. */
  readonly streamedText = new SvelteMap<string, string>();
  /** Events that arrived before the first response, which may be older than they are. */
  #early: LiveEvent[] = [];
  #loader = new Loader(() => this.#load());
  #details = new ItemLoader<string>({
    key: (id) => id,
    load: (id) => this.#loadDetails(id),
    delayMs: 80,
  });

  /** The messages by time, but every answer after its question and before the next question. */
  readonly inOrder = $derived.by(() => {
    const answers = new Map<string, api.Message[]>();
    const first: api.Message[] = [];
    const byTime = [...this.messages.values()].sort(
      (a, b) => a.created_at.localeCompare(b.created_at) || a.id.localeCompare(b.id),
    );
    for (const message of byTime.filter((message) => !this.#repeatsError(message))) {
      const question = this.#questionOf(message);
      if (!question) first.push(message);
      else answers.set(question, [...(answers.get(question) ?? []), message]);
    }
    return first.flatMap((message) => [message, ...(answers.get(message.id) ?? [])]);
  });
  readonly active = $derived([...this.tasks.values()].filter(isActive));

  constructor(project: string, session: string) {
    this.project = project;
    this.session = session;
  }

  load(): Promise<void> {
    return this.#loader.load();
  }

  async #load(): Promise<void> {
    const before = [...this.tasks.keys()];
    try {
      const [messages, tasks, plans] = await Promise.all([
        api.messages(this.project, this.session),
        api.tasks(this.project, this.session),
        api.plans(this.project, this.session),
      ]);
      for (const message of messages) this.messages.set(message.id, message);
      // A plan that was edited before it ran has different tasks.
      const present = new Set(tasks.map(({ id }) => id));
      for (const id of before.filter((id) => !present.has(id))) {
        this.tasks.delete(id);
        this.details.delete(id);
      }
      for (const task of tasks) this.tasks.set(task.id, task);
      for (const plan of plans) this.plans.set(plan.id, plan);
      this.state = "ready";
      this.error = null;
      this.#early.splice(0).forEach((event) => this.apply(event));
      for (const id of this.details.keys()) this.refreshTask(id);
    } catch (error) {
      this.error = error;
      this.state = "failed";
    }
  }

  /** Loads the steps and calls of a task soon, and keeps them up to date. */
  refreshTask(task: string): void {
    this.#details.request(task);
  }

  applyDelta({ session_id, task_id, text }: Delta): void {
    if (session_id === this.session)
      this.streamedText.set(task_id, (this.streamedText.get(task_id) ?? "") + text);
  }

  apply(event: LiveEvent): void {
    if (event.project_id !== this.project) return;
    if (this.state !== "ready") {
      this.#early.push(event);
      return;
    }
    const { data, created_at } = event;
    switch (data.type) {
      case "MESSAGE_CREATED":
        if (data.message.session_id !== this.session) return;
        this.messages.set(data.message.id, data.message);
        this.#dropRepeatedText(data.message);
        break;
      case "TASK_QUEUED":
      case "TASK_COMPLETED":
      case "TASK_FAILED":
      case "TASK_CANCELLED":
        this.#putTask(data.task, created_at);
        break;
      case "TASK_STARTED": {
        const task = this.tasks.get(data.task_id);
        if (task && (task.status === "queued" || task.status === "waiting"))
          this.tasks.set(task.id, { ...task, status: "running", started_at: created_at });
        break;
      }
      case "TASK_PROGRESS":
        if (data.session_id !== this.session) return;
        this.streamedText.delete(data.task_id);
        this.refreshTask(data.task_id);
        break;
      case "TOOL_APPROVAL_REQUEST":
        if (data.task_id && data.session_id === this.session) this.refreshTask(data.task_id);
        break;
      case "TOOL_APPROVAL_EXTENDED":
      case "TOOL_CALL_UPDATED":
        for (const task of this.details.values())
          if (task.calls.some((call) => call.tool_id === data.tool_id)) this.refreshTask(task.id);
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

  /** Cancels all active plans and tasks of this conversation. */
  async stop(): Promise<void> {
    const plans = new Set(this.active.map((task) => task.plan_id).filter((id) => id != null));
    const alone = this.active.filter((task) => !task.plan_id);
    await Promise.all([
      ...[...plans].map(async (id) => this.plans.set(id, await api.cancelPlan(this.project, id))),
      ...alone.map(async ({ id }) => this.tasks.set(id, await api.cancelTask(this.project, id))),
    ]);
    await this.load();
  }

  close(): void {
    this.#details.clear();
  }

  /** Drops streamed text that a message repeats. The message about a stopped task does not. */
  #dropRepeatedText({ task_id, content }: api.Message): void {
    const streamed = task_id ? this.streamedText.get(task_id) : undefined;
    if (task_id && streamed && content.includes(streamed.trim())) this.streamedText.delete(task_id);
  }

  /** The message that an agent's message answers. */
  #questionOf({ id, task_id, plan_id }: api.Message): string | null {
    const work = this.tasks.get(task_id ?? "") ?? this.plans.get(plan_id ?? "");
    const question = work?.message_id;
    return question && question !== id && this.messages.has(question) ? question : null;
  }

  /** Whether a message only says why work ended, which is said where the work is shown. */
  #repeatsError(message: api.Message): boolean {
    if (message.role === "user" || !this.#questionOf(message)) return false;
    const { task_id, plan_id } = message;
    const work = this.tasks.get(task_id ?? "") ?? this.plans.get(plan_id ?? "");
    return !!work?.error && (work.status === "failed" || work.status === "cancelled");
  }

  #putTask(task: api.Task, at: string): void {
    if (task.session_id !== this.session) return;
    const known = this.tasks.get(task.id);
    // A replay repeats old events: they must not overwrite the state of a finished task.
    if (known?.completed_at && !isNewer(at, known.completed_at)) return;
    this.tasks.set(task.id, task);
    if (this.details.has(task.id) || isActive(task)) this.refreshTask(task.id);
    // What a stopped task had said stays: no message will repeat it.
    if (task.status === "completed") this.streamedText.delete(task.id);
  }

  /** Stores a plan; returns whether the event was news. A replay repeats requests that are already decided. */
  #putPlan(plan: api.Plan, at: string): boolean {
    const known = this.plans.get(plan.id);
    const answered =
      plan.status === "pending_approval" &&
      known !== undefined &&
      !["planning", "pending_approval"].includes(known.status);
    if (answered || (known?.completed_at && !isNewer(at, known.completed_at))) return false;
    this.plans.set(plan.id, plan);
    return true;
  }

  /** Replaces the tasks of a plan, which may have been edited before it ran. */
  #putTasksOf(plan: api.Plan, tasks: readonly api.Task[]): void {
    const now = new Set(tasks.map(({ id }) => id));
    for (const { id, plan_id, kind } of this.tasks.values()) {
      if (plan_id !== plan.id || kind !== "work" || now.has(id)) continue;
      this.tasks.delete(id);
      this.details.delete(id);
    }
    for (const task of tasks) if (!this.tasks.has(task.id)) this.tasks.set(task.id, task);
  }

  async #loadDetails(id: string): Promise<void> {
    // A waiting task has no steps yet, and a task of an edited plan may no longer exist.
    if ((this.tasks.get(id)?.status ?? "waiting") === "waiting") return;
    try {
      const details = await api.taskDetails(this.project, id);
      // The task may have been removed in the meantime.
      if (details.session_id !== this.session || !this.tasks.has(id)) return;
      this.details.set(id, details);
      this.tasks.set(id, details);
    } catch (error) {
      // The next event or reconnection loads it again.
      console.info("A task could not be loaded.", error);
    }
  }
}

let shown: OpenConversation | null = null;

export function setOpenConversation(conversation: OpenConversation | null): void {
  shown?.close();
  shown = conversation;
}

export const openConversation = (): OpenConversation | null => shown;
