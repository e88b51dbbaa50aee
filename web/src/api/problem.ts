import type { components } from "./schema";

type Body = components["schemas"]["Problem"];

/** The server said no, and why (RFC 9457). */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;

  constructor(body: Pick<Body, "status" | "code" | "detail">) {
    super(body.detail);
    this.name = "Problem";
    this.status = body.status;
    this.code = body.code;
  }

  static async from(response: Response): Promise<Problem> {
    const body: unknown = await response.json().catch(() => null);
    if (isBody(body)) return new Problem(body);
    // Something between us and the server answered: a proxy, as a rule.
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

function isBody(body: unknown): body is Body {
  return typeof body === "object" && body !== null && "detail" in body && "code" in body && "status" in body;
}
