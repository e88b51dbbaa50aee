// The operations on what an agent remembers.

import { request } from "./client";
import type { components } from "./schema";

type Schemas = components["schemas"];

export const TYPES = [
  "task_execution",
  "tool_call",
  "user_message",
  "agent_response",
] as const satisfies InteractionType[];
export type InteractionType = Schemas["InteractionType"];
export const MODES = ["hybrid", "dense", "lexical"] as const satisfies Mode[];
export type Mode = Schemas["SearchMode"];
export type Hit = Schemas["ContextResult"];
export type Found = Schemas["ContextResults"];
export type Search = Schemas["ContextSearch"];
export type Period = Schemas["ContextPeriod"];
export type Stats = Schemas["ContextStats"];
export type Pruning = Schemas["ContextPrune"];
export type Removed = Schemas["ContextRemoved"];
export type MemoryFile = Schemas["ContextFile"];

export const search = (project: string, agent: string, body: Search) =>
  request("POST", "/my/projects/{project}/agents/{agent}/context/search", {
    path: { project, agent },
    body,
  });
export const stats = (project: string, agent: string, bucket: "day" | "week") =>
  request("GET", "/my/projects/{project}/agents/{agent}/context/stats", {
    path: { project, agent },
    query: { bucket },
  });
export const prune = (project: string, agent: string, body: Pruning) =>
  request("POST", "/my/projects/{project}/agents/{agent}/context/prune", {
    path: { project, agent },
    body,
  });
export const clear = (project: string, agent: string) =>
  request("DELETE", "/my/projects/{project}/agents/{agent}/context", { path: { project, agent } });
export const forget = (project: string, agent: string, interaction: string) =>
  request("DELETE", "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}", {
    path: { project, agent, interaction },
  });
export const exported = (project: string, agent: string, include_embeddings: boolean) =>
  request("GET", "/my/projects/{project}/agents/{agent}/context/export", {
    path: { project, agent },
    query: { include_embeddings },
  });
/** What an agent remembers since a time, without embeddings. */
export const since = (project: string, agent: string, from: string) =>
  request("GET", "/my/projects/{project}/agents/{agent}/context/export", {
    path: { project, agent },
    query: { include_embeddings: false, from },
  }).then((file) => file.interactions);
/** The server checks the file, so any JSON may be sent. */
export const imported = (project: string, agent: string, file: unknown) =>
  request("POST", "/my/projects/{project}/agents/{agent}/context/import", {
    path: { project, agent },
    body: file as MemoryFile,
  });
