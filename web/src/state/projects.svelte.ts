import * as api from "../api/calls";
import { EntityStore } from "./entityStore.svelte";

/** The projects of the signed-in user. */
export const projects = new EntityStore<api.Project>(api.projects);
