//! What an agent remembers: searching it, and managing it.

use super::DONE;
use crate::{
    App,
    access::CountedSpace,
    auth::{Person, ToolRequester},
    body::Json,
    error::{Error, Result},
    path::{AgentInPath, InteractionInPath, ProjectInPath},
    query::Params,
};
use atelier_api::memory::{
    ContextChange, ContextHistory, ContextPeriod, ContextPrune, ContextRemoved, ContextResult,
    ContextResults, ContextSearch, ContextStats,
};
use atelier_core::{
    CallId, Filter, Interaction, InteractionType, NewInteraction, TokenId, event::PruneReason,
};
use atelier_memory::{Hit, Query};
use atelier_runtime::LoadedAgent;
use atelier_store::{Bucket, InteractionChange, Owned, Removal, Totals};
use axum::{
    Json as Reply,
    extract::{FromRequestParts, State},
    http::{StatusCode, request},
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};
use utoipa::{IntoParams, ToSchema};

/// The agent in the path. It is looked up before the body is read, so that a bad body reveals
/// nothing about an agent that is not the caller's.
pub(super) struct OwnAgent {
    pub(super) space: CountedSpace,
    pub(super) agent: Arc<LoadedAgent>,
}

impl FromRequestParts<App> for OwnAgent {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut request::Parts, app: &App) -> Result<Self> {
        let space = CountedSpace::from_request_parts(parts, app).await?;
        let AgentInPath(wanted) = AgentInPath::from_request_parts(parts, app).await?;
        let agent = space.agent(&wanted).await?;
        Ok(Self { space, agent })
    }
}

/// Search an agent's memory by meaning, by words, or both
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/search", tag = "context",
    params(ProjectInPath, AgentInPath), request_body = ContextSearch,
    responses((status = 200, description = "The best results", body = ContextResults)))]
pub(super) async fn search(
    State(app): State<App>,
    ToolRequester(caller): ToolRequester,
    OwnAgent { agent, space }: OwnAgent,
    Json(search): Json<ContextSearch>,
) -> Result<Reply<ContextResults>> {
    let length = search.query.chars().count();
    if search.query.trim().is_empty() || length > 10_000 {
        return Err(Error::Invalid("query: must have 1 to 10000 characters".into()));
    }
    if !(1..=100).contains(&search.k) {
        return Err(Error::Invalid("k: must be between 1 and 100".into()));
    }
    if search.recency_days.is_some_and(|days| !(0.01..=36_500.0).contains(&days)) {
        return Err(Error::Invalid("recency_days: must be between 0.01 and 36500".into()));
    }
    for (field, id) in [("task_id", &search.task_id), ("session_id", &search.session_id)] {
        // PostgreSQL cannot store NUL, so no id contains it.
        if id.as_ref().is_some_and(|id| id.contains('\0')) {
            return Err(Error::Invalid(format!("{field}: must not contain NUL")));
        }
    }
    let filter = Filter {
        types: distinct(search.types),
        success: search.success,
        from: search.from,
        to: search.to,
        task_id: search.task_id,
        session_id: search.session_id,
    };
    let query = Query {
        text: search.query,
        k: search.k as usize,
        mode: search.mode,
        filter,
        min_score: search.min_score,
        recency_days: search.recency_days,
        unique: search.unique,
    };
    let mut found = app.memory.search(agent.owned(), &query).await?;
    if let Some(session) = caller.program() {
        let calls = found.hits.iter().filter_map(|hit| hit.interaction.call_id()).collect();
        let open = open_calls(&app, space.owned(), session, calls).await?;
        found.hits.retain(|hit| hit.interaction.call_id().is_none_or(|id| open.contains(&id)));
    }
    let result = |Hit { interaction, score, parts }| ContextResult {
        interaction,
        score,
        score_parts: parts,
    };
    Ok(Reply(ContextResults {
        results: found.hits.into_iter().map(result).collect(),
        degraded: found.degraded,
    }))
}

/// The calls among these that a program may read: what an agent remembers of the others is not for
/// the program either.
async fn open_calls(
    app: &App,
    owned: &Owned,
    session: TokenId,
    calls: Vec<CallId>,
) -> Result<HashSet<CallId>> {
    let calls = app.store.calls_by_id(owned, &calls).await?;
    let open = calls.into_iter().filter(|call| call.is_open_to_program(session));
    Ok(open.map(|call| call.tool_id).collect())
}

/// The types without repetitions.
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
    /// Also return figures for each day or week.
    #[param(inline)]
    bucket: Option<Bucketing>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Bucketing {
    Day,
    Week,
}

fn by_type(totals: &Totals) -> BTreeMap<InteractionType, u64> {
    let count = |kind| (kind, totals.by_type.get(&kind).copied().unwrap_or(0));
    InteractionType::ALL.into_iter().map(count).collect()
}

fn success_rate(totals: &Totals) -> Option<f64> {
    (totals.total > 0)
        .then(|| (totals.succeeded as f64 / totals.total as f64 * 10_000.0).round() / 100.0)
}

/// Show the size and the success rate of an agent's memory
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}/context/stats", tag = "context",
    params(ProjectInPath, AgentInPath, StatsQuery),
    responses((status = 200, description = "The figures", body = ContextStats)))]
pub(super) async fn stats(
    State(app): State<App>,
    _: ToolRequester,
    OwnAgent { agent, space }: OwnAgent,
    Params(query): Params<StatsQuery>,
) -> Result<Reply<ContextStats>> {
    let filter = Filter { from: query.from, to: query.to, ..Filter::default() };
    let mut collections = app.store.ensure_collections(space.owned()).await?;
    collections.retain(|collection| collection.agent == agent.id);
    let collection = collections.pop().ok_or(Error::NotFound)?;
    let totals = app.store.interaction_totals(agent.owned(), &filter).await?;
    let period = |Bucket { start, totals }: Bucket| ContextPeriod {
        start,
        total: totals.total,
        by_type: by_type(&totals),
        success_rate: success_rate(&totals),
    };
    let periods = match query.bucket {
        None => None,
        Some(bucketing) => {
            let days = if matches!(bucketing, Bucketing::Day) { 1 } else { 7 };
            let buckets = app.store.interaction_history(agent.owned(), &filter, days).await?;
            Some(buckets.into_iter().map(period).collect())
        }
    };
    // The figures come from the store, so they do not need the index to answer.
    let size = app.memory.size(&collection).await;
    let size =
        size.inspect_err(|error| tracing::debug!(%error, "a collection's size is unknown")).ok();
    Ok(Reply(ContextStats {
        agent_id: agent.id,
        total_vectors: totals.total,
        max_vectors: agent.config.max_vectors,
        collection_size_mb: size
            .map(|size| (size as f64 / (1024.0 * 1024.0) * 1000.0).round() / 1000.0),
        oldest_interaction: totals.oldest,
        newest_interaction: totals.newest,
        by_type: by_type(&totals),
        success_rate: success_rate(&totals),
        waiting: app.memory.waiting(agent.owned()).await?,
        collection: collection.name,
        state: collection.state,
        embedder: collection.embedder.unwrap_or_else(|| app.memory.embedder().name().to_owned()),
        dimension: collection.dimension.unwrap_or(app.memory.embedder().dimension() as i64),
        periods,
    }))
}

/// Clear an agent's memory: delete everything that it remembers
#[utoipa::path(delete, path = "/my/projects/{project}/agents/{agent}/context", tag = "context",
    params(ProjectInPath, AgentInPath),
    responses((status = 200, description = "What was deleted", body = ContextRemoved)))]
pub(super) async fn clear(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, space }: OwnAgent,
) -> Result<Reply<ContextRemoved>> {
    let all = Removal::Everything;
    let deleted =
        app.memory.forget(space.owned(), agent.owned(), &all, PruneReason::Cleared).await?;
    let remaining = app.store.interaction_totals(agent.owned(), &Filter::default()).await?.total;
    Ok(Reply(ContextRemoved { deleted, remaining, dry_run: false }))
}

/// Delete a part of an agent's memory
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/prune", tag = "context",
    params(ProjectInPath, AgentInPath), request_body = ContextPrune,
    responses((status = 200, description = "What was deleted", body = ContextRemoved)))]
pub(super) async fn prune(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, space }: OwnAgent,
    Json(request): Json<ContextPrune>,
) -> Result<Reply<ContextRemoved>> {
    let filtered = request.days.is_some() || request.success.is_some() || !request.types.is_empty();
    if request.days.is_some_and(|days| days > 36_500) {
        return Err(Error::Invalid("days: must be at most 36500".into()));
    }
    if request.max_vectors.is_some_and(|most| most > 100_000_000) {
        return Err(Error::Invalid("max_vectors: must be at most 100000000".into()));
    }
    let before = request.days.map(|days| Utc::now() - TimeDelta::days(days.into()));
    let filter = Filter {
        types: distinct(request.types),
        success: request.success,
        to: before,
        ..Filter::default()
    };
    let total = app.store.interaction_totals(agent.owned(), &Filter::default()).await?.total;
    if request.dry_run {
        // An interaction that is added between the two counts is only in the second one.
        let pinned = app.store.pinned_total(agent.owned(), &Filter::default()).await?;
        let matching = if filtered {
            let kept = app.store.pinned_total(agent.owned(), &filter).await?;
            let matching = app.store.interaction_totals(agent.owned(), &filter).await?.total;
            matching.saturating_sub(kept).min(total)
        } else {
            0
        };
        let left = total - matching;
        let beyond = request
            .max_vectors
            .map_or(0, |most| left.saturating_sub(most.into()).min(left.saturating_sub(pinned)));
        let deleted = matching + beyond;
        return Ok(Reply(ContextRemoved { deleted, remaining: total - deleted, dry_run: true }));
    }
    let mut deleted = 0;
    let steps = [
        filtered.then_some(Removal::Matching(filter)),
        request.max_vectors.map(|most| Removal::Beyond(most.into())),
    ];
    for step in steps.iter().flatten() {
        deleted +=
            app.memory.forget(space.owned(), agent.owned(), step, PruneReason::Requested).await?;
    }
    let remaining = app.store.interaction_totals(agent.owned(), &Filter::default()).await?.total;
    Ok(Reply(ContextRemoved { deleted, remaining, dry_run: false }))
}

/// Rebuild the index of an agent's memory with the current embedder
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/reindex",
    tag = "context",
    params(ProjectInPath, AgentInPath),
    responses(
        (status = 202, description = "The index is being rebuilt; `stats` shows how far it is"),
    ))]
pub(super) async fn reindex(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, space }: OwnAgent,
) -> Result<StatusCode> {
    app.store.ensure_collections(space.owned()).await?;
    app.memory.reindex(agent.owned()).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Show an interaction
#[utoipa::path(get,
    path = "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}",
    tag = "context",
    params(ProjectInPath, AgentInPath, InteractionInPath),
    responses((status = 200, description = "The interaction", body = Interaction)))]
pub(super) async fn interaction(
    State(app): State<App>,
    ToolRequester(caller): ToolRequester,
    OwnAgent { agent, space }: OwnAgent,
    InteractionInPath(id): InteractionInPath,
) -> Result<Reply<Interaction>> {
    let interaction = app.store.interaction(agent.owned(), id).await?;
    if let (Some(session), Some(call)) = (caller.program(), interaction.call_id())
        && open_calls(&app, space.owned(), session, vec![call]).await?.is_empty()
    {
        return Err(Error::NotFound);
    }
    Ok(Reply(interaction))
}

/// Correct the text of an interaction, or pin it
#[utoipa::path(patch,
    path = "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}",
    tag = "context",
    params(ProjectInPath, AgentInPath, InteractionInPath), request_body = ContextChange,
    responses((status = 200, description = "The interaction as it is now", body = Interaction)))]
pub(super) async fn change(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, .. }: OwnAgent,
    InteractionInPath(id): InteractionInPath,
    Json(change): Json<ContextChange>,
) -> Result<Reply<Interaction>> {
    let change = InteractionChange { text: change.text, pinned: change.pinned };
    if let Some(text) = &change.text {
        let new = NewInteraction::new(InteractionType::UserMessage, text.clone());
        new.validate().map_err(|invalid| Error::Invalid(invalid.to_string()))?;
    }
    Ok(Reply(app.store.change_interaction(agent.owned(), id, change).await?))
}

/// Show the texts that an interaction had before it was corrected
#[utoipa::path(get,
    path = "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}/history",
    tag = "context",
    params(ProjectInPath, AgentInPath, InteractionInPath),
    responses((status = 200, description = "The former texts", body = ContextHistory)))]
pub(super) async fn history(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, .. }: OwnAgent,
    InteractionInPath(id): InteractionInPath,
) -> Result<Reply<ContextHistory>> {
    let versions = app.store.interaction_history_of(agent.owned(), id).await?;
    Ok(Reply(ContextHistory { versions }))
}

/// Delete an interaction
#[utoipa::path(delete,
    path = "/my/projects/{project}/agents/{agent}/context/interactions/{interaction}",
    tag = "context",
    params(ProjectInPath, AgentInPath, InteractionInPath),
    responses((status = 204, description = "Deleted")))]
pub(super) async fn forget(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, space }: OwnAgent,
    InteractionInPath(id): InteractionInPath,
) -> Result<StatusCode> {
    let one = Removal::One(id);
    match app.memory.forget(space.owned(), agent.owned(), &one, PruneReason::Requested).await? {
        0 => Err(Error::NotFound),
        _ => Ok(DONE),
    }
}
