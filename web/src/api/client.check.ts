// What the types of `request` refuse. `npm run check` compiles this file; no bundle contains it.

import { request } from "./client";

const project = "018f2b7e-0000-7000-8000-000000000000";

export async function refused(): Promise<void> {
  // @ts-expect-error There is no such path.
  await request("GET", "/my/project");
  // @ts-expect-error The path does not support the method.
  await request("DELETE", "/my/projects");
  // @ts-expect-error A path parameter is missing.
  await request("GET", "/my/projects/{project}");
  // @ts-expect-error The path parameter has another name.
  await request("GET", "/my/projects/{project}", { path: { id: project } });
  // @ts-expect-error The query has no such field.
  await request("GET", "/my/projects", { query: { page: 2 } });
  const tasks = "/my/projects/{project}/tasks";
  const path = { project };
  // @ts-expect-error The status is not one of the enum's values.
  await request("GET", tasks, { path, query: { status: "finished" } });
  // @ts-expect-error The body is missing.
  await request("POST", "/my/projects");
  // @ts-expect-error The body has no such field.
  await request("POST", "/my/projects", { body: { name: "shop", colour: "red" } });
  // @ts-expect-error The operation takes no body.
  await request("POST", "/auth/refresh", { body: {} });
  const list = await request("GET", "/my/projects");
  // @ts-expect-error The answer has no such field.
  console.log(list.project);
}
