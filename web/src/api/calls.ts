// The operations that the console uses, one function each.

import { address, request, send } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Me = Schemas["Me"];
export type Token = Schemas["Token"];
export type SignInSession = Schemas["SignInSession"];
export type Provider = Schemas["IdentityProvider"];
export type Alive = Schemas["Liveness"];
export type Project = Schemas["Project"];
export type NewProject = Schemas["NewProject"];
export type ProjectChanges = Schemas["ProjectChanges"];
export type WorkspaceKind = Schemas["WorkspaceKind"];
export type Agent = Schemas["Agent"];
export type AgentConfig = Schemas["AgentConfig"];
export type NewAgent = Schemas["NewAgent"];
export type AgentChanges = Schemas["AgentUpdate"];
export type PartialAgentConfig = Schemas["PartialAgentConfig"];
export type WorkerSpace = Schemas["WorkerSpace"];
export type Status = Schemas["Status"];
export type CloseReason = Schemas["CloseReason"];
export type Event = Schemas["Event"];
export type ToolCall = Schemas["ToolCall"];
export type CallStatus = Schemas["CallStatus"];
export type Decision = Schemas["Decision"];
export type Audit = Schemas["Audit"];
export type Grant = Schemas["Grant"];
export type GrantScope = Schemas["GrantScope"];
export type Client = Schemas["ConnectedClient"];
export type Isolation = Schemas["ReportedIsolation"];
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

export const alive = () => request("GET", "/health");

export const signIn = (code: string) => request("POST", "/auth/sign-in", { body: { code } }, null);
export const signInBack = (body: Schemas["ProviderSignInRequest"]) =>
  request("POST", "/auth/provider", { body }, null);
export const waysIn = () => request("GET", "/auth/sign-in", {}, null);
export const me = (token: string) => request("GET", "/auth/me", {}, token);
export const refresh = () => request("POST", "/auth/refresh");
export const revoke = (token: string) =>
  request("POST", "/auth/revoke", { body: { token } }, token);
export const signInSessions = () => request("GET", "/auth/sessions");
export const endSignInSession = (sign_in: string) =>
  request("DELETE", "/auth/sessions/{sign_in}", { path: { sign_in } });
export const signOutEverywhere = () => request("POST", "/auth/sign-out-everywhere");

export type ModelsOverview = Schemas["ModelsOverview"];
export type ModelProvider = Schemas["ModelProvider"];
export type ModelLevel = Schemas["ModelLevel"];
export type TestOutcome = Schemas["TestOutcome"];
export const models = () => request("GET", "/my/models");
export const putProvider = (provider: string, body: Schemas["ProviderChange"]) =>
  request("PUT", "/my/models/providers/{provider}", { path: { provider }, body });
export const removeProvider = (provider: string, level: ModelLevel) =>
  request("DELETE", "/my/models/providers/{provider}", { path: { provider }, query: { level } });
export const testProvider = (provider: string, body: Schemas["ProviderTest"]) =>
  request("POST", "/my/models/providers/{provider}/test", { path: { provider }, body });
export const setDefaultModel = (body: Schemas["DefaultModelChange"]) =>
  request("PUT", "/my/models/default", { body });

export type UsageReport = Schemas["UsageReport"];
export type UsageSum = Schemas["UsageSum"];
export type UsageFigures = Schemas["UsageFigures"];
export type Budget = Schemas["Budget"];
export type Budgets = Schemas["Budgets"];
export type BudgetReport = Schemas["BudgetReport"];
export type BudgetChange = Schemas["BudgetChange"];
interface UsageQuery {
  level: ModelLevel;
  from: string;
  to: string;
  group_by: string;
}
export const usage = (query: UsageQuery) => request("GET", "/my/usage", { query });
export const usageAsCsv = async (query: UsageQuery) =>
  (await send(address("GET", "/my/usage", { query: { ...query, format: "csv" } }))).blob();
export const budgets = () => request("GET", "/my/budgets");
export const setBudget = (body: BudgetChange) => request("PUT", "/my/budgets", { body });

export const projects = () =>
  all(async (query) => {
    const { projects, total } = await request("GET", "/my/projects", { query });
    return { items: projects, total };
  });
export const createProject = (body: NewProject) => request("POST", "/my/projects", { body });
export const updateProject = (project: string, body: ProjectChanges) =>
  request("PUT", "/my/projects/{project}", { path: { project }, body });
export const deleteProject = (project: string) =>
  request("DELETE", "/my/projects/{project}", { path: { project } });

export const agents = (project: string) =>
  all(async (query) => {
    const { agents, total } = await request("GET", "/my/projects/{project}/agents", {
      path: { project },
      query,
    });
    return { items: agents, total };
  });
export const createAgent = (project: string, body: NewAgent) =>
  request("POST", "/my/projects/{project}/agents", { path: { project }, body });
export const updateAgent = (project: string, agent: string, body: AgentChanges) =>
  request("PUT", "/my/projects/{project}/agents/{agent}", {
    path: { project, agent },
    body,
  });
export const deleteAgent = (project: string, agent: string) =>
  request("DELETE", "/my/projects/{project}/agents/{agent}", { path: { project, agent } });

export const workerSpace = (project: string) =>
  request("GET", "/my/projects/{project}/worker-space", { path: { project } });
export const resetWorkerSpace = (project: string) =>
  request("POST", "/my/projects/{project}/worker-space/reset", { path: { project } });
export const endSession = (project: string) =>
  request("DELETE", "/my/projects/{project}/worker-space", { path: { project } });

export const waiting = () => request("GET", "/my/approvals");
export const toolCall = (project: string, tool: string) =>
  request("GET", "/my/projects/{project}/tools/{tool}", { path: { project, tool } });
/** Requests a tool call for a conversation, as the user. */
export const requestCall = (
  project: string,
  session_id: string,
  tool_name: string,
  tool_params: Record<string, unknown>,
) =>
  request("POST", "/my/projects/{project}/tools/execute", {
    path: { project },
    body: { tool_name, tool_params, session_id },
  });
export const toolCalls = (project: string, limit: number, offset: number) =>
  request("GET", "/my/projects/{project}/tools", {
    path: { project },
    query: { limit, offset },
  }).then((list) => list.tools);
export const approve = (
  project: string,
  approval: string,
  scope: GrantScope,
  include_high = false,
) =>
  request("POST", "/my/projects/{project}/approvals/{approval}/approve", {
    path: { project, approval },
    body: { scope, include_high },
  });
export const reject = (project: string, approval: string, reason: string | null) =>
  request("POST", "/my/projects/{project}/approvals/{approval}/reject", {
    path: { project, approval },
    body: { reason },
  });
/** Lets the question wait until it is answered. */
export const keepWaiting = (project: string, approval: string) =>
  request("POST", "/my/projects/{project}/approvals/{approval}/wait", {
    path: { project, approval },
    body: { wait: "until_answered" },
  });
/** Asks again about a call whose question has run out; returns the new call. */
export const askAgain = (project: string, approval: string) =>
  request("POST", "/my/projects/{project}/approvals/{approval}/ask-again", {
    path: { project, approval },
  });
export const decide = (project: string, decisions: Decision[]) =>
  request("POST", "/my/projects/{project}/approvals/decide", {
    path: { project },
    body: { decisions },
  }).then((list) => list.results);
export const grants = (project: string) =>
  request("GET", "/my/projects/{project}/grants", { path: { project } }).then(
    (list) => list.grants,
  );
export const withdraw = (project: string, grant: string) =>
  request("DELETE", "/my/projects/{project}/grants/{grant}", { path: { project, grant } });
export const audit = (project: string, limit: number, offset: number) =>
  request("GET", "/my/projects/{project}/audit", {
    path: { project },
    query: { limit, offset },
  }).then((list) => list.audit);
export const clients = (project: string) =>
  request("GET", "/my/projects/{project}/clients", { path: { project } }).then(
    (list) => list.clients,
  );
export const disconnect = (project: string, client: string) =>
  request("DELETE", "/my/projects/{project}/clients/{client}", { path: { project, client } });

export const sessions = (project: string) =>
  all(async (query) => {
    const { sessions, total } = await request("GET", "/my/projects/{project}/chat/sessions", {
      path: { project },
      query,
    });
    return { items: sessions, total };
  });
export const createSession = (project: string, title: string | null) =>
  request("POST", "/my/projects/{project}/chat/sessions", { path: { project }, body: { title } });
export const renameSession = (project: string, session: string, title: string) =>
  request("PATCH", "/my/projects/{project}/chat/sessions/{session}", {
    path: { project, session },
    body: { title },
  });
export const updateSession = (
  project: string,
  session: string,
  body: Pick<Conversation, "status" | "workspace_enabled"> & { title?: string },
) =>
  request("PATCH", "/my/projects/{project}/chat/sessions/{session}", {
    path: { project, session },
    body,
  });
export const deleteSession = (project: string, session: string) =>
  request("DELETE", "/my/projects/{project}/chat/sessions/{session}", {
    path: { project, session },
  });
export const messages = (project: string, session: string) =>
  all(async (query) => {
    const path = { project, session };
    const { messages, total } = await request(
      "GET",
      "/my/projects/{project}/chat/sessions/{session}/messages",
      { path, query },
    );
    return { items: messages, total };
  });
export const say = (project: string, session: string, body: Schemas["NewMessage"]) =>
  request("POST", "/my/projects/{project}/chat/{session}/message", {
    path: { project, session },
    body,
  });
export const tasks = (project: string, session: string) =>
  all(async (page) => {
    const query = { ...page, session };
    const { tasks, total } = await request("GET", "/my/projects/{project}/tasks", {
      path: { project },
      query,
    });
    return { items: tasks, total };
  });
/** The most tasks that `recentTasks` returns. */
export const RECENT_TASKS = 100;
/** The newest tasks of a project, in all its conversations. */
export const recentTasks = (project: string) =>
  request("GET", "/my/projects/{project}/tasks", {
    path: { project },
    query: { limit: RECENT_TASKS },
  }).then((list) => list.tasks);
export const taskDetails = (project: string, task: string) =>
  request("GET", "/my/projects/{project}/tasks/{task}", { path: { project, task } });
export const cancelTask = (project: string, task: string) =>
  request("POST", "/my/projects/{project}/tasks/{task}/cancel", { path: { project, task } });
export const resumeTask = (project: string, task: string) =>
  request("POST", "/my/projects/{project}/tasks/{task}/resume", { path: { project, task } });
export const plans = (project: string, session: string) =>
  all(async (page) => {
    const query = { ...page, session };
    const { plans, total } = await request("GET", "/my/projects/{project}/plans", {
      path: { project },
      query,
    });
    return { items: plans, total };
  });
export const plan = (project: string, plan: string) =>
  request("GET", "/my/projects/{project}/plans/{plan}", { path: { project, plan } });
export const cancelPlan = (project: string, plan: string) =>
  request("POST", "/my/projects/{project}/plans/{plan}/cancel", { path: { project, plan } });
export const approvePlan = (project: string, plan: string, tasks: ProposedTask[] | null) =>
  request("POST", "/my/projects/{project}/plans/{plan}/approve", {
    path: { project, plan },
    body: { tasks },
  });
export const rejectPlan = (project: string, plan: string, reason: string | null) =>
  request("POST", "/my/projects/{project}/plans/{plan}/reject", {
    path: { project, plan },
    body: { reason },
  });
export const bus = (project: string) =>
  request("GET", "/my/projects/{project}/bus", { path: { project } }).then(
    (report) => report.queues,
  );

interface Page {
  limit: number;
  offset: number;
}

const PAGE_SIZE = 1000;

/** All entries of a list, page by page. */
async function all<T>(get: (page: Page) => Promise<{ items: T[]; total: number }>): Promise<T[]> {
  const items: T[] = [];
  for (;;) {
    const page = await get({ limit: PAGE_SIZE, offset: items.length });
    items.push(...page.items);
    if (page.items.length < PAGE_SIZE || items.length >= page.total) return items;
  }
}
