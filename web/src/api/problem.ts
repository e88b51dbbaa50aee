import type { components } from "./schema";

type Body = components["schemas"]["Problem"];
/** `unknown` if the answer is not from the server. */
type Code = Body["code"] | "unknown";

/** Why the server refused a request (RFC 9457). */
export class Problem extends Error {
  readonly status: number;
  readonly code: Code;

  constructor(body: Pick<Body, "status" | "detail"> & { code: Code }) {
    super(body.detail);
    this.name = "Problem";
    this.status = body.status;
    this.code = body.code;
  }

  static async from(response: Response): Promise<Problem> {
    const body: unknown = await response.json().catch(() => null);
    if (isBody(body)) return new Problem(body);
    // Something between the console and the server answered, usually a proxy.
    const detail = `HTTP ${response.status} ${response.statusText}`.trim();
    return new Problem({ status: response.status, code: "unknown", detail });
  }
}

/** The server did not answer at all. */
export class Unreachable extends Error {
  constructor(cause: unknown) {
    super("unreachable", { cause });
    this.name = "Unreachable";
  }
}

/** A tool call that failed, with the reason as people read it. */
export class CallFailed extends Error {}

function isBody(body: unknown): body is Body {
  return (
    typeof body === "object" &&
    body !== null &&
    "detail" in body &&
    "code" in body &&
    "status" in body
  );
}
