import * as api from "../api/calls";
import { ServerListByProject } from "./serverList.svelte";

/** The queues of a project's agent bus, one for each agent. */
export const queues = new ServerListByProject<api.QueueReport>(api.bus);
export const queuesOf = (project: string) => queues.of(project);
