//! What models have used, and budgets for it.

use crate::models::ModelLevel;
use atelier_core::{AgentId, Budget, BudgetScope, ProjectId, UserId, budget::Spending};
use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};

/// What usage can be summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UsageGroup {
    Day,
    Project,
    Agent,
    Model,
    /// The owners of the projects.
    Person,
}

impl UsageGroup {
    pub const ALL: [Self; 5] = [Self::Day, Self::Project, Self::Agent, Self::Model, Self::Person];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Project => "project",
            Self::Agent => "agent",
            Self::Model => "model",
            Self::Person => "person",
        }
    }
}

/// What models have used in some days.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageReport {
    /// The first day. Days are those of UTC.
    pub from: NaiveDate,
    /// The last day.
    pub to: NaiveDate,
    /// Whose usage it is.
    pub level: ModelLevel,
    pub group_by: Vec<UsageGroup>,
    /// One sum for each group, in the order of the groups. Days without usage are left out.
    pub rows: Vec<UsageSum>,
    pub total: UsageFigures,
    /// The levels whose usage you may see.
    pub may_see: Vec<ModelLevel>,
}

/// What was used in one group. Fields by which the report does not group are null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageSum {
    pub day: Option<NaiveDate>,
    pub project_id: Option<ProjectId>,
    /// The name of the project; null if it was deleted long ago.
    pub project_name: Option<String>,
    /// The agent; null also for plans and their final answers, which the project itself makes.
    pub agent_id: Option<AgentId>,
    pub agent_name: Option<String>,
    /// The model that answered, such as `openai/gpt-4o`.
    pub model: Option<String>,
    pub user_id: Option<UserId>,
    /// The tenant of the person.
    pub tenant: Option<String>,
    #[serde(flatten)]
    pub figures: UsageFigures,
}

/// How much was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageFigures {
    /// How many times a model has answered.
    pub steps: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// US dollars, as far as prices are known.
    pub cost: f64,
}

impl std::ops::AddAssign for UsageFigures {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cost += other.cost;
    }
}

/// The budgets that hold for you, and those that you may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Budgets {
    pub budgets: Vec<BudgetReport>,
    /// The levels at which you may set budgets: `own` is your own, `tenant` those of your tenant
    /// and of its people, `server` those of the server and of any tenant.
    pub may_set: Vec<ModelLevel>,
}

/// One budget, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetReport {
    pub scope: BudgetScope,
    /// The tenant, for budgets of tenants.
    pub tenant: Option<String>,
    /// The person, for budgets of people.
    pub user_id: Option<UserId>,
    /// The project, for budgets of projects.
    pub project_id: Option<ProjectId>,
    /// What holds: for each number the smallest of the configuration and of what was set.
    pub budget: Budget,
    /// What was set, and at which level.
    pub set: Vec<BudgetSet>,
    pub used: Spending,
}

/// A budget as somebody has set it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetSet {
    pub level: ModelLevel,
    pub budget: Budget,
    /// When it was set; null for a project, whose budget is part of its settings.
    pub updated_at: Option<DateTime<Utc>>,
}

/// The budget to set. Budgets of projects are part of their settings (`budget`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BudgetChange {
    /// `person`, `tenant` or `server`.
    pub scope: BudgetScope,
    /// The person [default: yourself]. Admins set budgets for the people of their tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// The tenant [default: your own]. Admins of the server set budgets for all tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 64))]
    pub tenant: Option<String>,
    /// The numbers. Without any, the budget is removed.
    pub budget: Budget,
}
