//! What models have used, summed by day, project, agent, model and person.

use crate::{
    Result, Store,
    budgets::BudgetOwner,
    db::on,
    rows::{corrupt, day, usage::dollars},
};
use atelier_core::{
    AgentId, ProjectId, Tenant, Usage, UserId,
    budget::{Spending, Spent},
};
use chrono::{DateTime, Datelike, NaiveDate, TimeDelta, Utc};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

/// What usage can be summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageColumn {
    Day,
    Project,
    Agent,
    Model,
    Person,
}

/// Whose usage is asked for, and of which days.
#[derive(Debug, Clone)]
pub struct UsageFilter {
    pub of: BudgetOwner,
    /// Only this project.
    pub project: Option<ProjectId>,
    pub from: NaiveDate,
    /// The last day.
    pub to: NaiveDate,
}

/// One sum. Fields are `None` if the usage was not summed by them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UsageRow {
    pub day: Option<NaiveDate>,
    pub project: Option<ProjectId>,
    /// The name of the project; `None` if the project was deleted long ago.
    pub project_name: Option<String>,
    /// The agent; `None` also for what the project itself did.
    pub agent: Option<AgentId>,
    pub agent_name: Option<String>,
    pub model: Option<String>,
    pub person: Option<UserId>,
    pub tenant: Option<Tenant>,
    pub steps: u64,
    pub usage: Usage,
    pub cost: f64,
}

type Row = (
    Option<String>,
    Option<Uuid>,
    Option<String>,
    Option<Uuid>,
    Option<String>,
    Option<String>,
    Option<Uuid>,
    Option<String>,
    i64,
    i64,
    i64,
    i64,
);

impl UsageColumn {
    /// The columns that are grouped by.
    fn columns(self) -> &'static str {
        match self {
            UsageColumn::Day => "u.day",
            UsageColumn::Project => "u.project_id",
            UsageColumn::Agent => "u.agent_id",
            UsageColumn::Model => "u.model",
            UsageColumn::Person => "u.user_id, u.tenant_id",
        }
    }
}

/// The SQL for sums by these columns. `$4` is whether only the project `$5` counts.
fn select(by: &[UsageColumn], of: &BudgetOwner, limit: usize) -> String {
    let column = |column: UsageColumn, sql: &'static str, otherwise: &'static str| {
        if by.contains(&column) { sql } else { otherwise }
    };
    let day = column(UsageColumn::Day, "u.day", "CAST(NULL AS TEXT)");
    // SQLite has no type for an id, and an absent value has no type there.
    let project = column(UsageColumn::Project, "u.project_id", "NULL");
    let name = column(UsageColumn::Project, "MAX(p.name)", "CAST(NULL AS TEXT)");
    let agent = column(UsageColumn::Agent, "u.agent_id", "NULL");
    let agent_name = column(UsageColumn::Agent, "MAX(u.agent_name)", "CAST(NULL AS TEXT)");
    let model = column(UsageColumn::Model, "u.model", "CAST(NULL AS TEXT)");
    let person = column(UsageColumn::Person, "u.user_id", "NULL");
    let tenant = column(UsageColumn::Person, "u.tenant_id", "CAST(NULL AS TEXT)");
    let owner = match of {
        BudgetOwner::Server => "$3 = 'server:'",
        BudgetOwner::Tenant(_) => "u.tenant_id = $3",
        BudgetOwner::Person(_) => "u.user_id = $3",
        BudgetOwner::Project(_) => "u.project_id = $3",
    };
    let groups: Vec<&str> = by.iter().map(|column| column.columns()).collect();
    let groups = groups.join(", ");
    format!(
        "SELECT {day}, {project}, {name}, {agent}, {agent_name}, {model}, {person}, {tenant},
                CAST(SUM(u.steps) AS BIGINT), CAST(SUM(u.input_tokens) AS BIGINT),
                CAST(SUM(u.output_tokens) AS BIGINT), CAST(SUM(u.cost_nanos) AS BIGINT)
         FROM usage_days u LEFT JOIN projects p ON p.id = u.project_id
         WHERE u.day >= $1 AND u.day <= $2 AND {owner} AND ($4 OR u.project_id = $5)
         GROUP BY {groups} ORDER BY {groups} LIMIT {limit}"
    )
}

impl Store {
    /// What models have used, summed by the given columns, of which there must be one, and ordered
    /// by them. At most `limit` rows.
    pub async fn usage(
        &self,
        filter: &UsageFilter,
        by: &[UsageColumn],
        limit: usize,
    ) -> Result<Vec<UsageRow>> {
        let sql = AssertSqlSafe(select(by, &filter.of, limit));
        let any = filter.project.is_none();
        let project = filter.project.map_or(Uuid::nil(), |project| project.0);
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = on!(&mut conn, |c| {
            let query =
                sqlx::query_as(sql).bind(filter.from.to_string()).bind(filter.to.to_string());
            let query = match &filter.of {
                BudgetOwner::Person(UserId(id)) | BudgetOwner::Project(ProjectId(id)) => {
                    query.bind(*id)
                }
                owner => query.bind(owner.as_text()),
            };
            query.bind(any).bind(project).fetch_all(c).await
        })?;
        let by_agent = |agent: Uuid| (!agent.is_nil()).then_some(AgentId(agent));
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        let row = |row: Row| {
            Ok(UsageRow {
                day: row.0.map(|day| corrupt(day.parse())).transpose()?,
                project: row.1.map(ProjectId),
                project_name: row.2,
                agent: row.3.and_then(by_agent),
                agent_name: row.4,
                model: row.5,
                person: row.6.map(UserId),
                tenant: row.7.map(|tenant| corrupt(Tenant::try_from(tenant))).transpose()?,
                steps: count(row.8),
                usage: Usage { input_tokens: count(row.9), output_tokens: count(row.10) },
                cost: dollars(row.11),
            })
        };
        rows.into_iter().map(row).collect()
    }

    /// What was used on a day, and in the month of the day until then.
    pub async fn spending(&self, of: &BudgetOwner, today: NaiveDate) -> Result<Spending> {
        let first = today.with_day(1).unwrap_or(today).to_string();
        let (columns, of_owner) = match of {
            BudgetOwner::Server | BudgetOwner::Tenant(_) => {
                ("tokens, cost_nanos, day FROM usage_totals", "scope")
            }
            BudgetOwner::Person(_) => (DAYS, "user_id"),
            BudgetOwner::Project(_) => (DAYS, "project_id"),
        };
        let sql = AssertSqlSafe(format!(
            "SELECT CAST(COALESCE(SUM(CASE WHEN day = $2 THEN tokens ELSE 0 END), 0) AS BIGINT),
                    CAST(COALESCE(SUM(CASE WHEN day = $2 THEN cost_nanos ELSE 0 END), 0) AS BIGINT),
                    CAST(COALESCE(SUM(tokens), 0) AS BIGINT),
                    CAST(COALESCE(SUM(cost_nanos), 0) AS BIGINT)
             FROM (SELECT {columns} WHERE {of_owner} = $1 AND day >= $3 AND day <= $2) AS used"
        ));
        let mut conn = self.db.connect().await?;
        let (day_tokens, day_nanos, tokens, nanos): (i64, i64, i64, i64) = on!(&mut conn, |c| {
            let query = sqlx::query_as(sql);
            let query = match of {
                BudgetOwner::Person(UserId(id)) | BudgetOwner::Project(ProjectId(id)) => {
                    query.bind(*id)
                }
                owner => query.bind(owner.as_text()),
            };
            query.bind(today.to_string()).bind(first).fetch_one(c).await
        })?;
        let spent = |tokens: i64, nanos: i64| Spent {
            tokens: u64::try_from(tokens).unwrap_or(0),
            cost: dollars(nanos),
        };
        Ok(Spending { today: spent(day_tokens, day_nanos), this_month: spent(tokens, nanos) })
    }

    /// Removes the sums of days, and the warnings, that are older than this many days. Returns how
    /// many days were removed.
    pub async fn sweep_usage(&self, keep_days: u32, now: DateTime<Utc>) -> Result<u64> {
        let Some(oldest) = now.checked_sub_signed(TimeDelta::days(keep_days.into())) else {
            return Ok(0);
        };
        let oldest = day(oldest);
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                let removed = on!(&mut tx.conn, |c| {
                    // A month has no day, and so comes before all of its days.
                    for sql in [
                        "DELETE FROM budget_warnings WHERE period < $1",
                        "DELETE FROM usage_totals WHERE day < $1",
                    ] {
                        sqlx::query(sql).bind(&oldest[..7]).execute(&mut *c).await?;
                    }
                    let days = sqlx::query("DELETE FROM usage_days WHERE day < $1");
                    days.bind(&oldest).execute(&mut *c).await?.rows_affected()
                });
                Ok(removed)
            })
        })
        .await
    }
}

const DAYS: &str = "input_tokens + output_tokens AS tokens, cost_nanos, day FROM usage_days";
