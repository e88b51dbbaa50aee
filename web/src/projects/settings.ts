// The settings of a project that Atelier knows, as the fields of a form. Other settings stay as they are.

type Settings = Record<string, unknown>;

interface NumberField {
  kind: "number";
  group: "planner" | "limits" | "budget";
  name: string;
  min: number;
  max?: number;
  /** Whether the value may have a fraction, as amounts of money have. */
  fraction?: boolean;
}

export const NUMBERS = [
  { kind: "number", group: "planner", name: "max_tasks", min: 1, max: 20 },
  { kind: "number", group: "planner", name: "approve_above", min: 0 },
  { kind: "number", group: "planner", name: "budget", min: 0, fraction: true },
  { kind: "number", group: "limits", name: "max_steps", min: 1, max: 1000 },
  { kind: "number", group: "limits", name: "max_tokens", min: 1, max: 1_000_000_000_000 },
  { kind: "number", group: "limits", name: "max_seconds", min: 1, max: 86_400 },
  { kind: "number", group: "limits", name: "max_cost", min: 0, fraction: true },
  { kind: "number", group: "budget", name: "tokens_per_day", min: 1, max: 1e15 },
  { kind: "number", group: "budget", name: "tokens_per_month", min: 1, max: 1e15 },
  { kind: "number", group: "budget", name: "cost_per_day", min: 0, max: 1e9, fraction: true },
  { kind: "number", group: "budget", name: "cost_per_month", min: 0, max: 1e9, fraction: true },
] as const satisfies NumberField[];

/** Whether scripts run without a question, after a question, or not at all. */
export const SHELL_MODES = ["free", "ask", "off"] as const;

export interface Draft {
  model: string;
  /** The number fields by `group.name`; `null` if a field is empty. */
  numbers: Record<string, number | null>;
  no_network: boolean;
  /** Whether scripts may run in a layer; empty if the project does not say. */
  shell: "" | (typeof SHELL_MODES)[number];
  /** How many seconds a question waits; `null` if the project does not say, or if it waits until it is answered. */
  wait: number | null;
  until_answered: boolean;
  /** Denied tools and commands, one per line. */
  deny: string;
}

const KNOWN = {
  "": ["policy", "planner", "limits", "budget", "approvals", "metadata"],
  "planner": ["model", "max_tasks", "budget", "approve_above"],
  "limits": ["max_steps", "max_tokens", "max_cost", "max_seconds"],
  "budget": ["tokens_per_day", "tokens_per_month", "cost_per_day", "cost_per_month"],
  "approvals": ["wait"],
  "policy": ["deny", "at_least", "no_network", "shell"],
} as const;

function group(settings: Settings, name: string): Settings {
  const value = settings[name];
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Settings)
    : {};
}

export function draftOf(settings: Settings): Draft {
  const { model } = group(settings, "planner");
  const { no_network, deny, shell } = group(settings, "policy");
  const { wait } = group(settings, "approvals");
  return {
    model: typeof model === "string" ? model : "",
    numbers: Object.fromEntries(
      NUMBERS.map(({ group: of, name }) => {
        const value = group(settings, of)[name];
        return [`${of}.${name}`, typeof value === "number" ? value : null];
      }),
    ),
    wait: typeof wait === "number" ? wait : null,
    until_answered: wait === "until_answered",
    no_network: no_network === true,
    shell: SHELL_MODES.find((mode) => mode === shell) ?? "",
    deny: Array.isArray(deny) ? deny.join("\n") : "",
  };
}

/** The settings with the values of a form. An empty field removes its setting. */
export function withDraft(settings: Settings, draft: Draft): Settings {
  const result = structuredClone(settings);
  const set = (of: string, name: string, value: unknown) => {
    const changed = { ...group(result, of) };
    if (value === null || value === "" || value === false) delete changed[name];
    else changed[name] = value;
    if (Object.keys(changed).length > 0) result[of] = changed;
    else if (of in result) delete result[of];
  };
  set("planner", "model", draft.model.trim());
  for (const { group: of, name } of NUMBERS) set(of, name, draft.numbers[`${of}.${name}`] ?? null);
  set("approvals", "wait", draft.until_answered ? "until_answered" : draft.wait);
  const deny = draft.deny.split("\n").map((line) => line.trim());
  const lines = deny.filter(Boolean);
  set("policy", "deny", lines.length > 0 ? lines : null);
  set("policy", "no_network", draft.no_network);
  set("policy", "shell", draft.shell);
  return result;
}

/** A setting that is probably misspelled, and the name that was probably meant. */
export function findMistake(settings: Settings): { name: string; meant: string } | null {
  for (const [of, known] of Object.entries(KNOWN)) {
    for (const name of Object.keys(of ? group(settings, of) : settings)) {
      if ((known as readonly string[]).includes(name)) continue;
      const meant = known.find((one) => distance(name.toLowerCase(), one) <= 2);
      if (meant) return { name, meant };
    }
  }
  return null;
}

/** How many letters have to be inserted, deleted or replaced to turn one word into the other. */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next.push(
        Math.min(
          (row[j] ?? 0) + 1,
          (next[j - 1] ?? 0) + 1,
          (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1),
        ),
      );
    row = next;
  }
  return row.at(-1) ?? 0;
}
