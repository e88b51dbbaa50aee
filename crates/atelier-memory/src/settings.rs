//! Configuration of memory.

use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How vectors are computed: `auto`, `minilm`, `openai`, `local` or `builtin`.
    pub embedder: EmbedderSettings,
    /// The folder with the weights of MiniLM. Without it, they are looked for beside the program
    /// and in the data folder.
    pub minilm: Option<PathBuf>,
    /// How long the embedder may take for a query before the search goes by words only.
    #[serde(with = "humantime_serde")]
    pub embedder_patience: Duration,
    /// How many collections of the embedded index are open at a time.
    pub open_collections: usize,
    /// How often the sizes of all collections are checked.
    #[serde(with = "humantime_serde")]
    pub sweep: Duration,
    /// How long the index may take to answer before the store's word search is used.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// The API key of the Qdrant server, if it requires one.
    pub qdrant_api_key: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            embedder: EmbedderSettings::Auto {},
            minilm: None,
            embedder_patience: Duration::from_secs(5),
            open_collections: 200,
            sweep: Duration::from_secs(24 * 3600),
            patience: Duration::from_millis(250),
            qdrant_api_key: None,
        }
    }
}

impl Settings {
    /// Replaces the keys, so that the configuration can be shown.
    pub fn hide_keys(&mut self) {
        let mut keys = vec![&mut self.qdrant_api_key];
        if let EmbedderSettings::Openai { api_key, .. } = &mut self.embedder {
            keys.push(api_key);
        }
        for key in keys {
            *key = key.take().map(|_| "…".into());
        }
    }
}

/// The embedder that turns texts into vectors.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "kind")]
pub enum EmbedderSettings {
    /// OpenAI's embeddings if the provider `openai` has a key, otherwise MiniLM.
    Auto {},
    /// MiniLM on this machine, which knows the meaning of English texts. It comes with the program.
    Minilm {},
    /// Needs no model. It compares words and their parts, not their meaning.
    Builtin {},
    /// A model in a directory with `tokenizer.json` and `model.safetensors`.
    Local {
        /// The directory with the model's files.
        path: PathBuf,
    },
    /// OpenAI, or a compatible service at another address.
    Openai {
        /// The address of the API.
        #[serde(default = "openai")]
        base_url: String,
        /// The name of the embedding model.
        #[serde(default = "model")]
        model: String,
        /// How many numbers a vector has.
        #[serde(default = "dimension")]
        dimension: usize,
        /// The API key. `OPENAI_API_KEY` is used if it is not set.
        #[serde(default)]
        api_key: Option<String>,
    },
}

/// How to reach OpenAI's models, if the server has a key for them.
#[derive(Clone)]
pub struct OpenAiAccess {
    pub base_url: String,
    pub key: String,
}

impl OpenAiAccess {
    pub(crate) fn embedder(&self) -> EmbedderSettings {
        EmbedderSettings::Openai {
            base_url: self.base_url.clone(),
            model: model(),
            dimension: dimension(),
            api_key: Some(self.key.clone()),
        }
    }
}

fn openai() -> String {
    "https://api.openai.com/v1".into()
}

fn model() -> String {
    "text-embedding-3-small".into()
}

fn dimension() -> usize {
    1536
}
