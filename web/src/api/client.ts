import { heardServerTime } from "../state/clock";
import { Problem, Unreachable } from "./problem";

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

interface Authority {
  token: string | null;
  /** The server refused this token. */
  refused: (token: string, problem: Problem) => void;
}

/** Whose requests these are. The session sets it; nothing else does. */
export const authority: Authority = { token: null, refused: () => {} };

export function authorization(token: string | null): Record<string, string> {
  return token ? { authorization: `Bearer ${token}` } : {};
}

/** Sends a request; throws `Problem` when the server refuses and `Unreachable` when it is not there. */
export async function request<T>(
  method: Method,
  path: string,
  body?: unknown,
  token: string | null = authority.token,
): Promise<T> {
  const headers = authorization(token);
  const init: RequestInit = { method, headers, cache: "no-store" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const response = await fetch(path, init).catch((cause: unknown) => {
    throw new Unreachable(cause);
  });
  heardServerTime(response.headers.get("date"));
  if (!response.ok) {
    const problem = await Problem.from(response);
    if (response.status === 401 && token) authority.refused(token, problem);
    throw problem;
  }
  return (response.status === 204 ? undefined : await response.json()) as T;
}
