//! How much work runs at once, and how much a task may use.

use atelier_core::{
    Budget, Invalid, gate::ApprovalSettings, nearest::suggestion, plan::MAX_TASKS,
    policy::verdict::Verdict, task::TaskLimits,
};
use atelier_store::BudgetOwner;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkSettings {
    /// How many tasks may wait for one agent. More are refused.
    pub max_queue: u32,
    /// How many tasks one node runs at the same time.
    pub max_running: usize,
    /// How many of a conversation's latest messages an agent sees.
    pub history: u32,
    /// The verdict for changes of a conversation's own files. LOW asks nobody. With MEDIUM or HIGH,
    /// the owner is asked about every change.
    pub own_files: Verdict,
    /// Whether a task goes on by itself if its node was lost while it waited for its model, when
    /// nothing of the step was done. Otherwise it fails as interrupted, and can be resumed.
    pub resume_interrupted: bool,
    /// How many days tasks and plans are kept after they have ended. Messages stay.
    pub keep_days: u32,
    /// What a task may use, unless its project or agent allows less.
    pub limits: TaskLimits,
    /// What agents may use in a day and in a month, for the server and for each tenant, project and
    /// person. People can set smaller budgets.
    pub budgets: DefaultBudgets,
    /// How many days the sums of what models have used are kept.
    pub keep_usage_days: u32,
}

/// The budgets that hold unless people have set smaller ones.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DefaultBudgets {
    /// For everybody on the server together.
    pub server: Budget,
    /// For each tenant.
    pub tenant: Budget,
    /// For each project.
    pub project: Budget,
    /// For each person.
    pub person: Budget,
}

impl DefaultBudgets {
    pub fn validate(&self) -> Result<(), Invalid> {
        let Self { server, tenant, project, person } = self;
        [server, tenant, project, person].into_iter().try_for_each(Budget::validate)
    }

    /// The budget of an owner.
    pub fn of(&self, owner: &BudgetOwner) -> Budget {
        match owner {
            BudgetOwner::Server => self.server,
            BudgetOwner::Tenant(_) => self.tenant,
            BudgetOwner::Project(_) => self.project,
            BudgetOwner::Person(_) => self.person,
        }
    }
}

impl Default for WorkSettings {
    fn default() -> Self {
        Self {
            max_queue: 100,
            max_running: 512,
            history: 40,
            own_files: Verdict::Low,
            resume_interrupted: true,
            keep_days: 90,
            limits: TaskLimits {
                max_steps: Some(50),
                max_seconds: Some(1800),
                ..TaskLimits::default()
            },
            budgets: DefaultBudgets::default(),
            keep_usage_days: 800,
        }
    }
}

/// The part of a project's settings that is about work.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ProjectSettings {
    pub planner: PlannerSettings,
    pub limits: TaskLimits,
    pub budget: Budget,
}

/// Settings of the planner, and of the model that writes the final answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlannerSettings {
    pub model: String,
    /// The most tasks of one plan.
    pub max_tasks: usize,
    /// How many US dollars a plan may cost. Only models with known prices count.
    pub budget: Option<f64>,
    /// Plans with more tasks than this wait for the owner's approval.
    pub approve_above: Option<usize>,
}

impl Default for PlannerSettings {
    fn default() -> Self {
        Self { model: "gpt-4".into(), max_tasks: MAX_TASKS, budget: None, approve_above: None }
    }
}

/// The settings of a project. `metadata` is free for the user's own notes and programs.
const KNOWN: [&str; 6] = ["policy", "planner", "limits", "budget", "approvals", "metadata"];

impl ProjectSettings {
    /// Refuses settings that do not exist, with what was probably meant.
    pub fn check(settings: &Map<String, Value>) -> Result<Self, Invalid> {
        if let Some(unknown) = settings.keys().find(|key| !KNOWN.contains(&key.as_str())) {
            let problem = format!("there is no {unknown:?}: {}", suggestion(unknown, KNOWN));
            return Err(Invalid::new("settings", problem));
        }
        Self::of(settings)
    }

    pub fn of(settings: &Map<String, Value>) -> Result<Self, Invalid> {
        let known = ["planner", "limits", "budget"].into_iter();
        let known: Map<String, Value> =
            known.filter_map(|key| Some((key.to_owned(), settings.get(key)?.clone()))).collect();
        let parsed: Self = serde_path_to_error::deserialize(Value::Object(known))
            .map_err(|error| Invalid::new("settings", error.to_string()))?;
        parsed.limits.validate()?;
        parsed.budget.validate()?;
        ApprovalSettings::from_setting(settings.get("approvals"))?;
        let planner = &parsed.planner;
        if planner.max_tasks == 0 || planner.max_tasks > MAX_TASKS || planner.model.is_empty() {
            return Err(Invalid::new(
                "settings",
                "planner: max_tasks must be between 1 and 20, and model must not be empty",
            ));
        }
        if planner.budget.is_some_and(|budget| !(budget.is_finite() && budget >= 0.0)) {
            return Err(Invalid::new("settings", "planner.budget: must not be negative"));
        }
        Ok(parsed)
    }
}
