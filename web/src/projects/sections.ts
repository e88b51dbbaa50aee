export type ProjectSection =
  "overview" | "chat" | "changes" | "files" | "memory" | "decisions" | "server";

/** The pages of a project, in the order of their tabs. */
export const SECTIONS: readonly ProjectSection[] = [
  "overview",
  "chat",
  "changes",
  "files",
  "memory",
  "decisions",
  "server",
];
