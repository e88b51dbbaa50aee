//! Memory as a file: out of one agent, into the same or another.

use super::context::{Remembering, distinct};
use crate::{
    App,
    auth::Person,
    body::{Json, Params},
    error::{Error, Result},
};
use atelier_core::{AgentId, Filter, Interaction, InteractionType, NewInteraction};
use atelier_memory::Memory;
use atelier_store::Store;
use axum::{
    Json as Reply,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderName, header},
};
use chrono::{DateTime, Utc};
use futures::{Stream, stream};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Facts read at a time.
const PAGE: i64 = 500;
/// Facts written in one transaction, and about how many bytes: others want to write, too.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    #[serde(default)]
    include_embeddings: bool,
    /// Only these types, separated by commas.
    #[param(
        pattern = "^(task_execution|tool_call|user_message|agent_response)(,(task_execution|tool_call|user_message|agent_response))*$"
    )]
    types: Option<String>,
    success: Option<bool>,
    from: Option<DateTime<Utc>>,
    to: Option<DateTime<Utc>>,
}

/// What an export holds, and an import takes.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ContextFile {
    /// Whose memory it was; an import goes to the agent in the path.
    #[serde(default)]
    #[schema(value_type = Option<uuid::Uuid>)]
    agent_id: Option<AgentId>,
    #[serde(default)]
    export_date: Option<DateTime<Utc>>,
    interactions: Vec<NewInteraction>,
    #[serde(default)]
    total_interactions: Option<u64>,
}

/// Export an agent's memory as JSON
#[utoipa::path(get, path = "/my/projects/{project}/agents/{agent}/context/export", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name"), ExportQuery),
    responses((status = 200, body = ContextFile)))]
pub(super) async fn export(
    State(app): State<App>,
    _: Person,
    Remembering { agent, .. }: Remembering,
    Params(asked): Params<ExportQuery>,
) -> Result<([(HeaderName, String); 2], Body)> {
    let types = asked.types.as_deref().into_iter().flat_map(|types| types.split(','));
    let types = types.map(str::parse::<InteractionType>);
    let filter = Filter {
        types: distinct(types.collect::<Result<_, _>>()?),
        success: asked.success,
        from: asked.from,
        to: asked.to,
        ..Filter::default()
    };
    let name = format!("attachment; filename=\"memory-{}.json\"", agent.id);
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_DISPOSITION, name)];
    let export = Export {
        memory: app.memory.clone(),
        store: app.store.clone(),
        agent: agent.id,
        filter,
        embeddings: asked.include_embeddings,
    };
    Ok((headers, Body::from_stream(export.stream())))
}

struct Export {
    memory: Memory,
    store: Store,
    agent: AgentId,
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
    /// A page of facts at a time. The number of them comes last: only then is it known.
    fn stream(self) -> impl Stream<Item = Result<Bytes, atelier_memory::Error>> {
        stream::try_unfold((self, Position::Beginning), |(export, position)| async move {
            match position {
                Position::Beginning => {
                    let head = serde_json::json!({"agent_id": export.agent, "export_date": Utc::now()});
                    let head = format!("{},\"interactions\":[", head.to_string().trim_end_matches('}'));
                    Ok(Some((Bytes::from(head), (export, Position::After(None, 0)))))
                }
                Position::After(after, count) => {
                    let Export { memory, store, agent, filter, embeddings } = &export;
                    let page = match embeddings {
                        true => memory.page(*agent, filter, after, PAGE).await?,
                        false => store.interaction_page(*agent, filter, after, PAGE, false).await?,
                    };
                    let (next, mut written, mut text) = (page.next, count, String::new());
                    for (interaction, vector) in page.facts {
                        let vector =
                            vector.map(|made| Vector { embedding: made.vector, embedder: made.embedder });
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

#[derive(Serialize, ToSchema)]
pub(super) struct ContextImported {
    /// Not known before.
    imported: usize,
    /// Known already, by their ids.
    skipped: usize,
    /// Whether searches find them by now in every way. If not, the index or the embedder is slow or away, and they are
    /// found by their words.
    indexed: bool,
}

/// Import what an export holds; answers when searches find it
///
/// Entries that are known already, by their id, stay as they are: the same export twice changes nothing. One without
/// an id is new every time.
#[utoipa::path(post, path = "/my/projects/{project}/agents/{agent}/context/import", tag = "context",
    params(("project" = uuid::Uuid, Path), ("agent" = String, Path, description = "Id or name")),
    request_body = ContextFile, responses((status = 200, body = ContextImported)))]
pub(super) async fn import(
    State(app): State<App>,
    _: Person,
    Remembering { agent, space }: Remembering,
    Json(file): Json<ContextFile, true>,
) -> Result<Reply<ContextImported>> {
    for (place, memo) in file.interactions.iter().enumerate() {
        memo.validate().map_err(|invalid| Error::Invalid(format!("interactions[{place}].{invalid}")))?;
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
    let indexed = app.memory.wait_until_indexed(agent.id, &ids, app.settings.request_timeout).await?;
    Ok(Reply(ContextImported { imported, skipped: count - imported, indexed }))
}
