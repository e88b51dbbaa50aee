//! Configuration of memory.

use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// What computes vectors: `builtin`, `openai` or `local`.
    pub embedder: EmbedderSettings,
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
            embedder: EmbedderSettings::Builtin {},
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

/// Which embedder turns texts into vectors.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "kind")]
pub enum EmbedderSettings {
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

fn openai() -> String {
    "https://api.openai.com/v1".into()
}

fn model() -> String {
    "text-embedding-3-small".into()
}

fn dimension() -> usize {
    1536
}
