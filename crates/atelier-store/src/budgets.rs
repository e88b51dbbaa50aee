//! Budgets that people have set, and the warnings about them.

use crate::{
    Error, Owned, Result, Store,
    db::on,
    rows::{corrupt, from_json, json, now, usage::SERVER},
};
use atelier_core::{
    Budget, BudgetScope, Event, ProjectId, Tenant, UserId,
    budget::{BudgetPeriod, BudgetState},
};
use chrono::{DateTime, NaiveDate, Utc};

/// Whose budget or usage it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetOwner {
    Server,
    Tenant(Tenant),
    Project(ProjectId),
    Person(UserId),
}

impl BudgetOwner {
    /// The owner as the database has it. No tenant has a colon in its name.
    pub fn as_text(&self) -> String {
        match self {
            Self::Server => SERVER.to_owned(),
            Self::Tenant(tenant) => tenant.as_str().to_owned(),
            Self::Project(project) => format!("project:{project}"),
            Self::Person(user) => format!("user:{user}"),
        }
    }

    fn from_text(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None => corrupt(text.parse()).map(Self::Tenant),
            Some(("server", "")) => Ok(Self::Server),
            Some(("project", id)) => corrupt(id.parse()).map(Self::Project),
            Some(("user", id)) => corrupt(id.parse()).map(Self::Person),
            Some(_) => Err(Error::Corrupt(format!("{text} has no budget"))),
        }
    }

    pub fn scope(&self) -> BudgetScope {
        match self {
            Self::Server => BudgetScope::Server,
            Self::Tenant(_) => BudgetScope::Tenant,
            Self::Project(_) => BudgetScope::Project,
            Self::Person(_) => BudgetScope::Person,
        }
    }
}

/// A budget that somebody has set.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredBudget {
    pub owner: BudgetOwner,
    /// Who has set it: `own`, `tenant` or `server`.
    pub level: String,
    pub budget: Budget,
    pub updated_at: DateTime<Utc>,
}

type Row = (String, String, String, DateTime<Utc>);

fn read((owner, level, record, updated_at): Row) -> Result<StoredBudget> {
    let owner = BudgetOwner::from_text(&owner)?;
    Ok(StoredBudget { owner, level, budget: from_json(&record)?, updated_at })
}

impl Store {
    /// Sets a budget at a level, or removes it if it has no numbers. `tenant` is the tenant of the
    /// owner, which lists the budgets of its people.
    pub async fn set_budget(
        &self,
        by: UserId,
        owner: &BudgetOwner,
        tenant: Option<&Tenant>,
        level: &'static str,
        budget: Budget,
    ) -> Result<()> {
        let (scope, time) = (owner.as_text(), now());
        let tenant = tenant.map(|tenant| tenant.as_str().to_owned());
        self.write(by, move |tx| {
            Box::pin(async move {
                if budget.is_empty() {
                    return Ok(on!(&mut tx.conn, |c| sqlx::query(
                        "DELETE FROM budgets WHERE scope = $1 AND level = $2"
                    )
                    .bind(scope)
                    .bind(level)
                    .execute(c)
                    .await
                    .map(drop))?);
                }
                Ok(on!(&mut tx.conn, |c| sqlx::query(
                    "INSERT INTO budgets (scope, level, tenant_id, record, updated_by, updated_at)
                     VALUES ($1, $2, $3, $4, $5, $6)
                     ON CONFLICT (scope, level) DO UPDATE
                     SET tenant_id = $3, record = $4, updated_by = $5, updated_at = $6"
                )
                .bind(scope)
                .bind(level)
                .bind(tenant)
                .bind(json(&budget))
                .bind(by.0)
                .bind(time)
                .execute(c)
                .await
                .map(drop))?)
            })
        })
        .await
    }

    /// The budgets that were set for the server, a tenant and a person.
    pub async fn budgets_of(&self, tenant: &Tenant, person: UserId) -> Result<Vec<StoredBudget>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT scope, level, record, updated_at FROM budgets WHERE scope IN ($1, $2, $3)
             ORDER BY scope, level"
        )
        .bind(SERVER)
        .bind(tenant.as_str())
        .bind(BudgetOwner::Person(person).as_text())
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    /// The budgets that were set in a tenant, or on the whole server.
    pub async fn set_budgets(&self, tenant: Option<&Tenant>) -> Result<Vec<StoredBudget>> {
        let (any, tenant) = (tenant.is_none(), tenant.map_or("", Tenant::as_str));
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT scope, level, record, updated_at FROM budgets WHERE $1 OR tenant_id = $2
             ORDER BY scope, level LIMIT 1000"
        )
        .bind(any)
        .bind(tenant)
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    /// Warns in a project that a number of a budget is nearly used up. Returns whether this is the
    /// first warning about it.
    pub async fn warn_of_budget(
        &self,
        owned: &Owned,
        owner: &BudgetOwner,
        state: BudgetState,
        today: NaiveDate,
    ) -> Result<bool> {
        let (owned, scope) = (owned.clone(), owner.as_text());
        let period = match state.period {
            BudgetPeriod::Day => today.to_string(),
            BudgetPeriod::Month => today.format("%Y-%m").to_string(),
        };
        // Most of the time, the warning was sent before.
        let mut conn = self.db.connect().await?;
        let sent: Option<(i64,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT CAST(1 AS BIGINT) FROM budget_warnings
             WHERE scope = $1 AND period = $2 AND unit = $3 AND budget = $4"
        )
        .bind(&scope)
        .bind(&period)
        .bind(state.unit.as_str())
        .bind(state.limit.to_string())
        .fetch_optional(c)
        .await)?;
        drop(conn);
        if sent.is_some() {
            return Ok(false);
        }
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let new: u64 = on!(&mut tx.conn, |c| sqlx::query(
                    "INSERT INTO budget_warnings (scope, period, unit, budget)
                     VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
                )
                .bind(scope)
                .bind(period)
                .bind(state.unit.as_str())
                .bind(state.limit.to_string())
                .execute(c)
                .await
                .map(|done| done.rows_affected()))?;
                if new > 0 {
                    let BudgetState { scope, period, unit, .. } = state;
                    let (limit, used) = state.figures().unzip();
                    let warning = Event::BudgetWarning { scope, period, unit, limit, used };
                    tx.emit(owned.project, owned.owner, &warning);
                }
                Ok(new > 0)
            })
        })
        .await
    }

    /// The tenant of a user whom the server knows.
    pub async fn known_tenant_of(&self, user: UserId) -> Result<Tenant> {
        let tenant = self.tenant_of(user).await?.ok_or(Error::NotFound)?;
        corrupt(Tenant::try_from(tenant))
    }
}
