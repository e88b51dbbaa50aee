// What the console asks of the server, one line a call.

import { request } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Me = Schemas["Me"];
export type Token = Schemas["Token"];
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

/** What is absent stays as it is, or gets its default. */
export interface AgentChanges {
  name?: string;
  config?: Partial<AgentConfig>;
}

const project = (id: string) => `/my/projects/${encodeURIComponent(id)}`;
const agent = (of: string, id: string) => `${project(of)}/agents/${encodeURIComponent(id)}`;

export const alive = () => request<Alive>("GET", "/health");

export const signIn = (code: string) => request<Token>("POST", "/auth/sign-in", { code }, null);
export const me = (token: string) => request<Me>("GET", "/auth/me", undefined, token);
export const refresh = () => request<Token>("POST", "/auth/refresh");
export const revoke = (token: string) => request<void>("POST", "/auth/revoke", { token });

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

const PAGE = 1000;

async function all<T>(get: (page: string) => Promise<{ items: T[]; total: number }>): Promise<T[]> {
  const items: T[] = [];
  for (;;) {
    const page = await get(`limit=${PAGE}&offset=${items.length}`);
    items.push(...page.items);
    if (page.items.length < PAGE || items.length >= page.total) return items;
  }
}
