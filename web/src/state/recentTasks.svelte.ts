import * as api from "../api/calls";
import { ServerListByProject } from "./serverList.svelte";

/** The newest tasks of a project. */
export const recentTasks = new ServerListByProject<api.Task>(api.recentTasks);
export const recentTasksOf = (project: string) => recentTasks.of(project);
