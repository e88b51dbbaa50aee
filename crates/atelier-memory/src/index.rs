//! The index: vectors and words of interactions, by collection. Two engines offer the same
//! operations and pass the same test suite (`tests/suite.rs`).

#[cfg(feature = "edge")]
mod disk;
#[cfg(feature = "edge")]
mod edge;
mod server;

use crate::lexical::{self, Sparse};
use atelier_core::{AgentId, Filter, Interaction};
use std::{path::Path, time::Duration};
use uuid::Uuid;

/// The payload fields that filters use, and how each is indexed.
pub(crate) const FIELDS: [(&str, FieldKind); 5] = [
    ("task_id", FieldKind::Keyword),
    ("session_id", FieldKind::Keyword),
    ("timestamp", FieldKind::Time),
    ("success", FieldKind::Flag),
    ("interaction_type", FieldKind::Keyword),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Keyword,
    Time,
    Flag,
}

/// The name of the sparse vectors. The dense vectors are the collection's unnamed default.
pub(crate) const WORDS: &str = "text";

/// Identifies the vectors of an agent that one embedder has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionKey {
    pub agent: AgentId,
    pub name: String,
    /// The place of the vectors: a folder of the embedded index, or a collection of a server, which
    /// agents share. `None` for vectors of older versions: in a folder that has the agent's id, or
    /// in a collection of the agent's own that has this name.
    pub place: Option<String>,
}

/// An interaction as the index holds it. The point has the interaction's id, so applying it twice
/// has no further effect.
#[derive(Debug, Clone)]
pub struct Point {
    pub interaction: Interaction,
    /// `None` if the embedder refused the text; then the interaction is found by its words only.
    pub vector: Option<Vec<f32>>,
    pub words: Sparse,
}

/// A query for the index: by vector, by words, or both, under the same filter.
#[derive(Debug, Clone)]
pub struct IndexQuery {
    pub vector: Option<Vec<f32>>,
    pub words: Option<Sparse>,
    pub filter: Filter,
    pub limit: usize,
}

/// The best matches by vector and by words with their scores, best first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IndexMatches {
    pub dense: Vec<(Uuid, f32)>,
    pub lexical: Vec<(Uuid, f32)>,
}

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("the index has no such collection")]
    CollectionMissing,
    #[error("the collection is still being created")]
    NotCreated,
    #[error("the collection is in another index ({0}): reindex it, unless it is rebuilt already")]
    OtherIndex(String),
    #[error("some vectors were made by the embedder {0}, which this server does not have")]
    OtherEmbedder(String),
    #[error("the collection is damaged: {0}")]
    Damaged(String),
    #[error(
        "the disk is full: {free} MB are free in {folder}, and the index needs {needed} MB; free \
         some space"
    )]
    DiskFull { folder: String, free: u64, needed: u64 },
    #[error("{0} interactions are not indexed yet")]
    Behind(u64),
    #[error("the index did not answer within {0:?}")]
    Slow(Duration),
    #[error("the index does not answer: {0}")]
    Unreachable(String),
    #[error("the index failed: {0}")]
    Failed(String),
    #[error("the folder of the index cannot be used: {0}")]
    Folder(#[from] std::io::Error),
    #[error("this program was built without an embedded index: set ATELIER_QDRANT_URL")]
    NotBuilt,
}

impl IndexError {
    /// Whether the collection has to be rebuilt from the interactions in the store.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, IndexError::CollectionMissing | IndexError::Damaged(_))
    }
}

pub(crate) type Result<T, E = IndexError> = std::result::Result<T, E>;

/// An index in this process, or on a Qdrant server.
#[derive(Clone)]
pub struct Index(Engine);

#[derive(Clone)]
enum Engine {
    #[cfg(feature = "edge")]
    Edge(edge::Edge),
    Server(server::Server),
    /// Another process has opened the index's folder.
    Unavailable(Unavailable),
}

macro_rules! each {
    ($index:expr, $engine:ident => $body:expr) => {
        match &$index.0 {
            #[cfg(feature = "edge")]
            Engine::Edge($engine) => $body,
            Engine::Server($engine) => $body,
            Engine::Unavailable(absent) => absent.refuse(),
        }
    };
}

/// Stands for an index that another process has opened. Nodes that share a data folder share its
/// index, and only one of them can open it.
#[derive(Clone)]
struct Unavailable(String);

impl Unavailable {
    fn refuse<T>(&self) -> Result<T> {
        let folder = &self.0;
        Err(IndexError::Unreachable(format!(
            "{folder} is in use by another process; this node searches by words only"
        )))
    }
}

impl Index {
    /// Opens an index in a folder. Only one process at a time can open it.
    #[cfg(feature = "edge")]
    pub fn embedded(folder: &Path, open_collections: usize) -> Result<Self> {
        Ok(Self(match edge::Edge::open(folder, open_collections)? {
            Some(edge) => Engine::Edge(edge),
            None => Engine::Unavailable(Unavailable(folder.display().to_string())),
        }))
    }

    #[cfg(not(feature = "edge"))]
    pub fn embedded(_: &Path, _: usize) -> Result<Self> {
        Err(IndexError::NotBuilt)
    }

    /// Uses a Qdrant server, which does not have to be reachable yet.
    pub fn server(url: &str, api_key: Option<&str>) -> Result<Self> {
        Ok(Self(Engine::Server(server::Server::new(url, api_key)?)))
    }

    /// Identifies this index, because a collection exists only in the index that created it. `None`
    /// if this process could not open the index.
    pub fn id(&self) -> Option<&str> {
        match &self.0 {
            #[cfg(feature = "edge")]
            Engine::Edge(edge) => Some(edge.id()),
            Engine::Server(server) => Some(server.id()),
            Engine::Unavailable(_) => None,
        }
    }

    /// The id under which older versions of this program used the same index, in another way.
    pub(crate) fn older_id(&self) -> Option<&'static str> {
        match &self.0 {
            Engine::Server(_) => Some(server::OLDER_ID),
            _ => None,
        }
    }

    /// The place in which this index keeps the vectors that an embedder makes for an agent.
    pub fn place(&self, agent: AgentId, embedder: &str, dimension: usize) -> String {
        match &self.0 {
            Engine::Server(_) => server::place(embedder, dimension),
            _ => format!("{agent}-{:08x}", lexical::hash(embedder.as_bytes(), 4) as u32),
        }
    }

    pub fn kind(&self) -> &'static str {
        match &self.0 {
            #[cfg(feature = "edge")]
            Engine::Edge(_) => "qdrant-edge",
            Engine::Server(_) => "qdrant",
            Engine::Unavailable(_) => "none",
        }
    }

    /// Whether other nodes and other programs see the same collections.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Engine::Server(_))
    }

    /// Creates an empty collection. An existing collection in the same place is dropped first,
    /// because its contents may be outdated.
    pub async fn create(&self, key: &CollectionKey, dimension: usize) -> Result<()> {
        each!(self, engine => engine.create(key, dimension).await)
    }

    pub async fn exists(&self, key: &CollectionKey) -> Result<bool> {
        each!(self, engine => engine.exists(key).await)
    }

    /// Adds or replaces points and removes others. Searches see the change immediately; it survives
    /// a crash only after [`Index::flush`].
    pub async fn apply(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
        removed: Vec<Uuid>,
    ) -> Result<()> {
        each!(self, engine => engine.apply(key, points, removed).await)
    }

    /// Makes applied changes durable.
    pub async fn flush(&self, key: &CollectionKey) -> Result<()> {
        each!(self, engine => engine.flush(key).await)
    }

    /// Whether the engine multiplies in how rare a word is. A collection that agents share does
    /// not.
    pub(crate) fn weighs_words(&self, key: &CollectionKey) -> bool {
        !self.is_shared() || key.place.is_none()
    }

    /// Whether applied changes are durable without a flush.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_shared()
    }

    pub async fn search(&self, key: &CollectionKey, ask: IndexQuery) -> Result<IndexMatches> {
        each!(self, engine => engine.search(key, ask).await)
    }

    /// Drops a collection. Dropping a collection that does not exist succeeds.
    pub async fn drop(&self, key: &CollectionKey) -> Result<()> {
        each!(self, engine => engine.drop(key).await)
    }

    /// How many points a collection holds.
    pub async fn count(&self, key: &CollectionKey) -> Result<u64> {
        each!(self, engine => engine.count(key).await)
    }

    /// The indexed fields of a collection, sorted.
    pub async fn indexed_fields(&self, key: &CollectionKey) -> Result<Vec<String>> {
        each!(self, engine => engine.indexed_fields(key).await)
    }

    /// The approximate size of a collection in bytes.
    pub async fn size(&self, key: &CollectionKey, dimension: usize) -> Result<u64> {
        each!(self, engine => engine.size(key, dimension).await)
    }

    /// The names or folders of all collections, sorted. Tests use it to find leftovers; a server's
    /// collections are shared by many agents.
    pub async fn collections(&self) -> Result<Vec<String>> {
        each!(self, engine => engine.collections().await)
    }

    /// Builds the search graph for recently added points if there are enough of them.
    pub async fn optimize(&self, key: &CollectionKey) -> Result<()> {
        each!(self, engine => engine.optimize(key).await)
    }

    /// Whether the search graph covers nearly all points.
    pub async fn is_optimized(&self, key: &CollectionKey) -> Result<bool> {
        each!(self, engine => engine.is_optimized(key).await)
    }

    /// Whether a collection takes so much more space than its points need that it should be
    /// rebuilt.
    pub(crate) async fn needs_compaction(&self, key: &CollectionKey) -> Result<bool> {
        each!(self, engine => engine.needs_compaction(key).await)
    }

    /// Begins a new, empty generation of a collection while searches go on in the old one.
    pub(crate) async fn begin_generation(
        &self,
        key: &CollectionKey,
        dimension: usize,
    ) -> Result<()> {
        each!(self, engine => engine.begin_generation(key, dimension).await)
    }

    pub(crate) async fn fill_generation(
        &self,
        key: &CollectionKey,
        points: Vec<Point>,
    ) -> Result<()> {
        each!(self, engine => engine.fill_generation(key, points).await)
    }

    /// Makes searches use the new generation and deletes the old one.
    pub(crate) async fn switch_generation(&self, key: &CollectionKey) -> Result<()> {
        each!(self, engine => engine.switch_generation(key).await)
    }

    pub async fn ping(&self, patience: Duration) -> Result<()> {
        match tokio::time::timeout(patience, async { each!(self, engine => engine.ping().await) })
            .await
        {
            Ok(answer) => answer,
            Err(_) => Err(IndexError::Unreachable(format!("no answer within {patience:?}"))),
        }
    }

    /// Closes all open collections.
    pub async fn close(&self) {
        match &self.0 {
            #[cfg(feature = "edge")]
            Engine::Edge(edge) => edge.close().await,
            Engine::Server(_) | Engine::Unavailable(_) => {}
        }
    }
}

/// The beam width (`ef`) of a graph search. Each filter leaves fewer edges to follow: with 100,000
/// points and a beam of 256, one in fourteen of the ten nearest points that pass two filters was
/// not found.
fn beam(filter: &Filter) -> usize {
    let parts = [
        !filter.types.is_empty(),
        filter.success.is_some(),
        filter.from.is_some() || filter.to.is_some(),
        filter.task_id.is_some(),
        filter.session_id.is_some(),
    ];
    match parts.into_iter().filter(|part| *part).count() {
        0 => 128,
        1 => 256,
        _ => 512,
    }
}
