//! Budgets of the server, tenants, projects and people: what they are, how much of them is used,
//! and whether a task may ask its model again.

use crate::{DefaultBudgets, Result};
use atelier_core::{Budget, TaskFailure, Tenant, UserId, budget::BudgetState};
use atelier_store::{BudgetOwner, Owned, Store, StoredBudget};
use chrono::{NaiveDate, Utc};

/// A cheap handle on budgets.
#[derive(Clone)]
pub struct Budgets {
    store: Store,
    defaults: DefaultBudgets,
}

impl Budgets {
    pub fn new(store: Store, defaults: DefaultBudgets) -> Self {
        Self { store, defaults }
    }

    /// The budget of an owner: for each number the smallest of the configuration and of what people
    /// have set.
    pub fn effective(&self, owner: &BudgetOwner, set: &[StoredBudget]) -> Budget {
        let set = set.iter().filter(|stored| stored.owner == *owner);
        set.fold(self.defaults.of(owner), |budget, stored| budget.and(stored.budget))
    }

    /// The budgets of the server, of a tenant and of a person.
    pub async fn of(&self, tenant: &Tenant, user: UserId) -> Result<Vec<(BudgetOwner, Budget)>> {
        let set = self.store.budgets_of(tenant, user).await?;
        let owners =
            [BudgetOwner::Server, BudgetOwner::Tenant(tenant.clone()), BudgetOwner::Person(user)];
        let with_budget = |owner: BudgetOwner| {
            let budget = self.effective(&owner, &set);
            (owner, budget)
        };
        Ok(owners.into_iter().map(with_budget).collect())
    }

    /// The budget that keeps a project from asking a model, if one is used up. Warns about budgets
    /// that are nearly used up. `own` is the project's own budget, from its settings.
    pub async fn exceeded(&self, owned: &Owned, own: Budget) -> Result<Option<TaskFailure>> {
        let project = BudgetOwner::Project(owned.project);
        let mut budgets = self.of(&owned.tenant, owned.owner).await?;
        let of_project = self.defaults.project.and(own);
        budgets.push((project, of_project));
        let today = Utc::now().date_naive();
        let mut exceeded = None;
        for (owner, budget) in budgets {
            for state in self.states(&owner, budget, today).await? {
                if state.is_nearly_spent() {
                    self.warn(owned, &owner, state, today).await?;
                }
                if state.is_spent() && exceeded.is_none() {
                    exceeded = Some(state.failure());
                }
            }
        }
        Ok(exceeded)
    }

    async fn states(
        &self,
        owner: &BudgetOwner,
        budget: Budget,
        today: NaiveDate,
    ) -> Result<Vec<BudgetState>> {
        if budget.is_empty() {
            return Ok(Vec::new());
        }
        let spending = self.store.spending(owner, today).await?;
        Ok(budget.states(owner.scope(), &spending))
    }

    async fn warn(
        &self,
        owned: &Owned,
        owner: &BudgetOwner,
        state: BudgetState,
        today: NaiveDate,
    ) -> Result<()> {
        if self.store.warn_of_budget(owned, owner, state, today).await? {
            let BudgetState { period, unit, limit, used, .. } = state;
            tracing::warn!(
                owner = owner.as_text(),
                ?period,
                ?unit,
                limit,
                used,
                "a budget is nearly used up"
            );
            metrics::counter!("atelier_budget_warnings_total", "scope" => scope_label(owner))
                .increment(1);
        }
        Ok(())
    }
}

fn scope_label(owner: &BudgetOwner) -> &'static str {
    match owner {
        BudgetOwner::Server => "server",
        BudgetOwner::Tenant(_) => "tenant",
        BudgetOwner::Project(_) => "project",
        BudgetOwner::Person(_) => "person",
    }
}
