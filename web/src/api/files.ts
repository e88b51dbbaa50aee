// The operations on a conversation's files.

import { session } from "../session/session.svelte";
import { address, authority, authorization, request, send } from "./client";
import { Problem, Unreachable } from "./problem";
import type { components } from "./schema";

type Schemas = components["schemas"];

export type WorkFile = Schemas["ConversationFile"];
export type FileVersion = Schemas["FileVersion"];
export type Workspace = Schemas["WorkspaceInfo"];

const tenant = () => session.me?.tenant ?? "";

export const workspace = (conversation: string) =>
  request("GET", "/api/tenants/{tenant}/workspace/{conversation}", {
    path: { tenant: tenant(), conversation },
  });
export const deleteFile = (conversation: string, file: string) =>
  request("DELETE", "/api/tenants/{tenant}/workspace/{conversation}/files/{file}", {
    path: { tenant: tenant(), conversation, file },
  });
export const versions = (conversation: string, file: string) =>
  request("GET", "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/versions", {
    path: { tenant: tenant(), conversation, file },
  }).then((list) => list.versions);
export const restore = (conversation: string, file: string, version: number) =>
  request("POST", "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/restore", {
    path: { tenant: tenant(), conversation, file },
    body: { version },
  });
export const diff = (conversation: string, file: string, from: number, to: number) =>
  send(
    address("GET", "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/diff", {
      path: { tenant: tenant(), conversation, file },
      query: { from, to },
    }),
  ).then((response) => response.text());
export const content = (conversation: string, file: string, number: number) =>
  bytes(
    address(
      "GET",
      "/api/tenants/{tenant}/workspace/{conversation}/files/{file}/versions/{number}",
      {
        path: { tenant: tenant(), conversation, file, number },
      },
    ),
  );
export const archive = (conversation: string) =>
  bytes(
    address("GET", "/api/tenants/{tenant}/workspace/{conversation}/archive.zip", {
      path: { tenant: tenant(), conversation },
    }),
  );

const bytes = (path: string) =>
  send(path, { cache: "default" }).then((response) => response.blob());

/** Uploads one file. It uses `XMLHttpRequest`, because `fetch` does not report the progress of an upload. */
export function upload(
  conversation: string,
  path: string,
  content: File,
  progress: (part: number) => void,
): Promise<WorkFile[]> {
  const form = new FormData();
  form.append("path", path);
  form.append("file", content, content.name);
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    const path = { tenant: tenant(), conversation };
    sending.open(
      "POST",
      address("POST", "/api/tenants/{tenant}/workspace/{conversation}/files", { path }),
    );
    for (const [name, value] of Object.entries(authorization(authority.key)))
      sending.setRequestHeader(name, value);
    sending.upload.onprogress = ({ loaded, total }) => progress(total > 0 ? loaded / total : 0);
    authority.until.addEventListener("abort", () => sending.abort(), { once: true });
    sending.onabort = sending.onerror = () => reject(new Unreachable(sending.statusText));
    sending.onload = () => {
      if (sending.status === 201)
        resolve((JSON.parse(sending.responseText) as Schemas["UploadedFiles"]).files);
      else
        void Problem.from(new Response(sending.responseText, { status: sending.status })).then(
          reject,
        );
    };
    sending.send(form);
  });
}
