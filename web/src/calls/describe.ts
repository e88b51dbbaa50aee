import type { ToolCall } from "../api/calls";
import tools from "../api/tools.json";
import { isKey, t } from "../i18n/index.svelte";

type Asked = Pick<ToolCall, "tool_name" | "tool_params">;

function text(params: object, name: string): string | null {
  const value = (params as Record<string, unknown>)[name];
  return typeof value === "string" ? value : null;
}

function list(params: object, name: string): string | null {
  const value = (params as Record<string, unknown>)[name];
  return Array.isArray(value) ? value.map(String).join(", ") : null;
}

interface Tool {
  name: string;
  runs_commands: boolean;
  /** A call in one line, with names of parameters in braces. */
  summary: string;
  /** Values of parameters that a call leaves out. */
  defaults: Partial<Record<string, string>>;
}

const BY_NAME = new Map<string, Tool>(tools.map((tool) => [tool.name, tool]));

/** Whether a tool runs commands, which are described by their command line. */
export function runsCommands(tool: string): boolean {
  return BY_NAME.get(tool)?.runs_commands ?? false;
}

/** The tool that a rule is about. Rules about commands begin with the command. */
export function toolOfRule(rule: string): string {
  const [first = ""] = rule.split(" ");
  return BY_NAME.has(first) ? first : "execute_command";
}

/** The file or folder that a call acts on. */
export function pathOf({ tool_params }: Asked): string | null {
  return text(tool_params, "path") ?? text(tool_params, "source");
}

/** The script that a call runs in a shell. */
export function scriptOf({ tool_params }: Asked): string | null {
  return text(tool_params, "script");
}

/** The program and its arguments, as the machine executes them without a shell. */
export function argvOf({ tool_params }: Asked): string[] {
  const { command, args } = tool_params as { command?: unknown; args?: unknown };
  return [command, ...(Array.isArray(args) ? args : [])].map((word) =>
    typeof word === "string" ? word : JSON.stringify(word),
  );
}

/** Quotes an argument if its beginning or end would be unclear. */
export function quoted(word: string): string {
  return /^[\w./=:@,+%-]+$/.test(word) ? word : JSON.stringify(word);
}

/** An argument in one line. Of a script, that is its first line; `CommandView` shows all of it. */
function firstLine(word: string): string {
  const end = word.indexOf("\n");
  return end < 0 ? quoted(word) : JSON.stringify(`${word.slice(0, end)} …`);
}

export function workingDirectory({ tool_params }: Asked): string {
  return text(tool_params, "cwd") ?? text(tool_params, "working_directory") ?? ".";
}

/** The target of a call in a few words: a path, a command or a pattern. */
export function summary(call: Asked): string {
  const tool = BY_NAME.get(call.tool_name);
  // Newer servers may have tools that this page does not know.
  if (!tool) return pathOf(call) ?? text(call.tool_params, "query") ?? "";
  const script = scriptOf(call);
  if (script !== null) {
    const [first = "", ...more] = script.trim().split("\n");
    return more.length > 0 ? `${first} …` : first;
  }
  if (tool.runs_commands) return argvOf(call).map(firstLine).join(" ");
  const value = (name: string) =>
    text(call.tool_params, name) ?? list(call.tool_params, name) ?? tool.defaults[name] ?? "";
  return tool.summary.replace(/\{(\w+)\}/g, (_, name: string) => value(name)).trim();
}

/** Names of the tools that agents can be given. */
export const TOOLS = [...BY_NAME.keys()];

/** A tool's title, such as "Write file". Newer servers may have tools that this page has no title for. */
export function toolName(name: string): string {
  const key = `tool.${name}`;
  return isKey(key) ? t(key as "tool.write_file") : name;
}

export function riskName(level: string): string {
  const key = `risk.${level}`;
  return isKey(key) ? t(key as "risk.LOW") : level;
}

type Classified = Pick<ToolCall, "tool_name" | "rule" | "class">;

/** The calls that a permission for this call's class would cover. */
export function describeClass(call: Classified): string {
  const findings = call.class?.findings ?? [];
  // A finding about a file also names how the file is used, which the rule does not.
  const decided = findings.includes(call.rule)
    ? call.rule
    : findings.find((finding) => finding.replace(/ (write|remove)$/, "") === call.rule);
  const also = findings.filter(
    (finding) => finding !== decided && !/ (\*|\S+\/\*\*)$/.test(finding),
  );
  const to = destinationsOf(call);
  let words = describeRule(call);
  if (also.length > 0) words += t("class.also", { findings: also.join(", ") });
  if (to.length > 0) words += t("class.destinations", { places: to.join(", ") });
  return words;
}

/** The destination of a call that names no address: the remote or registry that is configured. */
const AS_CONFIGURED = "as configured";

/** The addresses and remotes that a command names. */
export function destinationsOf(call: Pick<ToolCall, "class">): string[] {
  return (call.class?.destinations ?? []).filter((place) => place !== AS_CONFIGURED);
}

function describeRule({ tool_name, rule, ...call }: Classified): string {
  const folders = (call.class?.findings ?? [])
    .map((finding) => finding.split(" ")[1] ?? "")
    .filter((about) => about === "*" || about.endsWith("/**"));
  if (folders.length > 0)
    return t("class.folders", { tool: toolName(tool_name), folders: folders.join(", ") });
  const file = /\bfile\.(\w+)$/.exec(rule)?.[1];
  const key = `class.file.${file ?? ""}`;
  if (isKey(key))
    return t("class.files", { tool: toolName(tool_name), kind: t(key as "class.file.script") });
  if (tool_name === "execute_command")
    return t("class.command", {
      command: rule.replace(/^execute_command\s*/, "").replaceAll(".", " "),
    });
  return t("class.tool", { tool: toolName(tool_name) });
}

/** Whether a permission for all local git commands can be given with this call. */
export function isLocalGit(call: Pick<ToolCall, "class" | "risk_level" | "network">): boolean {
  return call.class?.local_git === true && call.risk_level === "MEDIUM" && !call.network;
}
