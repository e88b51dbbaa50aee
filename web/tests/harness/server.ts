// Starts the real program: servers, and `atelier connect` for folders.

import { execFileSync, spawn, type ChildProcess, type SpawnOptions } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { components, paths } from "../../src/api/schema.d.ts";

type Schemas = components["schemas"];
export type ToolCall = Schemas["ToolCall"];
type PendingApprovals =
  paths["/my/approvals"]["get"]["responses"][200]["content"]["application/json"];
type Files = Record<string, string>;
type Settings = Record<string, string>;

const PROGRAM = process.env.ATELIER ?? "";
if (!PROGRAM) throw new Error("ATELIER is not set; run scripts/test-console");

const TIMEOUT_MS = 40_000;

/** Polls until `check` returns something truthy, for conditions that nothing announces. */
export async function eventually<T>(
  what: string,
  check: () => T | Promise<T>,
): Promise<Exclude<T, null | undefined | false>> {
  const deadline = Date.now() + TIMEOUT_MS;
  for (;;) {
    const found = await check();
    if (found) return found as Exclude<T, null | undefined | false>;
    if (Date.now() > deadline) throw new Error(`timed out: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function cleanEnvironment(): NodeJS.ProcessEnv {
  const isOurs = ([name]: [string, unknown]) =>
    !/^(ATELIER|OPENAI|ANTHROPIC|OPENROUTER)_/.test(name);
  return {
    ...Object.fromEntries(Object.entries(process.env).filter(isOurs)),
    // The developer's own Ollama is not used. Nothing listens on this port.
    ATELIER_PROVIDERS__OLLAMA__BASE_URL: "http://127.0.0.1:9/v1",
  };
}

/** A running program whose output is collected. */
class RunningProgram {
  output = "";
  readonly ended: Promise<unknown>;
  #child: ChildProcess;

  constructor(args: string[], options: SpawnOptions, program = PROGRAM) {
    this.#child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.on("data", (data) => (this.output += String(data)));
    }
    this.ended = new Promise((resolve) => this.#child.once("exit", resolve));
  }

  /** Waits for output that matches; otherwise stops the program and fails. */
  async waitForOutput(pattern: RegExp): Promise<RegExpExecArray> {
    try {
      return await eventually(`the output has ${pattern}`, () => {
        if (this.#child.exitCode !== null) throw new Error("the program ended");
        return pattern.exec(this.output);
      });
    } catch (error) {
      await this.stop();
      throw new Error(`${String(error)}\n${this.output}`, { cause: error });
    }
  }

  async stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    this.#child.kill(signal);
    await this.ended;
  }
}

/** A server on a free port, with its own data folder. */
export class Server {
  url = "";
  #data = mkdtempSync(join(tmpdir(), "atelier-console-"));
  #settings: Settings;
  #program!: RunningProgram;

  private constructor(settings: Settings) {
    this.#settings = settings;
  }

  static async start(settings: Settings = {}): Promise<Server> {
    const server = new Server(settings);
    await server.#launch("127.0.0.1:0");
    return server;
  }

  async #launch(listen: string): Promise<void> {
    this.#program = new RunningProgram(["serve", "--listen", listen, "--data", this.#data], {
      cwd: this.#data,
      env: { ...cleanEnvironment(), ...this.#settings },
    });
    const [, url = ""] = await this.#program.waitForOutput(/^Atelier is listening on (\S+)$/m);
    this.url = url;
  }

  /** The output so far, including the one-time sign-in link. */
  get output(): string {
    return this.#program.output;
  }

  kill(): Promise<void> {
    return this.#program.stop();
  }

  /** Starts again at the same address, so that open pages can reconnect. */
  restart(): Promise<void> {
    return this.#launch(new URL(this.url).host);
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.#data, { recursive: true, force: true });
  }

  /** A user with a new token. */
  user(name: string, ...options: string[]): User {
    const env = { ...cleanEnvironment(), ...this.#settings, ATELIER_DATA: this.#data };
    const args = ["token", "--user", name, ...options];
    return new User(
      this,
      execFileSync(PROGRAM, args, { env, cwd: this.#data, encoding: "utf8" }).trim(),
    );
  }
}

/** A client of the API. */
export class User {
  readonly server: Server;
  readonly token: string;

  constructor(server: Server, token: string) {
    this.server = server;
    this.token = token;
  }

  async request<T>(method: string, path: string, body?: object): Promise<T> {
    const response = await fetch(this.server.url + path, {
      method,
      headers: {
        authorization: `Bearer ${this.token}`,
        ...(body ? { "content-type": "application/json" } : {}),
      },
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    const answer: unknown = response.status === 204 ? null : await response.json();
    if (!response.ok)
      throw new Error(`${method} ${path}: ${response.status} ${JSON.stringify(answer)}`);
    return answer as T;
  }

  pendingApprovals(): Promise<PendingApprovals> {
    return this.request("GET", "/my/approvals");
  }

  async project(name: string, more: object = {}): Promise<Project> {
    return new Project(this, await this.request("POST", "/my/projects", { name, ...more }));
  }
}

export class Project {
  readonly owner: User;
  readonly id: string;
  readonly name: string;
  readonly path: string;

  constructor(owner: User, { id, name }: Pick<Schemas["Project"], "id" | "name">) {
    this.owner = owner;
    this.id = id;
    this.name = name;
    this.path = `/my/projects/${id}`;
  }

  async agents(): Promise<Schemas["Agent"][]> {
    return (await this.owner.request<Schemas["AgentList"]>("GET", `${this.path}/agents`)).agents;
  }

  conversation(title: string): Promise<Schemas["Conversation"]> {
    return this.owner.request("POST", `${this.path}/chat/sessions`, { title });
  }

  send(conversation: string, message: object): Promise<Schemas["Accepted"]> {
    return this.owner.request("POST", `${this.path}/chat/${conversation}/message`, message);
  }

  call(tool_name: string, tool_params: object, more: object = {}): Promise<ToolCall> {
    return this.owner.request("POST", `${this.path}/tools/execute`, {
      tool_name,
      tool_params,
      ...more,
    });
  }

  cancel(call: ToolCall): Promise<ToolCall> {
    return this.owner.request("POST", `${this.path}/tools/${call.tool_id}/cancel`);
  }

  /** Waits until a call has this status. */
  waitForStatus(call: ToolCall, status: ToolCall["status"]): Promise<ToolCall> {
    return eventually(`${call.tool_name} is ${status}`, async () => {
      const now = await this.owner.request<ToolCall>("GET", `${this.path}/tools/${call.tool_id}`);
      return now.status === status ? now : null;
    });
  }
}

/** A folder that `atelier connect` has connected to a project. */
export class ConnectedFolder {
  #home = mkdtempSync(join(tmpdir(), "atelier-folder-"));
  #program!: RunningProgram;

  private constructor(files: Files) {
    mkdirSync(this.root, { recursive: true });
    for (const [path, content] of Object.entries(files)) this.write(path, content);
  }

  static async connect(project: Project, files: Files): Promise<ConnectedFolder> {
    const folder = new ConnectedFolder(files);
    const { server, token } = project.owner;
    const args = [
      "connect",
      folder.root,
      "--server",
      server.url,
      "--project",
      project.name,
      "--no-approve",
    ];
    folder.#program = new RunningProgram(args, {
      cwd: folder.#home,
      env: { HOME: folder.#home, PATH: "/usr/bin:/bin", ATELIER_TOKEN: token },
    });
    await folder.#program.waitForOutput(/ {2}connected$/m);
    return folder;
  }

  /** Runs the command that the console shows in a shell, as a user who pastes it. */
  static async connectByCommand(shown: string, files: Files): Promise<ConnectedFolder> {
    const folder = new ConnectedFolder(files);
    const env = { HOME: folder.#home, PATH: "/usr/bin:/bin" };
    const command = `${shown.replace(/^atelier/, `"${PROGRAM}"`)} --no-approve`;
    folder.#program = new RunningProgram(
      ["-c", `cd "${folder.root}"; exec ${command}`],
      { env },
      "sh",
    );
    await folder.#program.waitForOutput(/ {2}connected$/m);
    return folder;
  }

  get root(): string {
    return join(this.#home, "shop");
  }

  write(path: string, content: string): void {
    const target = join(this.root, path);
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, content);
  }

  read(path: string): string {
    return readFileSync(join(this.root, path), "utf8");
  }

  has(path: string): boolean {
    return existsSync(join(this.root, path));
  }

  async disconnect(): Promise<void> {
    await this.#program.stop("SIGINT");
    rmSync(this.#home, { recursive: true, force: true });
  }
}
