import * as api from "../api/calls";
import { ListedByProject } from "./listed.svelte";

/** The standing permissions of a project. */
export const grants = new ListedByProject<api.Grant>(api.grants);
export const grantsOf = (project: string) => grants.of(project);
