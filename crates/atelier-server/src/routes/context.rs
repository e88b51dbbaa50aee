//! What an agent remembers: looking into it, and taking care of it.

use super::DONE;
use crate::{
    App,
    auth::{Asker, Person},
    body::{AgentInPath, InteractionInPath, Json, Params},
    error::{Error, Result},
    guard::Space,
};
use atelier_core::{
    Agent, AgentId, Filter, Interaction, InteractionType, ScoreParts, SearchMode, event::PruneReason, json,
};
use atelier_memory::{Hit, Query};
use atelier_store::{Bucket, Removal, Totals};
use axum::{
    Json as Reply,
    extract::{FromRequestParts, State},
    http::{StatusCode, request},
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};
use utoipa::{IntoParams, ToSchema};

/// The agent in the path, looked up before the body is read: who may not know of it learns nothing from the body.
pub(super) struct Remembering {
    pub(super) space: Space,
    pub(super) agent: Arc<Agent>,
}

impl FromRequestParts<App> for Remembering {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut request::Parts, app: &App) -> Result<Self> {
        let space = Space::from_request_parts(parts, app).await?;
        let AgentInPath(wanted) = AgentInPath::from_request_parts(parts, app).await?;
        let agent = space.agent(&wanted).await?;
        Ok(Self { space, agent })
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ContextSearch {
    /// What to look for, in any words.
    #[schema(min_length = 1, max_length = 10_000)]
    query: String,
    /// How many results at most.
    #[serde(default = "ten", deserialize_with = "json::whole")]
    #[schema(minimum = 1, maximum = 100, default = 10)]
    k: u32,
    #[serde(default)]
    types: Vec<InteractionType>,
    success: Option<bool>,
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
    #[schema(pattern = r"^[^\x00]*$")]
    task_id: Option<String>,
    #[schema(pattern = r"^[^\x00]*$")]
    session_id: Option<String>,
    #[serde(default)]
    mode: SearchMode,
    /// Leave out what scores less.
    min_score: Option<f32>,
    /// Favour what is new: what is so many days old counts half.
    #[schema(minimum = 0.01, maximum = 36_500.0)]
    recency_days: Option<f32>,
    /// Show texts that differ only in case, white space and how their sentence ends once.
    #[serde(default)]
    unique: bool,
}

fn ten() -> u32 {
    10
}

#[derive(Serialize, ToSchema)]
pub(super) struct ContextResults {
    results: Vec<ContextResult>,
    /// Why the answer may be poorer than usual: the index or the embedder did not answer.
    degraded: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct ContextResult {
    #[serde(flatten)]
    interaction: Interaction,
    /// More is better. Between 0 and 1 for hybrid searches.
    score: f32,
    score_parts: ScoreParts,
}

/// Search an agent's memory: by meaning, by words, or both
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/search", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    request_body = ContextSearch, responses((status = 200, body = ContextResults)))]
pub(super) async fn search(
    State(app): State<App>,
    _: Asker,
    Remembering { agent, .. }: Remembering,
    Json(asked): Json<ContextSearch>,
) -> Result<Reply<ContextResults>> {
    let length = asked.query.chars().count();
    if asked.query.trim().is_empty() || length > 10_000 {
        return Err(Error::Invalid("query: must have 1 to 10000 characters".into()));
    }
    if !(1..=100).contains(&asked.k) {
        return Err(Error::Invalid("k: must be between 1 and 100".into()));
    }
    if asked.recency_days.is_some_and(|days| !(0.01..=36_500.0).contains(&days)) {
        return Err(Error::Invalid("recency_days: must be between 0.01 and 36500".into()));
    }
    for (field, id) in [("task_id", &asked.task_id), ("session_id", &asked.session_id)] {
        // PostgreSQL keeps no NUL: there is no such thing.
        if id.as_ref().is_some_and(|id| id.contains('\0')) {
            return Err(Error::Invalid(format!("{field}: must not contain NUL")));
        }
    }
    let filter = Filter {
        types: distinct(asked.types),
        success: asked.success,
        from: asked.from,
        to: asked.to,
        task_id: asked.task_id,
        session_id: asked.session_id,
    };
    let query = Query {
        text: asked.query,
        k: asked.k as usize,
        mode: asked.mode,
        filter,
        min_score: asked.min_score,
        recency_days: asked.recency_days,
        unique: asked.unique,
    };
    let found = app.memory.search(agent.id, &query).await?;
    let result = |Hit { interaction, score, parts }| ContextResult { interaction, score, score_parts: parts };
    Ok(Reply(ContextResults {
        results: found.hits.into_iter().map(result).collect(),
        degraded: found.degraded,
    }))
}

pub(super) fn distinct(mut types: Vec<InteractionType>) -> Vec<InteractionType> {
    types.sort_unstable();
    types.dedup();
    types
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsQuery {
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
    /// Figures for each day or week, too.
    #[param(inline)]
    bucket: Option<Period>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ContextPeriod)]
pub(super) enum Period {
    Day,
    Week,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ContextStats {
    #[schema(value_type = uuid::Uuid)]
    agent_id: AgentId,
    /// What the index calls this memory.
    collection: String,
    total_vectors: u64,
    /// At so many the oldest part goes.
    max_vectors: u32,
    /// About; null while the index does not say.
    collection_size_mb: Option<f64>,
    oldest_interaction: Option<DateTime<Utc>>,
    newest_interaction: Option<DateTime<Utc>>,
    by_type: BTreeMap<&'static str, u64>,
    /// In percent; null while there is nothing to count.
    success_rate: Option<f64>,
    /// Whether the index has it, or has still to make it.
    state: &'static str,
    /// How its vectors are made, and how many numbers each has.
    embedder: String,
    dimension: i64,
    /// What has not reached the index yet.
    waiting: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    periods: Option<Vec<ContextBucket>>,
}

#[derive(Serialize, ToSchema)]
struct ContextBucket {
    /// The day, or the Monday of the week.
    start: DateTime<Utc>,
    total: u64,
    by_type: BTreeMap<&'static str, u64>,
    success_rate: Option<f64>,
}

fn by_type(totals: &Totals) -> BTreeMap<&'static str, u64> {
    let count = |kind: InteractionType| (kind.as_str(), totals.by_type.get(&kind).copied().unwrap_or(0));
    InteractionType::ALL.into_iter().map(count).collect()
}

fn success_rate(totals: &Totals) -> Option<f64> {
    (totals.total > 0).then(|| (totals.succeeded as f64 / totals.total as f64 * 10_000.0).round() / 100.0)
}

/// Show how large and how successful an agent's memory is
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}/context/stats", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name"), StatsQuery),
    responses((status = 200, body = ContextStats)))]
pub(super) async fn stats(
    State(app): State<App>,
    _: Asker,
    Remembering { agent, space }: Remembering,
    Params(asked): Params<StatsQuery>,
) -> Result<Reply<ContextStats>> {
    let filter = Filter { from: asked.from, to: asked.to, ..Filter::default() };
    let mut collections = app.store.ensure_collections(space.owned()).await?;
    collections.retain(|collection| collection.agent == agent.id);
    let collection = collections.pop().ok_or(Error::NotFound)?;
    let totals = app.store.interaction_totals(agent.id, &filter).await?;
    let bucket = |Bucket { start, totals }: Bucket| ContextBucket {
        start,
        total: totals.total,
        by_type: by_type(&totals),
        success_rate: success_rate(&totals),
    };
    let periods = match asked.bucket {
        None => None,
        Some(period) => {
            let days = if matches!(period, Period::Day) { 1 } else { 7 };
            let buckets = app.store.interaction_history(agent.id, &filter, days).await?;
            Some(buckets.into_iter().map(bucket).collect())
        }
    };
    // Statistics are about facts: an index that does not answer takes nothing from them.
    let size = app.memory.size(&collection).await;
    let size = size.inspect_err(|error| tracing::debug!(%error, "a collection's size is unknown")).ok();
    Ok(Reply(ContextStats {
        agent_id: agent.id,
        total_vectors: totals.total,
        max_vectors: agent.config.max_vectors,
        collection_size_mb: size.map(|size| (size as f64 / (1024.0 * 1024.0) * 1000.0).round() / 1000.0),
        oldest_interaction: totals.oldest,
        newest_interaction: totals.newest,
        by_type: by_type(&totals),
        success_rate: success_rate(&totals),
        waiting: app.memory.waiting(agent.id).await?,
        collection: collection.name,
        state: collection.state.as_str(),
        embedder: collection.embedder.unwrap_or_else(|| app.memory.embedder().name().to_owned()),
        dimension: collection.dimension.unwrap_or(app.memory.embedder().dimension() as i64),
        periods,
    }))
}

#[derive(Serialize, ToSchema)]
pub(super) struct ContextRemoved {
    deleted: u64,
    remaining: u64,
    /// Nothing was deleted: this is what would have been.
    dry_run: bool,
}

/// Clear an agent's memory: everything it remembers is deleted
#[utoipa::path(delete, path = "/my/projects/{project}/agents/{agent}/context", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    responses((status = 200, body = ContextRemoved)))]
pub(super) async fn clear(
    State(app): State<App>,
    _: Person,
    Remembering { agent, space }: Remembering,
) -> Result<Reply<ContextRemoved>> {
    let all = Removal::Matching(Filter::default());
    let deleted = app.memory.forget(space.owned(), agent.id, &all, PruneReason::Cleared).await?;
    let remaining = app.store.interaction_totals(agent.id, &Filter::default()).await?.total;
    Ok(Reply(ContextRemoved { deleted, remaining, dry_run: false }))
}

/// What to delete: what is older than `days` and of the given outcome and types; then the oldest, until only
/// `max_vectors` are left. Nothing, where neither is said.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ContextPrune {
    #[serde(default, deserialize_with = "json::whole_or_null")]
    #[schema(minimum = 0, maximum = 36_500)]
    days: Option<u32>,
    #[serde(default, deserialize_with = "json::whole_or_null")]
    #[schema(minimum = 0, maximum = 100_000_000)]
    max_vectors: Option<u32>,
    success: Option<bool>,
    #[serde(default)]
    types: Vec<InteractionType>,
    /// Only say how many it would be.
    #[serde(default)]
    dry_run: bool,
}

/// Delete a part of an agent's memory
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/prune", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    request_body = ContextPrune, responses((status = 200, body = ContextRemoved)))]
pub(super) async fn prune(
    State(app): State<App>,
    _: Person,
    Remembering { agent, space }: Remembering,
    Json(asked): Json<ContextPrune>,
) -> Result<Reply<ContextRemoved>> {
    let filtered = asked.days.is_some() || asked.success.is_some() || !asked.types.is_empty();
    if asked.days.is_some_and(|days| days > 36_500) {
        return Err(Error::Invalid("days: must be at most 36500".into()));
    }
    if asked.max_vectors.is_some_and(|most| most > 100_000_000) {
        return Err(Error::Invalid("max_vectors: must be at most 100000000".into()));
    }
    let before = asked.days.map(|days| Utc::now() - TimeDelta::days(days.into()));
    let filter =
        Filter { types: distinct(asked.types), success: asked.success, to: before, ..Filter::default() };
    let total = app.store.interaction_totals(agent.id, &Filter::default()).await?.total;
    if asked.dry_run {
        // What came between the two counts is in the second only.
        let matching = if filtered {
            app.store.interaction_totals(agent.id, &filter).await?.total.min(total)
        } else {
            0
        };
        let beyond = asked.max_vectors.map_or(0, |most| (total - matching).saturating_sub(most.into()));
        let deleted = matching + beyond;
        return Ok(Reply(ContextRemoved { deleted, remaining: total - deleted, dry_run: true }));
    }
    let mut deleted = 0;
    let steps = [
        filtered.then_some(Removal::Matching(filter)),
        asked.max_vectors.map(|most| Removal::Beyond(most.into())),
    ];
    for step in steps.iter().flatten() {
        deleted += app.memory.forget(space.owned(), agent.id, step, PruneReason::Requested).await?;
    }
    let remaining = app.store.interaction_totals(agent.id, &Filter::default()).await?.total;
    Ok(Reply(ContextRemoved { deleted, remaining, dry_run: false }))
}

/// Make an agent's collection anew from its facts, with the embedder of today
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/reindex", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    responses((status = 202, description = "It is being made; `stats` says what is still waiting")))]
pub(super) async fn reindex(
    State(app): State<App>,
    _: Person,
    Remembering { agent, space }: Remembering,
) -> Result<StatusCode> {
    app.store.ensure_collections(space.owned()).await?;
    app.memory.reindex(agent.id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Show one thing an agent remembers
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name"),
           ("interaction" = uuid::Uuid, Path)),
    responses((status = 200, body = Interaction)))]
pub(super) async fn interaction(
    State(app): State<App>,
    _: Asker,
    Remembering { agent, .. }: Remembering,
    InteractionInPath(id): InteractionInPath,
) -> Result<Reply<Interaction>> {
    Ok(Reply(app.store.interaction(agent.id, id).await?))
}

/// Have an agent forget one thing
#[utoipa::path(delete, path = "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name"),
           ("interaction" = uuid::Uuid, Path)),
    responses((status = 204, description = "Forgotten")))]
pub(super) async fn forget(
    State(app): State<App>,
    _: Person,
    Remembering { agent, space }: Remembering,
    InteractionInPath(id): InteractionInPath,
) -> Result<StatusCode> {
    let one = Removal::One(id);
    match app.memory.forget(space.owned(), agent.id, &one, PruneReason::Requested).await? {
        0 => Err(Error::NotFound),
        _ => Ok(DONE),
    }
}
