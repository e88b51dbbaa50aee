// Budgets as the page of usage shows and changes them.

import type { Budget, BudgetChange, BudgetReport, Budgets, ModelLevel } from "../api/calls";
import { t } from "../i18n/index.svelte";
import { session } from "../session/session.svelte";
import { projects } from "../state/projects.svelte";

export const NUMBERS = [
  { name: "tokens_per_day", unit: "tokens", time: "today" },
  { name: "tokens_per_month", unit: "tokens", time: "this_month" },
  { name: "cost_per_day", unit: "cost", time: "today" },
  { name: "cost_per_month", unit: "cost", time: "this_month" },
] as const;

/** From which part of a budget on it is nearly used up, as the server has it. */
const NEARLY = 0.8;

/** The numbers that a budget has, with what is used of them. */
export function numbersOf({ budget, used }: BudgetReport) {
  return NUMBERS.flatMap(({ name, unit, time }) => {
    const limit = budget[name];
    if (limit === null || limit === undefined) return [];
    const spent = used[time][unit];
    const reached = (part: number) => spent > 0 && spent >= limit * part;
    const state = reached(1) ? "spent" : reached(NEARLY) ? "nearly" : "free";
    return [{ name, unit, limit, used: spent, state } as const];
  });
}

/** Whose budget it is. */
export function budgetName({ scope, tenant, user_id, project_id }: BudgetReport): string {
  if (scope === "tenant") return t("usage.budget.of.tenant", { name: tenant ?? "" });
  if (scope === "server") return t("usage.budget.of.server");
  if (scope === "project") {
    const name = projects.all.get(project_id ?? "")?.name ?? project_id ?? "";
    return t("usage.budget.of.project", { name });
  }
  if (user_id === session.me?.user_id) return t("usage.budget.of.me");
  return t("usage.budget.of.person", { name: user_id ?? "" });
}

/** Whose budget can be set: one's own, one's tenant's, that of a person in it, any tenant's, or the server's. */
export const TARGETS = ["me", "person", "tenant", "other_tenant", "server"] as const;
export type Target = (typeof TARGETS)[number];

const LEVEL: Record<Target, ModelLevel> = {
  me: "own",
  person: "tenant",
  tenant: "tenant",
  other_tenant: "server",
  server: "server",
};

/** The targets whose budgets somebody with these levels may set. */
export function targetsOf(levels: readonly ModelLevel[]): Target[] {
  return TARGETS.filter((target) => levels.includes(LEVEL[target]));
}

/** The change that sets a budget. `who` is the id of a person or the name of a tenant, if the target needs one. */
export function changeOf(target: Target, who: string, budget: Budget): BudgetChange {
  switch (target) {
    case "me":
      return { scope: "person", budget };
    case "person":
      return { scope: "person", user_id: who, budget };
    case "tenant":
      return { scope: "tenant", budget };
    case "other_tenant":
      return { scope: "tenant", tenant: who, budget };
    case "server":
      return { scope: "server", budget };
  }
}

/** What this user has set for a target, so that it can be changed. */
export function setFor(budgets: Budgets, target: Target, who: string): Partial<Budget> {
  const me = session.me;
  const report = budgets.budgets.find(({ scope, user_id, tenant }) => {
    if (target === "me") return scope === "person" && user_id === me?.user_id;
    if (target === "person") return scope === "person" && user_id === who;
    if (target === "server") return scope === "server";
    return scope === "tenant" && tenant === (target === "tenant" ? me?.tenant : who);
  });
  // Admins of the server set the budgets of tenants, also of their own, as such.
  const isServerAdmin = budgets.may_set.includes("server");
  const level = target === "tenant" && isServerAdmin ? "server" : LEVEL[target];
  return report?.set.find((set) => set.level === level)?.budget ?? {};
}
