import type { ToolCall } from "../api/calls";
import { en } from "../i18n/en";
import { isKey, t } from "../i18n/index.svelte";

type Asked = Pick<ToolCall, "tool_name" | "tool_params">;

function text(params: object, name: string): string | null {
  const value = (params as Record<string, unknown>)[name];
  return typeof value === "string" ? value : null;
}

/** The file or folder that a call acts on. */
export function pathOf({ tool_params }: Asked): string | null {
  return text(tool_params, "path") ?? text(tool_params, "source");
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

export function workingDirectory({ tool_params }: Asked): string {
  return text(tool_params, "cwd") ?? text(tool_params, "working_directory") ?? ".";
}

/** The target of a call in a few words: a path, a command or a pattern. */
export function summary(call: Asked): string {
  switch (call.tool_name) {
    case "execute_command":
      return argvOf(call).map(quoted).join(" ");
    case "move_file":
      return `${pathOf(call) ?? ""} → ${text(call.tool_params, "destination") ?? ""}`;
    default:
      return (
        pathOf(call) ?? text(call.tool_params, "pattern") ?? text(call.tool_params, "query") ?? ""
      );
  }
}

/** Names of the tools that agents can be given. */
export const TOOLS = Object.keys(en)
  .filter((key) => key.startsWith("tool."))
  .map((key) => key.slice("tool.".length));

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
  const also = (call.class?.findings ?? []).filter((finding) => finding !== call.rule);
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

function describeRule({ tool_name, rule }: Classified): string {
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
