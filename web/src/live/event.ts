import type { Event } from "../api/calls";
import type { Message } from "./sse";

/** The fields that every event has in addition to its own. */
interface Frame {
  /** Position in the stream; opaque apart from being unique and ordered. */
  id: string;
  project_id: string;
  created_at: string;
}

export type LiveEvent = Frame & { data: Event };

/** Parses an event; `null` if the message is not an event of a project. Newer servers may send unknown event types. */
export function parseEvent(message: Message): LiveEvent | null {
  const data = JSON.parse(message.data) as Event & Partial<Frame>;
  const { project_id, created_at } = data;
  if (typeof project_id !== "string" || typeof created_at !== "string") return null;
  return { id: message.id, project_id, created_at, data };
}

/** A piece of a message that a model is writing. It is sent once and not stored. */
export interface Delta {
  project_id: string;
  session_id: string;
  task_id: string;
  text: string;
}

/** What a running command has printed. It is sent once and not stored. */
export interface ToolOutput {
  project_id: string;
  session_id: string | null;
  tool_id: string;
  text: string;
}

export const parseOutput = (message: Message): ToolOutput => JSON.parse(message.data) as ToolOutput;
export const parseDelta = (message: Message): Delta => JSON.parse(message.data) as Delta;
