// What the console asks about what an agent remembers.

import { request } from "./client";

export const TYPES = ["task_execution", "tool_call", "user_message", "agent_response"] as const;
export type InteractionType = (typeof TYPES)[number];
export const MODES = ["hybrid", "dense", "lexical"] as const;
export type Mode = (typeof MODES)[number];

export interface Hit {
  id: string;
  text: string;
  interaction_type: InteractionType;
  success: boolean;
  error_details: string | null;
  timestamp: string;
  task_id: string | null;
  session_id: string | null;
  score: number;
  score_parts: { dense: number | null; lexical: number | null; recency: number | null };
}

export interface Found {
  results: Hit[];
  degraded: string | null;
}

export interface Search {
  query: string;
  k: number;
  types: InteractionType[];
  success?: boolean;
  from?: string;
  to?: string;
  mode: Mode;
}

export interface Period {
  start: string;
  total: number;
  by_type: Record<InteractionType, number>;
  success_rate: number | null;
}

export interface Stats {
  collection: string;
  total_vectors: number;
  max_vectors: number;
  collection_size_mb: number | null;
  oldest_interaction: string | null;
  newest_interaction: string | null;
  by_type: Record<InteractionType, number>;
  success_rate: number | null;
  embedder: string | null;
  dimension: number | null;
  waiting: number;
  periods?: Period[];
}

export interface Pruning {
  days?: number;
  max_vectors?: number;
  success?: boolean;
  types: InteractionType[];
  dry_run: boolean;
}

export interface Removed {
  deleted: number;
  remaining: number;
  dry_run: boolean;
}

const place = (project: string, agent: string) =>
  `/my/projects/${encodeURIComponent(project)}/agents/${encodeURIComponent(agent)}/context`;

export const search = (project: string, agent: string, body: Search) => request<Found>("POST", `${place(project, agent)}/search`, body);
export const stats = (project: string, agent: string, bucket: "day" | "week") =>
  request<Stats>("GET", `${place(project, agent)}/stats?bucket=${bucket}`);
export const prune = (project: string, agent: string, body: Pruning) => request<Removed>("POST", `${place(project, agent)}/prune`, body);
export const clear = (project: string, agent: string) => request<Removed>("DELETE", place(project, agent));
export const forget = (project: string, agent: string, id: string) =>
  request<void>("DELETE", `${place(project, agent)}/interactions/${encodeURIComponent(id)}`);
export const exported = (project: string, agent: string, embeddings: boolean) =>
  request<object>("GET", `${place(project, agent)}/export?include_embeddings=${embeddings}`);
export const imported = (project: string, agent: string, file: unknown) =>
  request<{ imported: number; skipped: number; indexed: boolean }>("POST", `${place(project, agent)}/import`, file);
