//! What models have used: by day, project, agent, model and person.

use super::models::is_server_admin;
use crate::{
    App,
    auth::{Caller, Person},
    error::{Error, Result},
    query::Params,
};
use atelier_api::{
    models::ModelLevel,
    usage::{UsageFigures, UsageGroup, UsageReport, UsageSum},
};
use atelier_core::{Invalid, ProjectId, Role, nearest::suggestion};
use atelier_store::{BudgetOwner, UsageColumn, UsageFilter, UsageRow};
use axum::{
    Json as Reply,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use chrono::{NaiveDate, TimeDelta, Utc};
use serde::Deserialize;
use utoipa::IntoParams;

/// How many days are shown if nobody says which.
const DAYS: i64 = 30;
/// The longest time of one report, in days.
const MAX_DAYS: i64 = 800;
/// The largest number of sums in one report.
const MAX_ROWS: usize = 10_000;

/// Which usage to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// The first day (UTC). The default is 29 days before the last one.
    from: Option<NaiveDate>,
    /// The last day (UTC). The default is today.
    to: Option<NaiveDate>,
    /// What to sum by, separated by commas: `day`, `project`, `agent`, `model`, `person`.
    #[param(
        default = "day",
        pattern = "^(day|project|agent|model|person)(,(day|project|agent|model|person))*$"
    )]
    group_by: Option<String>,
    /// Whose usage: your own projects', that of all people of your tenant, or the server's.
    #[serde(default)]
    #[param(inline)]
    level: ModelLevel,
    /// Only this project.
    project_id: Option<ProjectId>,
    /// The form of the answer. Without it, the header `Accept` decides.
    #[param(inline)]
    format: Option<Format>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Csv,
}

/// The levels whose usage a caller may see.
fn visible(app: &App, caller: &Caller) -> Vec<ModelLevel> {
    let may = |level: &ModelLevel| match level {
        ModelLevel::Own => true,
        ModelLevel::Tenant => caller.role == Role::Admin,
        ModelLevel::Server => is_server_admin(app, caller),
    };
    ModelLevel::ALL.into_iter().filter(may).collect()
}

/// Show what models have used
///
/// Steps of agents, of the planner and of its answers are counted, when they end. Requests that
/// test a key are not.
#[utoipa::path(get, path = "/my/usage", tag = "usage", operation_id = "usage",
    params(UsageQuery), responses(
    (status = 200, description = "The sums", content(
        (UsageReport = "application/json"), (String = "text/csv"))),
))]
pub(super) async fn show(
    State(app): State<App>,
    Person(caller): Person,
    headers: HeaderMap,
    Params(query): Params<UsageQuery>,
) -> Result<Response> {
    let may_see = visible(&app, &caller);
    if !may_see.contains(&query.level) {
        return Err(Error::Forbidden("only admins may see the usage of a tenant or the server"));
    }
    let of = match query.level {
        ModelLevel::Own => BudgetOwner::Person(caller.user),
        ModelLevel::Tenant => BudgetOwner::Tenant(caller.tenant.clone()),
        ModelLevel::Server => BudgetOwner::Server,
    };
    let (from, to) = days(&query)?;
    let group_by = groups(query.group_by.as_deref().unwrap_or("day"))?;
    let columns: Vec<UsageColumn> = group_by.iter().copied().map(column).collect();
    let filter = UsageFilter { of, project: query.project_id, from, to };
    let rows = app.store.usage(&filter, &columns, MAX_ROWS + 1).await?;
    if rows.len() > MAX_ROWS {
        let problem = format!("gives more than {MAX_ROWS} sums: ask for fewer days or groups");
        return Err(Invalid::new("group_by", problem).into());
    }
    let rows: Vec<UsageSum> = rows.into_iter().map(sum).collect();
    let mut total = UsageFigures::default();
    rows.iter().for_each(|row| total += row.figures);
    let report = UsageReport { from, to, level: query.level, group_by, rows, total, may_see };
    Ok(match query.format.unwrap_or_else(|| accepted(&headers)) {
        Format::Json => Reply(report).into_response(),
        Format::Csv => {
            let name = format!("attachment; filename=\"usage-{from}-{to}.csv\"");
            let headers = [
                (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
                (header::CONTENT_DISPOSITION, name),
            ];
            (headers, csv(&report)).into_response()
        }
    })
}

fn days(query: &UsageQuery) -> Result<(NaiveDate, NaiveDate)> {
    let to = query.to.unwrap_or_else(|| Utc::now().date_naive());
    let earlier = to.checked_sub_signed(TimeDelta::days(DAYS - 1)).unwrap_or(NaiveDate::MIN);
    let from = query.from.unwrap_or(earlier);
    match (to - from).num_days() {
        0..MAX_DAYS => Ok((from, to)),
        ..0 => Err(Invalid::new("from", "must not be after `to`").into()),
        _ => Err(Invalid::new("from", format!("a report has at most {MAX_DAYS} days")).into()),
    }
}

fn groups(text: &str) -> Result<Vec<UsageGroup>> {
    let mut groups = Vec::new();
    for name in text.split(',') {
        let known = UsageGroup::ALL.into_iter().find(|group| group.as_str() == name);
        let group = known.ok_or_else(|| {
            let names = UsageGroup::ALL.map(UsageGroup::as_str);
            Invalid::new("group_by", format!("there is no {name:?}: {}", suggestion(name, names)))
        })?;
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    Ok(groups)
}

fn column(group: UsageGroup) -> UsageColumn {
    match group {
        UsageGroup::Day => UsageColumn::Day,
        UsageGroup::Project => UsageColumn::Project,
        UsageGroup::Agent => UsageColumn::Agent,
        UsageGroup::Model => UsageColumn::Model,
        UsageGroup::Person => UsageColumn::Person,
    }
}

fn sum(row: UsageRow) -> UsageSum {
    UsageSum {
        day: row.day,
        project_id: row.project,
        project_name: row.project_name,
        agent_id: row.agent,
        agent_name: row.agent_name,
        model: row.model,
        user_id: row.person,
        tenant: row.tenant.map(String::from),
        figures: UsageFigures {
            steps: row.steps,
            input_tokens: row.usage.input_tokens,
            output_tokens: row.usage.output_tokens,
            cost: row.cost,
        },
    }
}

/// Whether the caller asks for CSV rather than JSON.
fn accepted(headers: &HeaderMap) -> Format {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = values
        .flat_map(|value| value.split(','))
        .map(|range| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match types.find(|range| range == "text/csv" || range == "application/json") {
        Some(range) if range == "text/csv" => Format::Csv,
        _ => Format::Json,
    }
}

/// The report as CSV (RFC 4180), with a line of names.
fn csv(report: &UsageReport) -> String {
    let mut names: Vec<&str> = Vec::new();
    for group in &report.group_by {
        names.extend(match group {
            UsageGroup::Day => &["day"][..],
            UsageGroup::Project => &["project_id", "project_name"],
            UsageGroup::Agent => &["agent_id", "agent_name"],
            UsageGroup::Model => &["model"],
            UsageGroup::Person => &["user_id", "tenant"],
        });
    }
    names.extend(["steps", "input_tokens", "output_tokens", "cost"]);
    let mut text = names.join(",") + "\r\n";
    let shown = |value: Option<String>| value.unwrap_or_default();
    for row in &report.rows {
        let UsageFigures { steps, input_tokens, output_tokens, cost } = row.figures;
        let cells = names.iter().map(|name| match *name {
            "day" => shown(row.day.map(|day| day.to_string())),
            "project_id" => shown(row.project_id.map(|id| id.to_string())),
            "project_name" => cell(row.project_name.as_deref()),
            "agent_id" => shown(row.agent_id.map(|id| id.to_string())),
            "agent_name" => cell(row.agent_name.as_deref()),
            "model" => cell(row.model.as_deref()),
            "user_id" => shown(row.user_id.map(|id| id.to_string())),
            "tenant" => cell(row.tenant.as_deref()),
            "steps" => steps.to_string(),
            "input_tokens" => input_tokens.to_string(),
            "output_tokens" => output_tokens.to_string(),
            _ => cost.to_string(),
        });
        text += &cells.collect::<Vec<_>>().join(",");
        text += "\r\n";
    }
    text
}

/// A text in a cell. Spreadsheets run texts that begin like a formula, and people choose the names.
fn cell(text: Option<&str>) -> String {
    let text = text.unwrap_or_default();
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        for (text, expected) in [
            ("shop", "shop"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+2", "'=1+2"),
            ("@sum(a,b)", "\"'@sum(a,b)\""),
        ] {
            assert_eq!(cell(Some(text)), expected);
        }
        assert_eq!(cell(None), "");
    }

    #[test]
    fn the_first_type_that_is_known_is_the_form() {
        for (accept, expected) in [
            ("*/*", Format::Json),
            ("text/csv", Format::Csv),
            ("text/html, Text/CSV;q=0.9, application/json", Format::Csv),
            ("application/json, text/csv", Format::Json),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(accepted(&headers), expected, "{accept}");
        }
        assert_eq!(accepted(&HeaderMap::new()), Format::Json);
    }
}
