//! The index: vectors and words of facts, by collection. One set of operations on two engines, and one suite of
//! cases (`tests/suite.rs`) that both pass.

#[cfg(feature = "edge")]
mod edge;
mod server;

use crate::lexical::Sparse;
use atelier_core::{AgentId, Filter, Interaction};
use std::{path::Path, time::Duration};
use uuid::Uuid;

/// The fields that filters go by, and how each is indexed.
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

/// What the sparse vectors are called; the dense ones are the collection's default.
pub(crate) const WORDS: &str = "text";

/// Which collection: an engine of our own goes by the agent, a server by the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub agent: AgentId,
    pub name: String,
}

/// A fact as the index holds it. Its id is the fact's own: told twice, it is there once.
#[derive(Debug, Clone)]
pub struct Point {
    pub fact: Interaction,
    /// Absent where the embedder refused the text: then it is found by its words.
    pub vector: Option<Vec<f32>>,
    pub words: Sparse,
}

/// What to look for. Both parts are asked for at once, under the same filter.
#[derive(Debug, Clone)]
pub struct Ask {
    pub vector: Option<Vec<f32>>,
    pub words: Option<Sparse>,
    pub filter: Filter,
    pub limit: usize,
}

/// The best of each part, with its score, best first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub dense: Vec<(Uuid, f32)>,
    pub lexical: Vec<(Uuid, f32)>,
}

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("the index has no such collection")]
    Missing,
    #[error("the collection is being made")]
    Unmade,
    #[error("the collection is in another index ({0}): reindex it")]
    Elsewhere(String),
    #[error("the collection's vectors were made by {0}: reindex it")]
    OtherVectors(String),
    #[error("the index has still to hear of {0} facts")]
    Behind(u64),
    #[error("the index does not answer: {0}")]
    Away(String),
    #[error("the index failed: {0}")]
    Failed(String),
    #[error("the folder of the index cannot be used: {0}")]
    Folder(#[from] std::io::Error),
    #[error("this program was built without an index of its own: set ATELIER_QDRANT_URL")]
    NotBuilt,
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
    /// Another process has the folder.
    Absent(Absent),
}

macro_rules! each {
    ($index:expr, $engine:ident => $body:expr) => {
        match &$index.0 {
            #[cfg(feature = "edge")]
            Engine::Edge($engine) => $body,
            Engine::Server($engine) => $body,
            Engine::Absent(absent) => absent.refuse(),
        }
    };
}

/// No index: nodes that share a database and a data folder share its index, too, and one of them has it.
#[derive(Clone)]
struct Absent(String);

impl Absent {
    fn refuse<T>(&self) -> Result<T> {
        Err(IndexError::Away(format!("{} is in use by another process; searches go by words here", self.0)))
    }
}

impl Index {
    /// An index in a folder. It belongs to one process at a time.
    #[cfg(feature = "edge")]
    pub fn embedded(folder: &Path, open_collections: usize) -> Result<Self> {
        Ok(Self(match edge::Edge::open(folder, open_collections)? {
            Some(edge) => Engine::Edge(edge),
            None => Engine::Absent(Absent(folder.display().to_string())),
        }))
    }

    #[cfg(not(feature = "edge"))]
    pub fn embedded(_: &Path, _: usize) -> Result<Self> {
        Err(IndexError::NotBuilt)
    }

    /// A Qdrant server. It need not be there yet.
    pub fn server(url: &str, api_key: Option<&str>) -> Result<Self> {
        Ok(Self(Engine::Server(server::Server::new(url, api_key)?)))
    }

    /// Tells this index apart from others: collections are where they were made. `None` if there is none here.
    pub fn id(&self) -> Option<&str> {
        match &self.0 {
            #[cfg(feature = "edge")]
            Engine::Edge(edge) => Some(edge.id()),
            Engine::Server(server) => Some(server.id()),
            Engine::Absent(_) => None,
        }
    }

    pub fn kind(&self) -> &'static str {
        match &self.0 {
            #[cfg(feature = "edge")]
            Engine::Edge(_) => "qdrant-edge",
            Engine::Server(_) => "qdrant",
            Engine::Absent(_) => "none",
        }
    }

    /// Whether other nodes, and other people's tools, see the same collections.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Engine::Server(_))
    }

    /// Makes a collection, empty. One of that name that is there goes first: what it holds may be of another time.
    pub async fn make(&self, key: &Key, dimension: usize) -> Result<()> {
        each!(self, engine => engine.make(key, dimension).await)
    }

    pub async fn exists(&self, key: &Key) -> Result<bool> {
        each!(self, engine => engine.exists(key).await)
    }

    /// Adds or replaces points and removes others. Searches go by it at once; whether a crash leaves it there only
    /// [`Index::flush`] makes sure.
    pub async fn apply(&self, key: &Key, points: Vec<Point>, removed: Vec<Uuid>) -> Result<()> {
        each!(self, engine => engine.apply(key, points, removed).await)
    }

    /// What was applied stays, whatever happens.
    pub async fn flush(&self, key: &Key) -> Result<()> {
        each!(self, engine => engine.flush(key).await)
    }

    /// Whether what was applied stays without a flush.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_shared()
    }

    pub async fn search(&self, key: &Key, ask: Ask) -> Result<Answer> {
        each!(self, engine => engine.search(key, ask).await)
    }

    /// Drops a collection. That it is not there is no failure.
    pub async fn drop(&self, key: &Key) -> Result<()> {
        each!(self, engine => engine.drop(key).await)
    }

    /// How many points a collection really holds.
    pub async fn count(&self, key: &Key) -> Result<u64> {
        each!(self, engine => engine.count(key).await)
    }

    /// Which fields of a collection are indexed, sorted.
    pub async fn indexed_fields(&self, key: &Key) -> Result<Vec<String>> {
        each!(self, engine => engine.indexed_fields(key).await)
    }

    /// What a collection takes, in bytes, about.
    pub async fn size(&self, key: &Key, dimension: usize) -> Result<u64> {
        each!(self, engine => engine.size(key, dimension).await)
    }

    /// All collections there are, by name or folder, sorted: what a look for leftovers goes by.
    pub async fn collections(&self) -> Result<Vec<String>> {
        each!(self, engine => engine.collections().await)
    }

    /// Puts what was fed lately in order, if there is enough of it to be worth the time it takes.
    pub async fn tidy(&self, key: &Key) -> Result<()> {
        each!(self, engine => engine.tidy(key).await)
    }

    /// Whether there is nothing left to put in order.
    pub async fn is_tidy(&self, key: &Key) -> Result<bool> {
        each!(self, engine => engine.is_tidy(key).await)
    }

    /// Whether a collection takes so much more than its points need that it should be made anew.
    pub(crate) async fn is_worn(&self, key: &Key) -> Result<bool> {
        each!(self, engine => engine.is_worn(key).await)
    }

    /// Begins a new, empty generation of a collection; searches go on in the old one.
    pub(crate) async fn begin_next(&self, key: &Key, dimension: usize) -> Result<()> {
        each!(self, engine => engine.begin_next(key, dimension).await)
    }

    pub(crate) async fn fill_next(&self, key: &Key, points: Vec<Point>) -> Result<()> {
        each!(self, engine => engine.fill_next(key, points).await)
    }

    /// From here on searches go by the new generation; the old one is gone.
    pub(crate) async fn switch_to_next(&self, key: &Key) -> Result<()> {
        each!(self, engine => engine.switch_to_next(key).await)
    }

    pub async fn ping(&self, patience: Duration) -> Result<()> {
        match tokio::time::timeout(patience, async { each!(self, engine => engine.ping().await) }).await {
            Ok(answer) => answer,
            Err(_) => Err(IndexError::Away(format!("no answer within {patience:?}"))),
        }
    }

    /// Closes what is open.
    pub async fn close(&self) {
        match &self.0 {
            #[cfg(feature = "edge")]
            Engine::Edge(edge) => edge.close().await,
            Engine::Server(_) | Engine::Absent(_) => {}
        }
    }
}

/// The beam of a search in the graph. What a filter leaves of it has fewer edges, two filters still fewer: at 100,000
/// points and a beam of 256, one in fourteen of the ten nearest that pass two filters was not found.
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
