export type Route =
  | { page: "projects"; dialog: "new" | null }
  | { page: "project"; project: string; dialog: ProjectDialog }
  | { page: "activity" }
  | { page: "not_found" };

type ProjectDialog = null | { kind: "settings" } | { kind: "new_agent" } | { kind: "agent"; agent: string };

function parse(hash: string): Route {
  const parts = hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  const [head, project, sub, agent] = parts;
  // A sign-in link leads to the first page; its code is taken out of the address elsewhere.
  if (!head || head.startsWith("sign-in=") || (head === "projects" && parts.length === 1)) return { page: "projects", dialog: null };
  if (head === "activity" && parts.length === 1) return { page: "activity" };
  if (head !== "projects" || !project || parts.length > 4) return { page: "not_found" };
  if (!sub) return project === "new" ? { page: "projects", dialog: "new" } : { page: "project", project, dialog: null };
  if (sub === "settings" && !agent) return { page: "project", project, dialog: { kind: "settings" } };
  if (sub !== "agents" || !agent) return { page: "not_found" };
  const dialog: ProjectDialog = agent === "new" ? { kind: "new_agent" } : { kind: "agent", agent };
  return { page: "project", project, dialog };
}

let current = $state.raw<Route>(parse(location.hash));
addEventListener("hashchange", () => (current = parse(location.hash)));

export const router = {
  get route(): Route {
    return current;
  },
  go(href: string): void {
    location.hash = href;
  },
};

export const link = {
  projects: () => "#/projects",
  newProject: () => "#/projects/new",
  activity: () => "#/activity",
  project: (id: string) => `#/projects/${id}`,
  settings: (id: string) => `#/projects/${id}/settings`,
  newAgent: (project: string) => `#/projects/${project}/agents/new`,
  agent: (project: string, id: string) => `#/projects/${project}/agents/${id}`,
};
