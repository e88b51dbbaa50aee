import * as api from "../api/calls";
import { ServerListByProject } from "./serverList.svelte";

/** The permissions of a project. */
export const grants = new ServerListByProject<api.Grant>(api.grants);
export const grantsOf = (project: string) => grants.of(project);
