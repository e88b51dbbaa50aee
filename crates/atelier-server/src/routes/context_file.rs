//! Export and import of an agent's memory.

use super::context::{OwnAgent, distinct};
use crate::{
    App,
    auth::Person,
    body::Json,
    error::{Error, Result},
    path::{AgentInPath, ProjectInPath},
    query::Params,
};
use atelier_api::memory::{ContextFile, ContextImported};
use atelier_core::{Filter, Interaction, InteractionType};
use atelier_memory::Memory;
use atelier_store::{OwnedAgent, Store};
use axum::{
    Json as Reply,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderName, header},
};
use chrono::{DateTime, Utc};
use futures::{Stream, stream};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

/// How many interactions are read at a time.
const PAGE: i64 = 500;
/// How many interactions, and about how many bytes, are written in one transaction, so that other
/// writes get a turn.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    #[serde(default)]
    include_embeddings: bool,
    /// Only interactions of these types, separated by commas.
    #[param(
        pattern = "^(task_execution|tool_call|user_message|agent_response)(,(task_execution|tool_call|user_message|agent_response))*$"
    )]
    types: Option<String>,
    success: Option<bool>,
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
}

/// Export an agent's memory as JSON
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}/context/export", tag = "context",
    params(ProjectInPath, AgentInPath, ExportQuery),
    responses((status = 200, description = "The agent's memory", body = ContextFile)))]
pub(super) async fn export(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, .. }: OwnAgent,
    Params(query): Params<ExportQuery>,
) -> Result<([(HeaderName, String); 2], Body)> {
    let types = query.types.as_deref().into_iter().flat_map(|types| types.split(','));
    let types = types.map(str::parse::<InteractionType>);
    let filter = Filter {
        types: distinct(types.collect::<Result<_, _>>()?),
        success: query.success,
        from: query.from,
        to: query.to,
        ..Filter::default()
    };
    let name = format!("attachment; filename=\"memory-{}.json\"", agent.id);
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    let export = Export {
        memory: app.memory.clone(),
        store: app.store.clone(),
        agent: agent.owned(),
        filter,
        embeddings: query.include_embeddings,
    };
    Ok((headers, Body::from_stream(export.stream())))
}

struct Export {
    memory: Memory,
    store: Store,
    agent: OwnedAgent,
    filter: Filter,
    embeddings: bool,
}

enum Position {
    Beginning,
    After(Option<(i64, atelier_core::InteractionId)>, u64),
    End,
}

#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    interaction: Interaction,
    #[serde(flatten)]
    vector: Option<Vector>,
}

#[derive(Serialize)]
struct Vector {
    embedding: Vec<f32>,
    embedder: String,
}

impl Export {
    /// Reads a page of interactions at a time. Their number comes last, because only then it is
    /// known.
    fn stream(self) -> impl Stream<Item = Result<Bytes, atelier_memory::Error>> {
        stream::try_unfold((self, Position::Beginning), |(export, position)| async move {
            match position {
                Position::Beginning => {
                    let (agent, date) = (export.agent.id(), Utc::now());
                    let head = serde_json::json!({"agent_id": agent, "export_date": date});
                    let head =
                        format!("{},\"interactions\":[", head.to_string().trim_end_matches('}'));
                    Ok(Some((Bytes::from(head), (export, Position::After(None, 0)))))
                }
                Position::After(after, count) => {
                    let Export { memory, store, agent, filter, embeddings } = &export;
                    let page = match embeddings {
                        true => memory.page(*agent, filter, after, PAGE).await?,
                        false => store.interaction_page(*agent, filter, after, PAGE, false).await?,
                    };
                    let (next, mut written, mut text) = (page.next, count, String::new());
                    for (interaction, vector) in page.interactions {
                        let vector = vector
                            .map(|made| Vector { embedding: made.vector, embedder: made.embedder });
                        let entry = Entry { interaction, vector };
                        let entry = serde_json::to_string(&entry)
                            .unwrap_or_else(|error| unreachable!("plain values are JSON: {error}"));
                        text.push_str(if written > 0 { "," } else { "" });
                        text.push_str(&entry);
                        written += 1;
                    }
                    let position = match next {
                        Some(next) => Position::After(Some(next), written),
                        None => {
                            text.push_str(&format!("],\"total_interactions\":{written}}}"));
                            Position::End
                        }
                    };
                    Ok(Some((Bytes::from(text), (export, position))))
                }
                Position::End => Ok(None),
            }
        })
    }
}

/// Import an export, and answer when searches find its interactions
///
/// Interactions whose id already exists stay as they are, so importing the same export twice
/// changes nothing. An interaction without an id is new every time.
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/import", tag = "context",
    params(ProjectInPath, AgentInPath), request_body = ContextFile,
    responses((status = 200, description = "What was imported", body = ContextImported)))]
pub(super) async fn import(
    State(app): State<App>,
    _: Person,
    OwnAgent { agent, space }: OwnAgent,
    Json(file): Json<ContextFile, true>,
) -> Result<Reply<ContextImported>> {
    for (index, memo) in file.interactions.iter().enumerate() {
        memo.validate()
            .map_err(|invalid| Error::Invalid(format!("interactions[{index}].{invalid}")))?;
    }
    let count = file.interactions.len();
    let (mut ids, mut imported) = (Vec::with_capacity(count), 0);
    let mut memos = file.interactions.into_iter().peekable();
    while memos.peek().is_some() {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(memo) = memos.next_if(|_| batch.len() < BATCH && bytes < BATCH_BYTES) {
            bytes += memo.text.len() + memo.embedding.as_ref().map_or(0, |vector| 4 * vector.len());
            batch.push(memo);
        }
        let remembered = app.store.add_interactions(space.owned(), agent.id, batch).await?;
        imported += remembered.new;
        ids.extend(remembered.ids);
    }
    let indexed =
        app.memory.wait_until_indexed(agent.owned(), &ids, app.settings.request_timeout).await?;
    Ok(Reply(ContextImported { imported, skipped: count - imported, indexed }))
}
