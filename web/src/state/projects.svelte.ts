import * as api from "../api/calls";
import { Known } from "./known.svelte";

/** The projects of the person who is signed in. */
export const projects = new Known<api.Project>(api.projects);
