export type ProjectPart = "overview" | "chat" | "files" | "memory" | "decisions";

/** The pages of a project, in the order of its tabs. */
export const PARTS: readonly ProjectPart[] = ["overview", "chat", "files", "memory", "decisions"];
