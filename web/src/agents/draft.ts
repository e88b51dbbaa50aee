import type { Agent, AgentConfig, NewAgent, PartialAgentConfig } from "../api/calls";
import { parseObject, showObject } from "../ui/JsonField.svelte";
import { readMetadata, writeMetadata } from "./metadata";

/** An agent as the form edits it: lists as lines of text, JSON as text. */
export interface Draft {
  name: string;
  system_prompt: string;
  model: string;
  temperature: number;
  max_tokens: number;
  concurrency_limit: number;
  max_vectors: number;
  /** Budget of one task; `null` to use the limits of the project and the server. */
  max_steps: number | null;
  max_task_tokens: number | null;
  max_seconds: number | null;
  max_cost: number | null;
  tools: string;
  role: string;
  capabilities: string;
  rest: string;
}

/** The server's defaults, which a new agent's form starts with. */
const DEFAULTS: AgentConfig = {
  system_prompt: "You are a helpful assistant.",
  model: "gpt-4",
  temperature: 0.7,
  max_tokens: 2048,
  concurrency_limit: 3,
  max_vectors: 1_000_000,
  limits: { max_steps: null, max_tokens: null, max_cost: null, max_seconds: null },
};

export function draftOf(agent?: Agent): Draft {
  const { tools = [], metadata = {}, limits, ...config } = agent?.config ?? DEFAULTS;
  void limits;
  const known = readMetadata(metadata);
  return {
    ...config,
    name: agent?.name ?? "",
    max_steps: limits?.max_steps ?? null,
    max_task_tokens: limits?.max_tokens ?? null,
    max_seconds: limits?.max_seconds ?? null,
    max_cost: limits?.max_cost ?? null,
    tools: tools.join("\n"),
    role: known.role,
    capabilities: known.capabilities.join("\n"),
    rest: showObject(known.rest),
  };
}

export function lines(text: string): string[] {
  return [...new Set(text.split("\n").map((line) => line.trim()))].filter(Boolean);
}

/** Only the fields that the user changed, so that saving does not overwrite other people's changes. */
export function changes(before: Draft, after: Draft): Partial<NewAgent> {
  const differs = (field: keyof Draft) => before[field] !== after[field];
  const config: PartialAgentConfig = {};
  if (differs("system_prompt")) config.system_prompt = after.system_prompt;
  if (differs("model")) config.model = after.model.trim();
  for (const field of ["temperature", "max_tokens", "concurrency_limit", "max_vectors"] as const) {
    if (differs(field)) config[field] = after[field];
  }
  if (
    differs("max_steps") ||
    differs("max_task_tokens") ||
    differs("max_seconds") ||
    differs("max_cost")
  ) {
    const { max_steps, max_task_tokens: max_tokens, max_seconds, max_cost } = after;
    config.limits = { max_steps, max_tokens, max_seconds, max_cost };
  }
  if (differs("tools")) config.tools = lines(after.tools);
  if (differs("role") || differs("capabilities") || differs("rest")) {
    config.metadata = writeMetadata({
      role: after.role.trim(),
      capabilities: lines(after.capabilities),
      rest: parseObject(after.rest),
    });
  }
  return {
    ...(differs("name") ? { name: after.name } : {}),
    ...(Object.keys(config).length > 0 ? { config } : {}),
  };
}
