// What the console asks about a conversation's files. They belong to the tenant's side of the API.

import { session } from "../session/session.svelte";
import { authority, authorization, request, send } from "./client";
import { Problem, Unreachable } from "./problem";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type WorkFile = Schemas["ConversationFile"];
export type FileVersion = Schemas["FileVersion"];
export type Workspace = Schemas["WorkspaceInfo"];

const place = (conversation: string) =>
  `/api/tenants/${encodeURIComponent(session.me?.tenant ?? "")}/workspace/${encodeURIComponent(conversation)}`;
const file = (conversation: string, id: string) => `${place(conversation)}/files/${encodeURIComponent(id)}`;

export const workspace = (conversation: string) => request<Workspace>("GET", place(conversation));
export const deleteFile = (conversation: string, id: string) => request<void>("DELETE", file(conversation, id));
export const versions = (conversation: string, id: string) =>
  request<Schemas["VersionList"]>("GET", `${file(conversation, id)}/versions`).then((list) => list.versions);
export const restore = (conversation: string, id: string, version: number) =>
  request<WorkFile>("POST", `${file(conversation, id)}/restore`, { version });
export const diff = (conversation: string, id: string, from: number, to: number) =>
  send(`${file(conversation, id)}/diff?from=${from}&to=${to}`).then((response) => response.text());
export const content = (conversation: string, id: string, version: number) =>
  bytes(`${file(conversation, id)}/versions/${version}`);
export const archive = (conversation: string) => bytes(`${place(conversation)}/archive.zip`);

const bytes = (path: string) => send(path, { cache: "default" }).then((response) => response.blob());

/** Uploads one file. `fetch` does not tell how far it is, hence the older way. */
export function upload(conversation: string, path: string, content: File, progress: (part: number) => void): Promise<WorkFile[]> {
  const form = new FormData();
  form.append("path", path);
  form.append("file", content, content.name);
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("POST", `${place(conversation)}/files`);
    for (const [name, value] of Object.entries(authorization(authority.token))) sending.setRequestHeader(name, value);
    sending.upload.onprogress = ({ loaded, total }) => progress(total > 0 ? loaded / total : 0);
    authority.until.addEventListener("abort", () => sending.abort(), { once: true });
    sending.onabort = sending.onerror = () => reject(new Unreachable(sending.statusText));
    sending.onload = () => {
      if (sending.status === 201) resolve((JSON.parse(sending.responseText) as Schemas["Uploaded"]).files);
      else void Problem.from(new Response(sending.responseText, { status: sending.status })).then(reject);
    };
    sending.send(form);
  });
}
