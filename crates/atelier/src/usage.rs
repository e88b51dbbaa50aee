//! `atelier usage`: what models have used, and how much is left of budgets.

use crate::{lists::table, remote::Remote};
use anyhow::Result;
use atelier_api::{
    models::ModelLevel,
    usage::{BudgetReport, Budgets, UsageGroup, UsageReport, UsageSum},
};
use atelier_client::ApiClient;
use atelier_core::budget::{BudgetPeriod, BudgetState, BudgetUnit};
use chrono::NaiveDate;
use clap::ValueEnum;
use reqwest::Method;
use serde_json::{Value, json};
use std::{io::Write, process::ExitCode};

/// Shows how many tokens and how much money your agents have used, and what is left of budgets.
/// Days and months are those of UTC.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    remote: Remote,
    /// The first day, such as 2026-01-31 [default: 29 days before the last one]
    #[arg(long, value_name = "DAY")]
    from: Option<NaiveDate>,
    /// The last day [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<NaiveDate>,
    /// What to sum by; several are separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "day", value_name = "WHAT")]
    by: Vec<Group>,
    /// Whose usage
    #[arg(long, value_enum, default_value_t, value_name = "WHOSE")]
    of: Whose,
    /// Only this project, by id or name
    #[arg(long, value_name = "ID_OR_NAME")]
    project: Option<String>,
    /// Print CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// What usage can be summed by.
#[derive(Clone, Copy, ValueEnum)]
enum Group {
    Day,
    Project,
    Agent,
    Model,
    Person,
}

impl From<Group> for UsageGroup {
    fn from(group: Group) -> Self {
        match group {
            Group::Day => Self::Day,
            Group::Project => Self::Project,
            Group::Agent => Self::Agent,
            Group::Model => Self::Model,
            Group::Person => Self::Person,
        }
    }
}

/// Whose usage is shown.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Whose {
    /// Your own projects'
    #[default]
    Me,
    /// Everybody's in your tenant, if you are its admin
    Tenant,
    /// Everybody's on the server, if you are its admin
    Server,
}

impl From<Whose> for ModelLevel {
    fn from(whose: Whose) -> Self {
        match whose {
            Whose::Me => Self::Own,
            Whose::Tenant => Self::Tenant,
            Whose::Server => Self::Server,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(show(args))
}

async fn show(args: &Args) -> Result<ExitCode> {
    let api = args.remote.client("usage")?;
    let path = path(args, &api).await?;
    let text = if args.csv {
        let request = api.request(Method::GET, &format!("{path}&format=csv"));
        api.send(request).await?.text().await?
    } else {
        let report: UsageReport = api.get(&path).await?;
        match args.remote.json {
            true => serde_json::to_string_pretty(&report)? + "\n",
            false => {
                let budgets: Budgets = api.get("/my/budgets").await?;
                listing(&report) + &left(&budgets)
            }
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn path(args: &Args, api: &ApiClient) -> Result<String> {
    let by: Vec<&str> = args.by.iter().map(|by| UsageGroup::from(*by).as_str()).collect();
    let level = ModelLevel::from(args.of).as_str();
    let mut path = format!("/my/usage?level={level}&group_by={}", by.join(","));
    for (name, day) in [("from", args.from), ("to", args.to)] {
        if let Some(day) = day {
            path += &format!("&{name}={day}");
        }
    }
    if let Some(project) = &args.project {
        path += &format!("&project_id={}", api.project_or_only(Some(project)).await?.id);
    }
    Ok(path)
}

/// A table of the sums, with the total in its last line.
fn listing(report: &UsageReport) -> String {
    let groups: Vec<&str> = report.group_by.iter().map(|group| group.as_str()).collect();
    let fields: Vec<String> = ["steps", "input", "output", "cost"]
        .iter()
        .chain(&groups)
        .map(|name| format!("/{name}"))
        .collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let mut lines = vec![json!({
        "steps": "STEPS", "input": "INPUT", "output": "OUTPUT", "cost": "COST",
        "day": "DAY", "project": "PROJECT", "agent": "AGENT", "model": "MODEL",
        "person": "PERSON",
    })];
    lines.extend(report.rows.iter().map(line));
    let total = report.total;
    let mut last = json!({
        "steps": total.steps,
        "input": total.input_tokens,
        "output": total.output_tokens,
        "cost": format!("${:.4}", total.cost),
    });
    if let Some(first) = groups.first() {
        last[*first] = Value::from(format!("total, {} to {}", report.from, report.to));
        for group in &groups[1..] {
            last[*group] = Value::from("");
        }
    }
    lines.push(last);
    table(&lines, &fields)
}

fn line(sum: &UsageSum) -> Value {
    let figures = sum.figures;
    let named = |name: &Option<String>, id: Option<String>| name.clone().or(id);
    json!({
        "steps": figures.steps,
        "input": figures.input_tokens,
        "output": figures.output_tokens,
        "cost": format!("${:.4}", figures.cost),
        "day": sum.day,
        "project": named(&sum.project_name, sum.project_id.map(|id| id.to_string())),
        "agent": named(&sum.agent_name, sum.agent_id.map(|id| id.to_string())),
        "model": sum.model,
        "person": sum.user_id,
    })
}

/// What is used of each budget.
fn left(budgets: &Budgets) -> String {
    budgets.budgets.iter().flat_map(states).collect()
}

fn states(report: &BudgetReport) -> Vec<String> {
    let whose = match (&report.tenant, report.user_id, report.project_id) {
        (Some(tenant), ..) => format!("tenant {tenant}"),
        (_, Some(user), _) => format!("person {user}"),
        (.., Some(project)) => format!("project {project}"),
        _ => "server".to_owned(),
    };
    let states = report.budget.states(report.scope, &report.used);
    states.iter().map(|state| budget_line(&whose, state)).collect()
}

fn budget_line(whose: &str, state: &BudgetState) -> String {
    let BudgetState { limit, used, .. } = *state;
    let what = match state.unit {
        BudgetUnit::Tokens => format!("{used} of {limit} tokens"),
        BudgetUnit::Cost => format!("${used:.4} of ${limit}"),
    };
    let when = match state.period {
        BudgetPeriod::Day => "today",
        BudgetPeriod::Month => "this month",
    };
    let warning = match (state.is_spent(), state.is_nearly_spent()) {
        (true, _) => " (used up)",
        (_, true) => " (nearly used up)",
        _ => "",
    };
    format!("budget of {whose}: {what} {when}{warning}\n")
}
