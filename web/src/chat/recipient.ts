// The agent that a project's last message went to, so that the next one goes there too.

const key = (project: string) => `atelier.recipient.${project}`;

/** The id of an agent; empty if the project plans. */
export function lastRecipient(project: string): string {
  return localStorage.getItem(key(project)) ?? "";
}

export function rememberRecipient(project: string, agent: string | null): void {
  if (agent) localStorage.setItem(key(project), agent);
  else localStorage.removeItem(key(project));
}
