import * as api from "../api/calls";
import { ListedByProject } from "./listed.svelte";

/** The agent bus of a project: what waits and what runs, for each agent. */
export const queues = new ListedByProject<api.QueueReport>(api.bus);
export const queuesOf = (project: string) => queues.of(project);
