import type { ToolCall } from "../api/calls";
import { en } from "../i18n/en";
import { isKey, t } from "../i18n/index.svelte";

type Asked = Pick<ToolCall, "tool_name" | "tool_params">;

function text(params: object, name: string): string | null {
  const value = (params as Record<string, unknown>)[name];
  return typeof value === "string" ? value : null;
}

/** The file or folder that a call is about. */
export function pathOf({ tool_params }: Asked): string | null {
  return text(tool_params, "path") ?? text(tool_params, "source");
}

/** The words of a command, as the machine gets them: one program and its arguments, no shell. */
export function argvOf({ tool_params }: Asked): string[] {
  const { command, args } = tool_params as { command?: unknown; args?: unknown };
  return [command, ...(Array.isArray(args) ? args : [])].map((word) => (typeof word === "string" ? word : JSON.stringify(word)));
}

/** One word so that it shows where it begins and ends. */
export function quoted(word: string): string {
  return /^[\w./=:@,+%-]+$/.test(word) ? word : JSON.stringify(word);
}

export function workingDirectory({ tool_params }: Asked): string {
  return text(tool_params, "cwd") ?? text(tool_params, "working_directory") ?? ".";
}

/** What a call wants, in a few words. */
export function summary(call: Asked): string {
  switch (call.tool_name) {
    case "execute_command":
      return argvOf(call).map(quoted).join(" ");
    case "move_file":
      return `${pathOf(call) ?? ""} → ${text(call.tool_params, "destination") ?? ""}`;
    default:
      return pathOf(call) ?? text(call.tool_params, "pattern") ?? text(call.tool_params, "query") ?? "";
  }
}

/** The tools that agents may be given, by name. */
export const TOOLS = Object.keys(en)
  .filter((key) => key.startsWith("tool."))
  .map((key) => key.slice("tool.".length));

/** What is done, as a heading: "Write file". Newer servers may have tools that this page has no words for. */
export function toolName(name: string): string {
  const key = `tool.${name}`;
  return isKey(key) ? t(key as "tool.write_file") : name;
}

export function riskName(level: string): string {
  const key = `risk.${level}`;
  return isKey(key) ? t(key as "risk.LOW") : level;
}

/** Which other calls a permission for the whole class would let through. */
export function classWords({ tool_name, rule }: Pick<ToolCall, "tool_name" | "rule">): string {
  const file = /\bfile\.(\w+)$/.exec(rule)?.[1];
  const key = `class.file.${file ?? ""}`;
  if (isKey(key)) return t("class.files", { tool: toolName(tool_name), kind: t(key as "class.file.script") });
  if (tool_name === "execute_command") return t("class.command", { command: rule.replace(/^execute_command\s*/, "").replaceAll(".", " ") });
  return t("class.tool", { tool: toolName(tool_name) });
}
