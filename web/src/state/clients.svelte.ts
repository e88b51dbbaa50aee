import * as api from "../api/calls";
import { ListedByProject } from "./listed.svelte";

/** The machines that are connected to a project; the first one runs its calls. */
export const clients = new ListedByProject<api.Client>(api.clients);
export const clientsOf = (project: string) => clients.of(project);
