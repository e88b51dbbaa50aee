/** The pages of a project, in the order of its tabs. */
export const PARTS = ["overview", "chat", "decisions"] as const;
export type ProjectPart = (typeof PARTS)[number];
