//! Configuration of memory.

use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub embedder: EmbedderSettings,
    /// How many collections of the embedded index are open at a time.
    pub open_collections: usize,
    /// How often the sizes of all collections are looked at.
    #[serde(with = "humantime_serde")]
    pub sweep: Duration,
    /// How long a search may take before the answer comes from the store's own.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// For a Qdrant server that asks for one.
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
    /// For whoever shows the configuration.
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

/// What makes vectors of texts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase", tag = "kind")]
pub enum EmbedderSettings {
    /// Needs nothing. Lexical: knows words and their parts, no meaning.
    Builtin {},
    /// A directory with `tokenizer.json` and `model.safetensors`.
    Local { path: PathBuf },
    /// OpenAI, or whatever answers like it at another address.
    Openai {
        #[serde(default = "openai")]
        base_url: String,
        #[serde(default = "model")]
        model: String,
        #[serde(default = "dimension")]
        dimension: usize,
        /// `OPENAI_API_KEY`, unless given here.
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
