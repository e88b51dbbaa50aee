//! Rows that sum up what models have used.

use crate::{
    access::Owned,
    db::Conn,
    rows::{day, now, write_rows},
};
use atelier_core::{Task, Tenant, Usage, UserId, task::Step};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Over how many rows the total of a tenant and of the server is spread. Rows are locked until the
/// commit, and so many owners can commit at the same time.
const SHARDS: u128 = 64;
const NANOS: f64 = 1e9;

/// The scope of the server's totals. No tenant has a colon in its name.
pub(crate) const SERVER: &str = "server:";

/// What models have used since the last commit, by the row that it is added to.
#[derive(Default)]
pub(crate) struct UsageRows(BTreeMap<Key, Sum>);

/// The key of a row. Rows are written in this order by every node, so that no two nodes wait for
/// each other.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    user: UserId,
    day: String,
    project: Uuid,
    agent: Uuid,
    model: String,
}

struct Sum {
    tenant: Tenant,
    agent_name: Option<String>,
    steps: i64,
    input_tokens: i64,
    output_tokens: i64,
    cost_nanos: i64,
}

pub(crate) fn dollars(nanos: i64) -> f64 {
    nanos as f64 / NANOS
}

impl UsageRows {
    /// Adds a step of a task.
    pub(crate) fn add_step(&mut self, owned: &Owned, task: &Task, step: &Step) {
        let cost = step.cost.unwrap_or(0.0);
        self.add(owned, task, &step.model, 1, step.usage, cost);
    }

    pub(crate) fn add(
        &mut self,
        owned: &Owned,
        task: &Task,
        model: &str,
        steps: i64,
        used: Usage,
        cost: f64,
    ) {
        let key = Key {
            user: owned.owner,
            day: day(now()),
            project: owned.project.0,
            agent: task.agent_id.map_or(Uuid::nil(), |agent| agent.0),
            model: model.to_owned(),
        };
        let whole = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let new = Sum {
            tenant: owned.tenant.clone(),
            agent_name: task.agent_name.as_ref().map(ToString::to_string),
            steps,
            input_tokens: whole(used.input_tokens),
            output_tokens: whole(used.output_tokens),
            // A cast of a float ends at the largest number.
            cost_nanos: (cost * NANOS).round() as i64,
        };
        self.insert(key, new);
    }

    fn insert(&mut self, key: Key, new: Sum) {
        match self.0.get_mut(&key) {
            None => drop(self.0.insert(key, new)),
            Some(sum) => {
                sum.agent_name = new.agent_name;
                sum.steps = sum.steps.saturating_add(new.steps);
                sum.input_tokens = sum.input_tokens.saturating_add(new.input_tokens);
                sum.output_tokens = sum.output_tokens.saturating_add(new.output_tokens);
                sum.cost_nanos = sum.cost_nanos.saturating_add(new.cost_nanos);
            }
        }
    }

    pub(crate) fn append(&mut self, later: UsageRows) {
        later.0.into_iter().for_each(|(key, sum)| self.insert(key, sum));
    }

    /// Adds the sums to their rows.
    pub(crate) async fn write(self, conn: &mut Conn) -> Result<(), sqlx::Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut totals: BTreeMap<(String, String, i64), (i64, i64)> = BTreeMap::new();
        for (key, sum) in &self.0 {
            let shard = (key.user.0.as_u128() % SHARDS) as i64;
            for scope in [SERVER, sum.tenant.as_str()] {
                let total = totals.entry((scope.to_owned(), key.day.clone(), shard)).or_default();
                total.0 += sum.input_tokens.saturating_add(sum.output_tokens);
                total.1 += sum.cost_nanos;
            }
        }
        write_rows!(
            conn,
            self.0,
            "INSERT INTO usage_days (user_id, day, project_id, agent_id, model, tenant_id, \
             agent_name, steps, input_tokens, output_tokens, cost_nanos) ",
            |row, (key, sum)| {
                row.push_bind(key.user.0)
                    .push_bind(key.day)
                    .push_bind(key.project)
                    .push_bind(key.agent)
                    .push_bind(key.model)
                    .push_bind(String::from(sum.tenant))
                    .push_bind(sum.agent_name)
                    .push_bind(sum.steps)
                    .push_bind(sum.input_tokens)
                    .push_bind(sum.output_tokens)
                    .push_bind(sum.cost_nanos);
            },
            " ON CONFLICT (user_id, day, project_id, agent_id, model) DO UPDATE SET
              agent_name = excluded.agent_name,
              steps = usage_days.steps + excluded.steps,
              input_tokens = usage_days.input_tokens + excluded.input_tokens,
              output_tokens = usage_days.output_tokens + excluded.output_tokens,
              cost_nanos = usage_days.cost_nanos + excluded.cost_nanos"
        )?;
        write_rows!(
            conn,
            totals,
            "INSERT INTO usage_totals (scope, day, shard, tokens, cost_nanos) ",
            |row, ((scope, day, shard), (tokens, cost_nanos))| {
                row.push_bind(scope)
                    .push_bind(day)
                    .push_bind(shard)
                    .push_bind(tokens)
                    .push_bind(cost_nanos);
            },
            " ON CONFLICT (scope, day, shard) DO UPDATE SET
              tokens = usage_totals.tokens + excluded.tokens,
              cost_nanos = usage_totals.cost_nanos + excluded.cost_nanos"
        )
    }
}
