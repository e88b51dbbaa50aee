import { heardServerTime } from "../state/clock";
import { Problem, Unreachable } from "./problem";
import type { paths } from "./schema";

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** The operation that the OpenAPI document describes for a method and a path. */
type Operation<M extends Method, P extends keyof paths> = paths[P][Lowercase<M> & keyof paths[P]];

/** The paths that have an operation for a method. */
type PathOf<M extends Method> = {
  [P in keyof paths]: Operation<M, P> extends { responses: object } ? P : never;
}[keyof paths];

type Parameters<O, In extends "path" | "query"> = O extends { parameters: { [K in In]?: infer T } }
  ? NonNullable<T>
  : never;

type Body<O> = O extends { requestBody?: infer R } ? Json<NonNullable<R>> : never;

/** The JSON of a request body; `never` if there is none. */
type Json<R> = [R] extends [never]
  ? never
  : R extends { content: { "application/json": infer T } }
    ? T
    : never;

/** Optional if nothing in it is required, refused if the operation has no such part. */
type Part<Name extends string, T> = [T] extends [never]
  ? { [N in Name]?: never }
  : object extends T
    ? { [N in Name]?: T }
    : { [N in Name]: T };

type Options<O> = Part<"path", Parameters<O, "path">> &
  Part<"query", Parameters<O, "query">> &
  Part<"body", Body<O>>;

type Answer<O> = O extends { responses: infer R }
  ? {
      [S in keyof R & (200 | 201 | 202 | 204)]: R[S] extends {
        content: { "application/json": infer T };
      }
        ? T
        : void;
    }[keyof R & (200 | 201 | 202 | 204)]
  : never;

/** An argument that may be left out if nothing in it is required. */
type Arguments<O> =
  object extends Options<O>
    ? [options?: Options<O>, key?: string | null]
    : [options: Options<O>, key?: string | null];

/** What the types above leave of the options at run time. */
interface AnyOptions {
  path?: Record<string, string | number>;
  query?: Record<string, string | number | boolean | null | undefined>;
  body?: unknown;
}

interface Authority {
  /** The key of this browser's session. The session's token is in a cookie, which scripts cannot read. */
  key: string | null;
  /** Aborted when the session ends: the server would only refuse the requests that are still open. */
  until: AbortSignal;
  /** The server refused this key. */
  refused: (key: string, problem: Problem) => void;
}

/** Whose requests these are. The session sets it; nothing else does. */
export const authority: Authority = { key: null, until: AbortSignal.abort(), refused: () => {} };

export function authorization(key: string | null): Record<string, string> {
  return key ? { "atelier-session": key } : {};
}

/** The address of an operation, with its path and query parameters filled in. */
export function address<M extends Method, P extends PathOf<M>>(
  _: M,
  path: P,
  options: Omit<Options<Operation<M, P>>, "body">,
): string {
  return fill(path, options);
}

function fill(template: string, options: AnyOptions): string {
  const path = template.replace(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent(options.path?.[name] ?? ""),
  );
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== null) query.set(name, String(value));
  }
  return query.size > 0 ? `${path}?${query}` : path;
}

/** Sends a request; throws `Problem` if the server refuses it and `Unreachable` if the server does not answer. */
export async function send(
  path: string,
  init: RequestInit = {},
  key: string | null = authority.key,
): Promise<Response> {
  const headers = { ...init.headers, ...authorization(key) };
  const signal = key && key === authority.key ? authority.until : null;
  const response = await fetch(path, { cache: "no-store", signal, ...init, headers }).catch(
    (cause: unknown) => {
      throw new Unreachable(cause);
    },
  );
  heardServerTime(response.headers.get("date"));
  if (response.ok) return response;
  const problem = await Problem.from(response);
  if (response.status === 401 && key) authority.refused(key, problem);
  throw problem;
}

/** Sends and receives JSON, with the types that the OpenAPI document gives for this method and path. */
export async function request<M extends Method, P extends PathOf<M>>(
  method: M,
  path: P,
  ...[options, key]: Arguments<Operation<M, P>>
): Promise<Answer<Operation<M, P>>> {
  const given: AnyOptions = options ?? {};
  const json = {
    headers: { "content-type": "application/json" },
    body: JSON.stringify(given.body),
  };
  const response = await send(
    fill(path, given),
    { method, ...(given.body === undefined ? {} : json) },
    key,
  );
  return (response.status === 204 ? undefined : await response.json()) as Answer<Operation<M, P>>;
}
