// What the console asks of the server, one line a call.

import { request } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Me = Schemas["Me"];
export type Token = Schemas["Token"];
export type Provider = Schemas["Provider"];
export type Alive = Schemas["Alive"];
export type Project = Schemas["Project"];
export type NewProject = Schemas["NewProject"];
export type ProjectChanges = Schemas["ProjectChanges"];
export type WorkspaceKind = Schemas["WorkspaceKind"];
export type Agent = Schemas["Agent"];
export type AgentConfig = Schemas["AgentConfig"];
export type WorkerSpace = Schemas["WorkerSpace"];
export type Status = Schemas["Status"];
export type CloseReason = Schemas["CloseReason"];
export type Event = Schemas["Event"];
export type ToolCall = Schemas["ToolCall"];
export type CallStatus = Schemas["CallStatus"];
export type Decision = Schemas["Decision"];
export type Grant = Schemas["Grant"];
export type GrantScope = Schemas["GrantScope"];
export type Client = Schemas["ClientView"];
export type Conversation = Schemas["Conversation"];
export type Message = Schemas["Message"];
export type Task = Schemas["Task"];
export type TaskDetails = Schemas["TaskDetails"];
export type TaskStatus = Schemas["TaskStatus"];
export type Step = Schemas["Step"];
export type Plan = Schemas["Plan"];
export type PlanDetails = Schemas["PlanDetails"];
export type PlanStatus = Schemas["PlanStatus"];
export type ProposedTask = Schemas["ProposedTask"];
export type QueueReport = Schemas["QueueReport"];

/** One line of the record of decisions. */
export interface Audit {
  /** Nothing where a permission was withdrawn. */
  tool_id: string | null;
  approval_id: string | null;
  decision: "approved" | "rejected" | "expired" | "cancelled" | "granted" | "withdrawn";
  /** Nobody where time or a permission decided. */
  by: string | null;
  /** The program that said so. */
  via: string | null;
  digest: string | null;
  grant_id: string | null;
  at: string;
}

/** What is absent stays as it is, or gets its default. */
export interface AgentChanges {
  name?: string;
  config?: Partial<AgentConfig>;
}

const project = (id: string) => `/my/projects/${encodeURIComponent(id)}`;
const agent = (of: string, id: string) => `${project(of)}/agents/${encodeURIComponent(id)}`;

export const alive = () => request<Alive>("GET", "/health");

export const signIn = (code: string) => request<Token>("POST", "/auth/sign-in", { code }, null);
export const signInBack = (back: { code: string; verifier: string; redirect_uri: string }) =>
  request<Token>("POST", "/auth/provider", back, null);
export const waysIn = () => request<Schemas["Ways"]>("GET", "/auth/sign-in", undefined, null);
export const me = (token: string) => request<Me>("GET", "/auth/me", undefined, token);
export const refresh = () => request<Token>("POST", "/auth/refresh");
export const revoke = (token: string) => request<void>("POST", "/auth/revoke", { token }, token);

export const projects = () =>
  all(async (page) => {
    const list = await request<Schemas["ProjectList"]>("GET", `/my/projects?${page}`);
    return { items: list.projects, total: list.total };
  });
export const createProject = (body: NewProject) => request<Project>("POST", "/my/projects", body);
export const updateProject = (id: string, body: ProjectChanges) => request<Project>("PUT", project(id), body);
export const deleteProject = (id: string) => request<void>("DELETE", project(id));

export const agents = (of: string) =>
  all(async (page) => {
    const list = await request<Schemas["AgentList"]>("GET", `${project(of)}/agents?${page}`);
    return { items: list.agents, total: list.total };
  });
export const createAgent = (of: string, body: AgentChanges & { name: string }) =>
  request<Agent>("POST", `${project(of)}/agents`, body);
export const updateAgent = (of: string, id: string, body: AgentChanges) => request<Agent>("PUT", agent(of, id), body);
export const deleteAgent = (of: string, id: string) => request<void>("DELETE", agent(of, id));

export const workerSpace = (of: string) => request<WorkerSpace>("GET", `${project(of)}/worker-space`);
export const resetWorkerSpace = (of: string) => request<WorkerSpace>("POST", `${project(of)}/worker-space/reset`);
export const endSession = (of: string) => request<void>("DELETE", `${project(of)}/worker-space`);

export const waiting = () => request<Schemas["Waiting"]>("GET", "/my/approvals");
export const toolCall = (of: string, id: string) => request<ToolCall>("GET", `${project(of)}/tools/${encodeURIComponent(id)}`);
export const toolCalls = (of: string, limit: number, offset: number) =>
  request<Schemas["ToolCallList"]>("GET", `${project(of)}/tools?limit=${limit}&offset=${offset}`).then((list) => list.tools);
export const approve = (of: string, approval: string, scope: GrantScope, include_high = false) =>
  request<ToolCall>("POST", `${project(of)}/approvals/${encodeURIComponent(approval)}/approve`, { scope, include_high });
export const reject = (of: string, approval: string, reason: string | null) =>
  request<ToolCall>("POST", `${project(of)}/approvals/${encodeURIComponent(approval)}/reject`, { reason });
export const decide = (of: string, decisions: Decision[]) =>
  request<Schemas["DecidedList"]>("POST", `${project(of)}/approvals/decide`, { decisions }).then((list) => list.results);
export const grants = (of: string) => request<Schemas["GrantList"]>("GET", `${project(of)}/grants`).then((list) => list.grants);
export const withdraw = (of: string, grant: string) =>
  request<Grant>("DELETE", `${project(of)}/grants/${encodeURIComponent(grant)}`);
export const audit = (of: string, limit: number, offset: number) =>
  request<{ audit: Audit[] }>("GET", `${project(of)}/audit?limit=${limit}&offset=${offset}`).then((list) => list.audit);
export const clients = (of: string) => request<Schemas["ClientList"]>("GET", `${project(of)}/clients`).then((list) => list.clients);
export const disconnect = (of: string, client: string) =>
  request<void>("DELETE", `${project(of)}/clients/${encodeURIComponent(client)}`);

const session = (of: string, id: string) => `${project(of)}/chat/sessions/${encodeURIComponent(id)}`;
const task = (of: string, id: string) => `${project(of)}/tasks/${encodeURIComponent(id)}`;
const planPath = (of: string, id: string) => `${project(of)}/plans/${encodeURIComponent(id)}`;

export const sessions = (of: string) =>
  all(async (page) => {
    const list = await request<Schemas["SessionList"]>("GET", `${project(of)}/chat/sessions?${page}`);
    return { items: list.sessions, total: list.total };
  });
export const createSession = (of: string, title: string | null) =>
  request<Conversation>("POST", `${project(of)}/chat/sessions`, { title });
export const renameSession = (of: string, id: string, title: string) => request<Conversation>("PATCH", session(of, id), { title });
export const deleteSession = (of: string, id: string) => request<void>("DELETE", session(of, id));
export const messages = (of: string, id: string) =>
  all(async (page) => {
    const list = await request<Schemas["MessageList"]>("GET", `${session(of, id)}/messages?${page}`);
    return { items: list.messages, total: list.total };
  });
export const say = (of: string, id: string, body: Schemas["NewMessage"]) =>
  request<Schemas["Accepted"]>("POST", `${project(of)}/chat/${encodeURIComponent(id)}/message`, body);
export const tasks = (of: string, session: string) =>
  all(async (page) => {
    const list = await request<Schemas["TaskList"]>("GET", `${project(of)}/tasks?session=${encodeURIComponent(session)}&${page}`);
    return { items: list.tasks, total: list.total };
  });
export const taskDetails = (of: string, id: string) => request<TaskDetails>("GET", task(of, id));
export const cancelTask = (of: string, id: string) => request<Task>("POST", `${task(of, id)}/cancel`);
export const resumeTask = (of: string, id: string) => request<Task>("POST", `${task(of, id)}/resume`);
export const plans = (of: string, session: string) =>
  all(async (page) => {
    const list = await request<Schemas["PlanList"]>("GET", `${project(of)}/plans?session=${encodeURIComponent(session)}&${page}`);
    return { items: list.plans, total: list.total };
  });
export const plan = (of: string, id: string) => request<PlanDetails>("GET", planPath(of, id));
export const cancelPlan = (of: string, id: string) => request<Plan>("POST", `${planPath(of, id)}/cancel`);
export const approvePlan = (of: string, id: string, tasks: ProposedTask[] | null) =>
  request<Plan>("POST", `${planPath(of, id)}/approve`, { tasks });
export const rejectPlan = (of: string, id: string, reason: string | null) =>
  request<Plan>("POST", `${planPath(of, id)}/reject`, { reason });
export const bus = (of: string) => request<Schemas["BusReport"]>("GET", `${project(of)}/bus`).then((report) => report.queues);

const PAGE = 1000;

async function all<T>(get: (page: string) => Promise<{ items: T[]; total: number }>): Promise<T[]> {
  const items: T[] = [];
  for (;;) {
    const page = await get(`limit=${PAGE}&offset=${items.length}`);
    items.push(...page.items);
    if (page.items.length < PAGE || items.length >= page.total) return items;
  }
}
