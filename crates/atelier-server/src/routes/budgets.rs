//! Budgets: what people, tenants and the server may use in a day and in a month.
//!
//! Everybody can set a smaller budget than those above have set, and nobody a larger one: for each
//! number the smallest counts.

use super::{DONE, models::is_server_admin};
use crate::{
    App,
    auth::{Caller, Person},
    body::Json,
    error::{Error, Result},
};
use atelier_api::{
    models::ModelLevel,
    usage::{BudgetChange, BudgetReport, BudgetSet, Budgets},
};
use atelier_core::{Budget, BudgetScope, Invalid, Project, Role, Tenant};
use atelier_runtime::ProjectSettings;
use atelier_store::{BudgetOwner, StoredBudget};
use axum::{Json as Reply, extract::State, http::StatusCode};
use chrono::Utc;

/// How many of a person's projects are looked through for budgets.
const PROJECTS: i64 = 1000;

/// Show budgets, and how much of them is used
///
/// Your own budget, and those of your projects that have one. Admins also see the budgets of their
/// tenant and of its people, and admins of the server all budgets.
#[utoipa::path(get, path = "/my/budgets", tag = "usage", operation_id = "budgets",
    responses((status = 200, description = "The budgets", body = Budgets)))]
pub(super) async fn list(State(app): State<App>, Person(caller): Person) -> Result<Reply<Budgets>> {
    let may_set = levels(&app, &caller);
    let own = BudgetOwner::Person(caller.user);
    let mut stored = app.store.budgets_of(&caller.tenant, caller.user).await?;
    let mut owners = vec![own.clone()];
    if may_set.contains(&ModelLevel::Tenant) {
        let of_tenant = BudgetOwner::Tenant(caller.tenant.clone());
        let server = may_set.contains(&ModelLevel::Server);
        stored = app.store.set_budgets((!server).then_some(&caller.tenant)).await?;
        owners.push(of_tenant);
        if server {
            owners.push(BudgetOwner::Server);
        }
        for budget in &stored {
            if !owners.contains(&budget.owner) {
                owners.push(budget.owner.clone());
            }
        }
    }
    let mut budgets = Vec::new();
    for owner in owners {
        let set = stored.iter().filter(|stored| stored.owner == owner);
        let set = set.map(|stored| BudgetSet {
            level: level(stored),
            budget: stored.budget,
            updated_at: Some(stored.updated_at),
        });
        let (set, budget) = (set.collect(), app.budgets.effective(&owner, &stored));
        budgets.push(report(&app, &owner, budget, set).await?);
    }
    let (projects, _) = app.store.projects(caller.user, PROJECTS, 0).await?;
    for project in projects {
        let own = own_budget(&project);
        let owner = BudgetOwner::Project(project.id);
        let budget = app.budgets.effective(&owner, &[]).and(own);
        if budget.is_empty() {
            continue;
        }
        let set = BudgetSet { level: ModelLevel::Own, budget: own, updated_at: None };
        let set = if own.is_empty() { Vec::new() } else { vec![set] };
        budgets.push(report(&app, &owner, budget, set).await?);
    }
    Ok(Reply(Budgets { budgets, may_set }))
}

fn own_budget(project: &Project) -> Budget {
    // Settings that are not valid keep the project's agents from working at all.
    ProjectSettings::of(&project.settings).map(|settings| settings.budget).unwrap_or_default()
}

/// The levels at which a caller may set budgets.
fn levels(app: &App, caller: &Caller) -> Vec<ModelLevel> {
    let may = |level: &ModelLevel| match level {
        ModelLevel::Own => true,
        ModelLevel::Tenant => caller.role == Role::Admin,
        ModelLevel::Server => is_server_admin(app, caller),
    };
    ModelLevel::ALL.into_iter().filter(may).collect()
}

fn level(stored: &StoredBudget) -> ModelLevel {
    let known = ModelLevel::ALL.into_iter().find(|level| level.as_str() == stored.level);
    known.unwrap_or_default()
}

async fn report(
    app: &App,
    owner: &BudgetOwner,
    budget: Budget,
    set: Vec<BudgetSet>,
) -> Result<BudgetReport> {
    let used = app.store.spending(owner, Utc::now().date_naive()).await?;
    let mut report = BudgetReport {
        scope: owner.scope(),
        tenant: None,
        user_id: None,
        project_id: None,
        budget,
        set,
        used,
    };
    match owner {
        BudgetOwner::Server => {}
        BudgetOwner::Tenant(tenant) => report.tenant = Some(tenant.to_string()),
        BudgetOwner::Project(project) => report.project_id = Some(*project),
        BudgetOwner::Person(user) => report.user_id = Some(*user),
    }
    Ok(report)
}

/// Set a budget
///
/// People set their own budget. Admins of a tenant set the tenant's and those of its people. Admins
/// of the tenant `models.admin_tenant` set the server's and those of all tenants. For each number
/// the smallest counts of what was set and of the configuration, so nobody can raise what somebody
/// above has set. A task that has used up a budget ends with `budget_exceeded` before its next step.
#[utoipa::path(put, path = "/my/budgets", tag = "usage", operation_id = "set_budget",
    request_body = BudgetChange, responses(
    (status = 204, description = "Stored"),
    (status = 404, description = "There is no such person in your tenant"),
))]
pub(super) async fn set(
    State(app): State<App>,
    Person(caller): Person,
    Json(change): Json<BudgetChange>,
) -> Result<StatusCode> {
    change.budget.validate()?;
    let (owner, tenant, level) = target(&app, &caller, &change).await?;
    let (budget, name) = (change.budget, owner.as_text());
    app.store.set_budget(caller.user, &owner, tenant.as_ref(), level.as_str(), budget).await?;
    tracing::info!(of = name, level = level.as_str(), by = %caller.user, ?budget, "set a budget");
    Ok(DONE)
}

/// Whose budget a change is about, the tenant whose admins see it, and the level at which the
/// caller may make it.
async fn target(
    app: &App,
    caller: &Caller,
    change: &BudgetChange,
) -> Result<(BudgetOwner, Option<Tenant>, ModelLevel)> {
    let misplaced = match change.scope {
        BudgetScope::Person => change.tenant.as_ref().map(|_| "tenant"),
        BudgetScope::Tenant => change.user_id.map(|_| "user_id"),
        BudgetScope::Server | BudgetScope::Project => {
            change.tenant.as_ref().map(|_| "tenant").or(change.user_id.map(|_| "user_id"))
        }
    };
    if let Some(field) = misplaced {
        return Err(Invalid::new(field, "is not for budgets of this scope").into());
    }
    let is_admin = caller.role == Role::Admin;
    match change.scope {
        BudgetScope::Person => {
            let user = change.user_id.unwrap_or(caller.user);
            let owner = BudgetOwner::Person(user);
            if user == caller.user {
                return Ok((owner, Some(caller.tenant.clone()), ModelLevel::Own));
            }
            if !is_admin {
                return Err(Error::Forbidden("only admins may set the budgets of others"));
            }
            let tenant = app.store.known_tenant_of(user).await?;
            match tenant == caller.tenant {
                true => Ok((owner, Some(tenant), ModelLevel::Tenant)),
                // Like a person who does not exist.
                false => Err(Error::NotFound),
            }
        }
        BudgetScope::Tenant => {
            let tenant = change.tenant.clone().map(Tenant::try_from).transpose()?;
            let tenant = tenant.unwrap_or_else(|| caller.tenant.clone());
            let owner = BudgetOwner::Tenant(tenant.clone());
            if is_server_admin(app, caller) {
                return Ok((owner, Some(tenant), ModelLevel::Server));
            }
            match is_admin && tenant == caller.tenant {
                true => Ok((owner, Some(tenant), ModelLevel::Tenant)),
                false => Err(Error::Forbidden("only admins of the tenant may set its budget")),
            }
        }
        BudgetScope::Server if is_server_admin(app, caller) => {
            Ok((BudgetOwner::Server, None, ModelLevel::Server))
        }
        BudgetScope::Server => Err(Error::Forbidden(
            "only admins of the tenant that models.admin_tenant names may set this",
        )),
        BudgetScope::Project => {
            let problem = "the budget of a project is `budget` in the settings of the project";
            Err(Invalid::new("scope", problem).into())
        }
    }
}
