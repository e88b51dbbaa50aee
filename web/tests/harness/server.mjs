// The real program: a server, and machines that connect folders to it.

import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";

const PROGRAM = process.env.ATELIER;
if (!PROGRAM) throw new Error("ATELIER names no program; run scripts/test-console");

const PATIENCE = 40_000;

/** Waits until `look` gives something true; by asking again, where nothing tells. */
export async function eventually(what, look) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function plainEnvironment() {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(ATELIER|OPENAI|ANTHROPIC)_/.test(name)));
}

/** A program that says when it is ready. */
class Running {
  output = "";
  #child;

  constructor(args, options, program = PROGRAM) {
    this.#child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
    for (const stream of [this.#child.stdout, this.#child.stderr]) stream.on("data", (data) => (this.output += data));
    this.ended = new Promise((resolve) => this.#child.once("exit", resolve));
  }

  /** Fails, and ends it, when it does not say so. */
  async says(pattern) {
    try {
      return await eventually(`the output has ${pattern}`, () => {
        if (this.#child.exitCode !== null) throw new Error("it ended");
        return pattern.exec(this.output);
      });
    } catch (error) {
      await this.stop();
      throw new Error(`${error.message}\n${this.output}`, { cause: error });
    }
  }

  async stop(signal = "SIGKILL") {
    this.#child.kill(signal);
    await this.ended;
  }
}

/** A server on a free port, with data of its own. */
export class Server {
  #data = mkdtempSync(join(tmpdir(), "atelier-console-"));
  #settings;
  #running;
  url = "";

  static async start(settings = {}) {
    const server = new Server();
    server.#settings = settings;
    await server.#launch("127.0.0.1:0");
    return server;
  }

  async #launch(listen) {
    this.#running = new Running(["serve", "--listen", listen, "--data", this.#data], {
      cwd: this.#data,
      env: { ...plainEnvironment(), ...this.#settings },
    });
    [, this.url] = await this.#running.says(/^Atelier is listening on (\S+)$/m);
  }

  /** What it printed so far, the one-time link among it. */
  get output() {
    return this.#running.output;
  }

  kill() {
    return this.#running.stop();
  }

  /** At the same address, so that an open page finds it again. */
  restart() {
    return this.#launch(new URL(this.url).host);
  }

  async stop() {
    await this.kill();
    rmSync(this.#data, { recursive: true, force: true });
  }

  /** Somebody with a token of their own. */
  person(name, ...options) {
    const env = { ...plainEnvironment(), ...this.#settings, ATELIER_DATA: this.#data };
    const token = execFileSync(PROGRAM, ["token", "--user", name, ...options], { env, cwd: this.#data, encoding: "utf8" });
    return new Person(this, token.trim());
  }
}

/** Talks to the API as any program does. */
export class Person {
  constructor(server, token) {
    this.server = server;
    this.token = token;
  }

  async ask(method, path, body, headers = {}) {
    const response = await fetch(this.server.url + path, {
      method,
      headers: { authorization: `Bearer ${this.token}`, ...(body ? { "content-type": "application/json" } : {}), ...headers },
      body: body && JSON.stringify(body),
    });
    const answer = response.status === 204 ? null : await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${JSON.stringify(answer)}`);
    return answer;
  }

  async project(name, more = {}) {
    return new Project(this, await this.ask("POST", "/my/projects", { name, ...more }));
  }
}

export class Project {
  constructor(owner, { id, name }) {
    this.owner = owner;
    this.id = id;
    this.name = name;
    this.path = `/my/projects/${id}`;
  }

  agents() {
    return this.owner.ask("GET", `${this.path}/agents`).then((list) => list.agents);
  }

  call(tool_name, tool_params, more = {}) {
    return this.owner.ask("POST", `${this.path}/tools/execute`, { tool_name, tool_params, ...more });
  }

  /** The call, once it is in this state. */
  until(call, status) {
    return eventually(`${call.tool_name} is ${status}`, async () => {
      const now = await this.owner.ask("GET", `${this.path}/tools/${call.tool_id}`);
      return now.status === status ? now : null;
    });
  }
}

/** Somebody's folder, connected to a project. */
export class Folder {
  #home = mkdtempSync(join(tmpdir(), "atelier-folder-"));
  #running;

  static async connect(project, files) {
    const folder = new Folder();
    for (const [path, content] of Object.entries(files)) folder.write(path, content);
    mkdirSync(folder.root, { recursive: true });
    const { server, token } = project.owner;
    folder.#running = new Running(["connect", folder.root, "--server", server.url, "--project", project.name, "--no-approve"], {
      cwd: folder.#home,
      env: { HOME: folder.#home, PATH: "/usr/bin:/bin", ATELIER_TOKEN: token },
    });
    await folder.#running.says(/ {2}connected$/m);
    return folder;
  }

  /** Connects as the console says: by commands in a shell, the first of which asks for a token. */
  static async follow(person, commands, files) {
    const folder = new Folder();
    for (const [path, content] of Object.entries(files)) folder.write(path, content);
    const [login, connect] = commands.split("\n");
    const program = `atelier() { "${PROGRAM}" "$@"; }; cd "${folder.root}"`;
    const env = { HOME: folder.#home, PATH: "/usr/bin:/bin" };
    execFileSync("sh", ["-c", `${program}; ${login}`], { env, input: `${person.token}\n`, stdio: ["pipe", "ignore", "ignore"] });
    folder.#running = new Running(["-c", `cd "${folder.root}"; exec ${connect.replace(/^atelier/, `"${PROGRAM}"`)} --no-approve`], { env }, "sh");
    await folder.#running.says(/ {2}connected$/m);
    return folder;
  }

  get root() {
    return join(this.#home, "shop");
  }

  write(path, content) {
    const place = join(this.root, path);
    mkdirSync(dirname(place), { recursive: true });
    writeFileSync(place, content);
  }

  read(path) {
    return readFileSync(join(this.root, path), "utf8");
  }

  has(path) {
    return existsSync(join(this.root, path));
  }

  async disconnect() {
    await this.#running.stop("SIGINT");
    rmSync(this.#home, { recursive: true, force: true });
  }
}
