//! Chooses the embedder that the server uses, knows the others, and embeds queries.

use super::{EmbedError, Embedder};
use crate::{
    frequencies::Frequencies,
    settings::{EmbedderSettings, OpenAiAccess, Settings},
};
use atelier_core::mask::masked;
use metrics::{counter, histogram};
use moka::future::Cache;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a query waits for an embedder that has failed: it may just have recovered.
const PATIENCE_WITH_PROBLEM: Duration = Duration::from_secs(1);
/// How long a failure counts. Without further queries, nobody knows whether it is over.
const PROBLEM_TIME: Duration = Duration::from_secs(60);
/// How many vectors of queries are kept, and for how long. Agents repeat their queries.
const CACHED_QUERIES: u64 = 2000;
const CACHE_TIME: Duration = Duration::from_secs(3600);

/// The embedder of this server, and others that may have made the vectors of older collections.
/// Cloning it is cheap.
#[derive(Clone)]
pub struct Embedders(Arc<Inner>);

struct Inner {
    current: Embedder,
    others: Vec<Embedder>,
    /// The reason why the built-in embedder is used although nobody asked for it.
    fallback: Option<String>,
    patience: Duration,
    /// Vectors of queries, by embedder and text.
    queries: Cache<(String, String), Option<Vec<f32>>>,
    /// The reason why the last query could not be embedded, and the time.
    problem: Mutex<Option<(String, Instant)>>,
}

impl Embedders {
    /// Chooses the embedder by the settings. With `auto`, missing weights of MiniLM are no error:
    /// the built-in embedder stands in, and [`Embedders::fallback`] says why.
    pub fn open(
        settings: &Settings,
        data: &Path,
        openai: Option<&OpenAiAccess>,
    ) -> Result<Self, EmbedError> {
        let places = minilm_places(settings, data);
        let minilm = places.iter().find_map(|place| Embedder::minilm(place));
        let missing = || {
            let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
            format!(
                "the weights of MiniLM are in none of these folders: {}. Run `scripts/minilm --into \
                 FOLDER`, or set memory.minilm",
                places.join(", ")
            )
        };
        let (current, fallback) = match (&settings.embedder, openai, &minilm) {
            (EmbedderSettings::Auto {}, Some(openai), _) => {
                (Embedder::open(&openai.embedder())?, None)
            }
            (EmbedderSettings::Auto {} | EmbedderSettings::Minilm {}, _, Some(minilm)) => {
                (minilm.clone(), None)
            }
            (EmbedderSettings::Auto {}, None, None) => {
                (Embedder::Builtin, Some(format!("memory finds words, not meaning: {}", missing())))
            }
            (EmbedderSettings::Minilm {}, _, None) => return Err(EmbedError::Model(missing())),
            (explicit, ..) => (Embedder::open(explicit)?, None),
        };
        let openai = openai.and_then(|openai| Embedder::open(&openai.embedder()).ok());
        let others = [Some(Embedder::Builtin), minilm, openai].into_iter().flatten();
        Ok(Self(Arc::new(Inner {
            others: others.filter(|other| other.name() != current.name()).collect(),
            current,
            fallback,
            patience: settings.embedder_patience,
            queries: Cache::builder().max_capacity(CACHED_QUERIES).time_to_idle(CACHE_TIME).build(),
            problem: Mutex::default(),
        })))
    }

    /// The embedder of all new vectors.
    pub fn current(&self) -> &Embedder {
        &self.0.current
    }

    /// The embedder that made the vectors of a collection, if this server can use it.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Embedder> {
        let Inner { current, others, .. } = &*self.0;
        std::iter::once(current).chain(others).find(|embedder| embedder.name() == name)
    }

    /// The reason why the built-in embedder stands in for the default one; `None` if it does not.
    pub fn fallback(&self) -> Option<&str> {
        self.0.fallback.as_deref()
    }

    /// The reason why queries cannot be embedded at the moment.
    pub(crate) fn problem(&self) -> Option<String> {
        let problem = self.lock_problem().clone();
        problem.filter(|(_, since)| since.elapsed() < PROBLEM_TIME).map(|(why, _)| why)
    }

    /// One line about the choice, for people.
    pub fn describe(&self) -> String {
        match self.current() {
            Embedder::Local(model) => {
                format!("{} in {}", model.name(), model.directory().display())
            }
            embedder => embedder.name().to_owned(),
        }
    }

    /// The vector for a query; `None` if the text has no direction to search in. A vector that took
    /// work is kept for the next query with the same text. An answer that comes too late for this
    /// query is kept, too.
    pub(crate) async fn embed_query(
        &self,
        embedder: &Embedder,
        text: &str,
        frequencies: &Frequencies,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        if !embedder.is_expensive() {
            return embedder.embed_query(text, frequencies).await;
        }
        let key = (embedder.name().to_owned(), masked(text).into_owned());
        if let Some(known) = self.0.queries.get(&key).await {
            counter!("atelier_memory_cached_queries_total").increment(1);
            return Ok(known);
        }
        let patience = match self.problem() {
            Some(_) => self.0.patience.min(PATIENCE_WITH_PROBLEM),
            None => self.0.patience,
        };
        let (embedder, queries) = (embedder.clone(), self.0.queries.clone());
        let name = embedder.name().to_owned();
        let began = Instant::now();
        // A task of its own, so that a late answer still reaches the cache.
        let embedding = tokio::spawn(async move {
            let text = key.1.clone();
            let vector = async { embedder.embed_query(&text, &Frequencies::default()).await };
            queries.try_get_with(key, vector).await
        });
        let answer = match tokio::time::timeout(patience, embedding).await {
            Ok(Ok(answer)) => answer.map_err(EmbedError::Shared),
            Ok(Err(_)) => Err(EmbedError::Model("it failed unexpectedly".into())),
            Err(_) => Err(EmbedError::Slow { embedder: name, patience }),
        };
        histogram!("atelier_memory_embed_seconds").record(began.elapsed().as_secs_f64());
        *self.lock_problem() = answer.as_ref().err().map(|why| (why.to_string(), Instant::now()));
        answer
    }

    fn lock_problem(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.0.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The folders in which the weights of MiniLM may be: the configured one, or else beside the
/// program, where packages put them, and in the data folder.
fn minilm_places(settings: &Settings, data: &Path) -> Vec<PathBuf> {
    if let Some(folder) = &settings.minilm {
        return vec![folder.clone()];
    }
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(|folder| {
        let shared = folder.parent().map(|prefix| prefix.join("lib/atelier/minilm"));
        std::iter::once(folder.join("minilm")).chain(shared)
    });
    beside.into_iter().flatten().chain([data.join("minilm")]).collect()
}
