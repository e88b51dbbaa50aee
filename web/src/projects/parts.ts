/** The pages of a project, in the order of its tabs. */
export const PARTS = ["overview", "decisions"] as const;
export type ProjectPart = (typeof PARTS)[number];
