import * as api from "../api/calls";
import { ServerListByProject } from "./serverList.svelte";
import { projects } from "./projects.svelte";

/** The machines that are connected to a project; the first one runs its calls. */
export const clients = new ServerListByProject<api.Client>(api.clients);
export const clientsOf = (project: string) => clients.of(project);

/** Whether a project works in a folder on a machine but no machine is connected. */
export function lacksMachine(project: string): boolean {
  const { state, list } = clientsOf(project);
  return (
    projects.all.get(project)?.workspace === "client" && state === "ready" && list.length === 0
  );
}
