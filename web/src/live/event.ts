import type { Event } from "../api/calls";
import type { Message } from "./sse";

/** What every event carries beside its own fields. */
interface Frame {
  /** Unique and in order within the stream; opaque otherwise. */
  id: string;
  project_id: string;
  created_at: string;
}

export type LiveEvent = Frame & { data: Event };

/** `null` for what is no event of a project. Newer servers may send types that this page does not know. */
export function parseEvent(message: Message): LiveEvent | null {
  const data = JSON.parse(message.data) as Event & Partial<Frame>;
  const { project_id, created_at } = data;
  if (typeof project_id !== "string" || typeof created_at !== "string") return null;
  return { id: message.id, project_id, created_at, data };
}

/** A piece of what a model is saying right now. It is told once and kept nowhere. */
export interface Delta {
  project_id: string;
  session_id: string;
  task_id: string;
  text: string;
}

export const parseDelta = (message: Message): Delta => JSON.parse(message.data) as Delta;
