//! Embedders turn texts into vectors.

mod bert;
pub(crate) mod builtin;
mod choice;
mod local;
mod openai;

pub use choice::Embedders;
pub(crate) use local::LocalModel;

use crate::{frequencies::Frequencies, settings::EmbedderSettings};
use atelier_core::mask::masked;
use openai::OpenAi;
use std::{path::Path, sync::Arc, time::Duration};

/// Turns texts into vectors. Vectors of different embedders do not compare, so a collection records
/// which embedder made its vectors.
#[derive(Clone)]
pub enum Embedder {
    Builtin,
    Local(Arc<local::LocalModel>),
    OpenAi(Arc<OpenAiModel>),
}

/// A model behind HTTP.
pub struct OpenAiModel(OpenAi);

#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("the model cannot be used: {0}")]
    Model(String),
    #[error("the embedding service does not answer: {0}")]
    Http(#[source] reqwest::Error),
    #[error("the embedding service refused the text: {0}")]
    Refused(String),
    #[error(
        "vectors of {expected} numbers were expected, these have {found}: set \
         memory.embedder.dimension"
    )]
    Dimension { expected: usize, found: usize },
    #[error("the embedder {embedder} did not answer within {patience:?}")]
    Slow { embedder: String, patience: Duration },
    /// Several queries waited for the same answer.
    #[error(transparent)]
    Shared(#[from] Arc<EmbedError>),
}

impl Embedder {
    /// Opens an embedder that is configured explicitly. [`Embedders`] makes the choice for `auto`.
    pub fn open(settings: &EmbedderSettings) -> Result<Self, EmbedError> {
        Ok(match settings {
            EmbedderSettings::Builtin {} => Embedder::Builtin,
            EmbedderSettings::Local { path } => Embedder::Local(Arc::new(LocalModel::open(path)?)),
            EmbedderSettings::Openai { base_url, model, dimension, api_key } => {
                let key = api_key.clone().or_else(|| std::env::var("OPENAI_API_KEY").ok());
                Embedder::OpenAi(Arc::new(OpenAiModel(OpenAi::new(
                    base_url, key, model, *dimension,
                )?)))
            }
            EmbedderSettings::Auto {} | EmbedderSettings::Minilm {} => {
                return Err(EmbedError::Model("its folder is not known here".into()));
            }
        })
    }

    /// MiniLM, if its files are in the directory.
    pub fn minilm(directory: &Path) -> Option<Self> {
        LocalModel::minilm(directory).map(|model| Embedder::Local(Arc::new(model)))
    }

    pub fn name(&self) -> &str {
        match self {
            Embedder::Builtin => builtin::NAME,
            Embedder::Local(model) => model.name(),
            Embedder::OpenAi(model) => model.0.name(),
        }
    }

    pub fn dimension(&self) -> usize {
        match self {
            Embedder::Builtin => builtin::DIMENSION,
            Embedder::Local(model) => model.dimension(),
            Embedder::OpenAi(model) => model.0.dimension(),
        }
    }

    /// The weight of a dense score beside a lexical one in a hybrid search. The built-in embedder
    /// compares the same words as the lexical search, so its score weighs little.
    pub(crate) fn dense_weight(&self) -> f32 {
        match self {
            Embedder::Builtin => 0.15,
            Embedder::Local(_) | Embedder::OpenAi(_) => 0.3,
        }
    }

    /// The similarity below which a memory counts as unrelated to a text. The built-in embedder's
    /// hashes collide by chance; its value was chosen on one half of LoCoMo, where it loses no
    /// answer among the first twelve. Models find all texts a little alike; their value is below
    /// what they give to texts on the same subject.
    pub(crate) fn min_similarity(&self) -> f32 {
        match self {
            Embedder::Builtin => 0.15,
            Embedder::Local(_) | Embedder::OpenAi(_) => 0.25,
        }
    }

    /// Whether this embedder weighs a query by how frequent its pieces are in the collection.
    pub(crate) fn uses_frequencies(&self) -> bool {
        matches!(self, Embedder::Builtin)
    }

    /// Whether a vector is worth storing. The built-in embedder computes a vector faster than six
    /// kilobytes are read.
    pub(crate) fn is_expensive(&self) -> bool {
        !matches!(self, Embedder::Builtin)
    }

    /// Vectors for texts that are stored; `None` for a text that the model refuses.
    pub async fn embed_texts(
        &self,
        texts: Vec<String>,
    ) -> Result<Vec<Option<Vec<f32>>>, EmbedError> {
        match self {
            Embedder::Builtin => {
                let work = move || texts.iter().map(|text| Some(builtin::document(text))).collect();
                Ok(blocking(work).await)
            }
            Embedder::Local(model) => {
                let model = model.clone();
                // The semaphore is never closed.
                let _turn = model.storing.acquire().await.ok();
                let work = model.clone();
                let vectors = blocking(move || work.embed(&texts)).await?;
                Ok(vectors.into_iter().map(Some).collect())
            }
            Embedder::OpenAi(model) => model.0.embed(&texts).await,
        }
    }

    /// The vector for a query; `None` if the text has no direction to search in. Keys in the query
    /// are masked, as they are in stored texts, because the embedder may be a service.
    pub async fn embed_query(
        &self,
        text: &str,
        frequencies: &Frequencies,
    ) -> Result<Option<Vec<f32>>, EmbedError> {
        let text = &*masked(text);
        match self {
            // A text of signs and stop words only becomes a vector of zeroes, which is equally near
            // to every other vector.
            Embedder::Builtin => {
                let vector = builtin::query(text, frequencies);
                Ok(Some(vector).filter(|vector| vector.iter().any(|value| *value != 0.0)))
            }
            Embedder::Local(model) => {
                let (model, text) = (model.clone(), text.to_owned());
                Ok(blocking(move || model.embed(&[text])).await?.pop())
            }
            Embedder::OpenAi(model) => Ok(model.0.embed(&[text.to_owned()]).await?.pop().flatten()),
        }
    }
}

/// Runs work off the threads that answer requests, and passes a panic on to the caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and this task ends with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Scales a vector to length one. A vector of zeroes stays as it is.
pub(crate) fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
    vector
}
