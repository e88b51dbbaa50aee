import { heardServerTime } from "../state/clock";
import { Problem, Unreachable } from "./problem";

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

interface Authority {
  token: string | null;
  /** Aborted when the session ends: whatever it still waits for would only be refused. */
  until: AbortSignal;
  /** The server refused this token. */
  refused: (token: string, problem: Problem) => void;
}

/** Whose requests these are. The session sets it; nothing else does. */
export const authority: Authority = { token: null, until: AbortSignal.abort(), refused: () => {} };

export function authorization(token: string | null): Record<string, string> {
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** Sends a request; throws `Problem` when the server refuses and `Unreachable` when it is not there. */
export async function send(path: string, init: RequestInit = {}, token: string | null = authority.token): Promise<Response> {
  const headers = { ...init.headers, ...authorization(token) };
  const signal = token && token === authority.token ? authority.until : null;
  const response = await fetch(path, { cache: "no-store", signal, ...init, headers }).catch((cause: unknown) => {
    throw new Unreachable(cause);
  });
  heardServerTime(response.headers.get("date"));
  if (response.ok) return response;
  const problem = await Problem.from(response);
  if (response.status === 401 && token) authority.refused(token, problem);
  throw problem;
}

/** Sends and receives JSON. */
export async function request<T>(
  method: Method,
  path: string,
  body?: unknown,
  token?: string | null,
): Promise<T> {
  const json = { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await send(path, { method, ...(body === undefined ? {} : json) }, token);
  return (response.status === 204 ? undefined : await response.json()) as T;
}
