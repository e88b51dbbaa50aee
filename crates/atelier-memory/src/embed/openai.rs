//! Embeddings over HTTP, as OpenAI, Ollama, TEI, vLLM and others serve them.

use super::EmbedError;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How many texts one request carries.
const BATCH: usize = 64;
/// The model takes 8191 tokens. A token is three characters or more in most languages, and one
/// character in the worst case.
const LONGEST: usize = 8000;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct OpenAi {
    client: reqwest::Client,
    url: String,
    key: Option<String>,
    model: String,
    dimension: usize,
    name: String,
}

#[derive(Serialize)]
struct EmbeddingRequest<'t> {
    model: &'t str,
    input: &'t [String],
    encoding_format: &'static str,
}

#[derive(Deserialize)]
struct EmbeddingResponse {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: Vec<f32>,
}

impl OpenAi {
    pub(crate) fn new(
        base_url: &str,
        key: Option<String>,
        model: &str,
        dimension: usize,
    ) -> Result<Self, EmbedError> {
        let client =
            reqwest::Client::builder().timeout(PATIENCE).build().map_err(EmbedError::Http)?;
        Ok(Self {
            client,
            url: format!("{}/embeddings", base_url.trim_end_matches('/')),
            key: key.filter(|key| !key.is_empty()),
            model: model.to_owned(),
            dimension,
            name: format!("openai-{model}-{dimension}"),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }

    /// A vector for each text; `None` for one that the model refuses.
    pub(crate) async fn embed(
        &self,
        texts: &[String],
    ) -> Result<Vec<Option<Vec<f32>>>, EmbedError> {
        let short: Vec<String> =
            texts.iter().map(|text| text.chars().take(LONGEST).collect()).collect();
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in short.chunks(BATCH) {
            match self.ask(batch).await {
                Ok(found) => vectors.extend(found.into_iter().map(Some)),
                // One refused text makes the whole batch fail, so each text is tried alone.
                Err(EmbedError::Refused(_)) if batch.len() > 1 => {
                    for text in batch {
                        vectors.push(self.alone(text).await?);
                    }
                }
                Err(EmbedError::Refused(reason)) => {
                    tracing::warn!(
                        reason,
                        "a text cannot be embedded; it is found by its words only"
                    );
                    vectors.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(vectors)
    }

    async fn alone(&self, text: &str) -> Result<Option<Vec<f32>>, EmbedError> {
        match self.ask(&[text.to_owned()]).await {
            Ok(mut found) => Ok(found.pop()),
            Err(EmbedError::Refused(reason)) => {
                tracing::warn!(reason, "a text cannot be embedded; it is found by its words only");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn ask(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let ask = EmbeddingRequest { model: &self.model, input: texts, encoding_format: "float" };
        let mut request = self.client.post(&self.url).json(&ask);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.map_err(EmbedError::Http)?;
        let status = response.status();
        if status == reqwest::StatusCode::BAD_REQUEST
            || status == reqwest::StatusCode::PAYLOAD_TOO_LARGE
        {
            return Err(EmbedError::Refused(status.to_string()));
        }
        let mut answer: EmbeddingResponse = response
            .error_for_status()
            .map_err(EmbedError::Http)?
            .json()
            .await
            .map_err(EmbedError::Http)?;
        answer.data.sort_by_key(|entry| entry.index);
        let vectors: Vec<Vec<f32>> = answer.data.into_iter().map(|entry| entry.embedding).collect();
        let odd = vectors.iter().find(|vector| vector.len() != self.dimension);
        match odd {
            Some(vector) => {
                Err(EmbedError::Dimension { expected: self.dimension, found: vector.len() })
            }
            None if vectors.len() != texts.len() => {
                Err(EmbedError::Model("it returned another number of vectors than of texts".into()))
            }
            None => Ok(vectors),
        }
    }
}
