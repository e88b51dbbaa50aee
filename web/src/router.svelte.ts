import type { ProjectSection } from "./projects/sections";

export type Route =
  | { page: "home" }
  | { page: "approvals"; tool: string | null }
  | { page: "projects"; dialog: "new" | null }
  | { page: "project"; project: string; dialog: ProjectDialog }
  | { page: "chat"; project: string; session: string | null; agent: string | null }
  | { page: "changes"; project: string; conversation: string | null }
  | { page: "files"; project: string; conversation: string | null }
  | { page: "memory"; project: string; agent: string | null }
  | { page: "decisions"; project: string }
  | { page: "internals"; project: string }
  | { page: "overview" }
  | { page: "activity" }
  | { page: "account" }
  | { page: "models" }
  | { page: "usage" }
  | { page: "not_found" };

type ProjectDialog =
  null | { kind: "settings" } | { kind: "new_agent" } | { kind: "agent"; agent: string };

function parse(hash: string): Route {
  const parts = hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  const [head, second] = parts;
  // A sign-in link opens the first page; `takeSignInCode` removes its code from the address.
  if (!head || head.startsWith("sign-in=")) return { page: "home" };
  if (head === "approvals" && parts.length <= 2) return { page: "approvals", tool: second ?? null };
  if (head === "overview" && parts.length === 1) return { page: "overview" };
  if (head === "account" && parts.length === 1) return { page: "account" };
  if (head === "models" && parts.length === 1) return { page: "models" };
  if (head === "usage" && parts.length === 1) return { page: "usage" };
  if (head === "activity" && parts.length === 1) return { page: "activity" };
  if (head !== "projects") return { page: "not_found" };
  if (!second) return { page: "projects", dialog: null };
  if (second === "new" && parts.length === 2) return { page: "projects", dialog: "new" };
  return parseProject(second, parts.slice(2));
}

function parseProject(project: string, rest: string[]): Route {
  const [part, thing, ...more] = rest;
  if (part === "chat" && more.length <= 1)
    return { page: "chat", project, session: thing ?? null, agent: more[0] ?? null };
  if (more.length > 0) return { page: "not_found" };
  if (!part) return { page: "project", project, dialog: null };
  if (part === "changes") return { page: "changes", project, conversation: thing ?? null };
  if (part === "files") return { page: "files", project, conversation: thing ?? null };
  if (part === "memory") return { page: "memory", project, agent: thing ?? null };
  if (part === "settings" && !thing)
    return { page: "project", project, dialog: { kind: "settings" } };
  if (part === "decisions" && !thing) return { page: "decisions", project };
  if (part === "server" && !thing) return { page: "internals", project };
  if (part !== "agents" || !thing) return { page: "not_found" };
  return {
    page: "project",
    project,
    dialog: thing === "new" ? { kind: "new_agent" } : { kind: "agent", agent: thing },
  };
}

let current = $state.raw<Route>(parse(location.hash));
/** The address that the console itself goes to, without a link or a button of the browser. */
let destination: string | null = null;
let leftByUser = false;
addEventListener("hashchange", () => {
  leftByUser = location.hash !== destination;
  destination = null;
  current = parse(location.hash);
});

export const router = {
  get route(): Route {
    return current;
  },
  go(href: string): void {
    destination = href;
    location.hash = href;
  },
  /** Whether the user has opened the present page, by a link or a button of the browser. */
  get wasLeftByUser(): boolean {
    return leftByUser;
  },
  /** Returns a function that tells whether the user is still on this page. After a slow request, check it before navigating. */
  trackPage(): () => boolean {
    const place = location.hash;
    return () => location.hash === place;
  },
};

export const link = {
  home: () => "#/",
  approvals: () => "#/approvals",
  approval: (tool: string) => `#/approvals/${tool}`,
  projects: () => "#/projects",
  newProject: () => "#/projects/new",
  activity: () => "#/activity",
  overview: () => "#/overview",
  account: () => "#/account",
  models: () => "#/models",
  usage: () => "#/usage",
  project: (id: string) => `#/projects/${id}`,
  settings: (id: string) => `#/projects/${id}/settings`,
  section: (id: string, section: ProjectSection) =>
    section === "overview" ? `#/projects/${id}` : `#/projects/${id}/${section}`,
  chat: (project: string, session: string) => `#/projects/${project}/chat/${session}`,
  newChat: (project: string, agent?: string) =>
    `#/projects/${project}/chat/new${agent ? `/${agent}` : ""}`,
  changes: (project: string, conversation: string) =>
    `#/projects/${project}/changes/${conversation}`,
  files: (project: string, conversation: string) => `#/projects/${project}/files/${conversation}`,
  memory: (project: string, agent: string) => `#/projects/${project}/memory/${agent}`,
  newAgent: (project: string) => `#/projects/${project}/agents/new`,
  agent: (project: string, id: string) => `#/projects/${project}/agents/${id}`,
};
