//! Texts into vectors.

mod bert;
pub(crate) mod builtin;
mod local;
mod openai;

use crate::{frequencies::Frequencies, settings::EmbedderSettings};
use local::Local;
use openai::OpenAi;
use std::sync::Arc;

/// How texts become vectors. Vectors of different embedders do not compare, so a collection remembers its own.
#[derive(Clone)]
pub enum Embedder {
    Builtin,
    Local(Arc<LocalModel>),
    OpenAi(Arc<OpenAiModel>),
}

/// A model in a directory.
pub struct LocalModel(Local);
/// A model behind HTTP.
pub struct OpenAiModel(OpenAi);

#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("the model cannot be used: {0}")]
    Model(String),
    #[error("the embedding service does not answer: {0}")]
    Http(#[source] reqwest::Error),
    #[error("the embedding service refused: {0}")]
    Refused(String),
    #[error("vectors of {expected} numbers were expected, these have {found}: set memory.embedder.dimension")]
    Dimension { expected: usize, found: usize },
}

impl Embedder {
    pub fn open(settings: &EmbedderSettings) -> Result<Self, EmbedError> {
        Ok(match settings {
            EmbedderSettings::Builtin {} => Embedder::Builtin,
            EmbedderSettings::Local { path } => Embedder::Local(Arc::new(LocalModel(Local::open(path)?))),
            EmbedderSettings::Openai { base_url, model, dimension, api_key } => {
                let key = api_key.clone().or_else(|| std::env::var("OPENAI_API_KEY").ok());
                Embedder::OpenAi(Arc::new(OpenAiModel(OpenAi::new(base_url, key, model, *dimension)?)))
            }
        })
    }

    pub fn name(&self) -> &str {
        match self {
            Embedder::Builtin => builtin::NAME,
            Embedder::Local(model) => model.0.name(),
            Embedder::OpenAi(model) => model.0.name(),
        }
    }

    pub fn dimension(&self) -> usize {
        match self {
            Embedder::Builtin => builtin::DIMENSION,
            Embedder::Local(model) => model.0.dimension(),
            Embedder::OpenAi(model) => model.0.dimension(),
        }
    }

    /// How near what bears on a text is to it, at least: less is chance. For the built-in embedder, whose hashes meet by
    /// accident, as found on one half of LoCoMo, where it costs no answer among the first twelve; for models, which find
    /// all language a little alike, below what they give to texts on one subject.
    pub(crate) fn floor(&self) -> f32 {
        match self {
            Embedder::Builtin => 0.15,
            Embedder::Local(_) | Embedder::OpenAi(_) => 0.25,
        }
    }

    /// Whether queries are weighed by how frequent pieces of text are.
    pub(crate) fn counts(&self) -> bool {
        matches!(self, Embedder::Builtin)
    }

    /// Whether a vector is worth keeping. The built-in embedder makes it again sooner than six kilobytes are read.
    pub(crate) fn is_costly(&self) -> bool {
        !matches!(self, Embedder::Builtin)
    }

    /// Texts as they are stored: a vector each, or `None` for one that the model refuses.
    pub async fn stored(&self, texts: Vec<String>) -> Result<Vec<Option<Vec<f32>>>, EmbedError> {
        match self {
            Embedder::Builtin => {
                let work = move || texts.iter().map(|text| Some(builtin::stored(text))).collect();
                Ok(blocking(work).await)
            }
            Embedder::Local(model) => {
                let model = model.clone();
                blocking(move || texts.iter().map(|text| model.0.embed(text).map(Some)).collect()).await
            }
            Embedder::OpenAi(model) => model.0.embed(&texts).await,
        }
    }

    /// A text as it is asked for; `None` if nothing is near it.
    pub async fn asked(&self, text: &str, frequencies: &Frequencies) -> Result<Option<Vec<f32>>, EmbedError> {
        match self {
            // Signs and stop words only: a vector of zeroes is as near to everything as to anything.
            Embedder::Builtin => {
                let vector = builtin::asked(text, frequencies);
                Ok(Some(vector).filter(|vector| vector.iter().any(|value| *value != 0.0)))
            }
            Embedder::Local(model) => {
                let (model, text) = (model.clone(), text.to_owned());
                blocking(move || model.0.embed(&text).map(Some)).await
            }
            Embedder::OpenAi(model) => Ok(model.0.embed(&[text.to_owned()]).await?.pop().flatten()),
        }
    }
}

/// Off the threads that answer requests. A panic goes on where the result is wanted.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going down, and whoever waits here with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Of length one, or all zeroes.
pub(crate) fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
    vector
}
