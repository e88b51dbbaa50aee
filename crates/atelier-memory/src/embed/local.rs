//! A model on this machine: a directory with `tokenizer.json` and `model.safetensors`.
//!
//! A directory that also has a `config.json` holds a BERT encoder. A single table of weights is a
//! static model, which averages one vector per token.

use super::{
    EmbedError,
    bert::{Bert, Config, Matrix},
    normalized,
};
use safetensors::SafeTensors;
use std::path::Path;
use tokenizers::Tokenizer;

/// MiniLM was trained on texts of up to 256 tokens; later tokens change little.
const LONGEST: usize = 256;

pub(crate) struct Local {
    name: String,
    tokenizer: Tokenizer,
    model: Model,
}

enum Model {
    Bert(Box<Bert>),
    Table(Matrix),
}

impl Local {
    pub(crate) fn open(directory: &Path) -> Result<Self, EmbedError> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path)
                .map_err(|error| EmbedError::Model(format!("{}: {error}", path.display())))
        };
        let mut tokenizer = Tokenizer::from_bytes(read("tokenizer.json")?)
            .map_err(|error| EmbedError::Model(error.to_string()))?;
        // Models come with padding to a fixed length, which one text at a time does not need.
        tokenizer.with_padding(None);
        let weights = read("model.safetensors")?;
        let tensors = SafeTensors::deserialize(&weights)
            .map_err(|error| EmbedError::Model(error.to_string()))?;
        let model = match tensors.names().as_slice() {
            [only] => Model::Table(Matrix::read(&tensors, only)?),
            _ => {
                let config: Config = serde_json::from_slice(&read("config.json")?)
                    .map_err(|error| EmbedError::Model(format!("config.json: {error}")))?;
                Model::Bert(Box::new(Bert::read(&tensors, &config)?))
            }
        };
        let longest = match &model {
            Model::Bert(bert) => bert.longest().min(LONGEST),
            Model::Table(_) => 4096,
        };
        let cut = tokenizers::TruncationParams { max_length: longest, ..Default::default() };
        tokenizer
            .with_truncation(Some(cut))
            .map_err(|error| EmbedError::Model(error.to_string()))?;
        let folder = directory
            .file_name()
            .map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        // The name contains a hash of the weights, because the same folder may hold another model
        // later.
        let name = format!("local-{folder}-{:016x}", crate::lexical::hash(&weights, 0));
        Ok(Self { name, tokenizer, model })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn dimension(&self) -> usize {
        match &self.model {
            Model::Bert(bert) => bert.dimension(),
            Model::Table(table) => table.columns,
        }
    }

    /// Computes for some milliseconds, so it must not run on an async thread.
    pub(crate) fn embed(&self, text: &str) -> Result<Vec<f32>, EmbedError> {
        let special = matches!(self.model, Model::Bert(_));
        let encoding = self
            .tokenizer
            .encode_fast(text, special)
            .map_err(|error| EmbedError::Model(error.to_string()))?;
        let tokens = encoding.get_ids();
        Ok(match &self.model {
            Model::Bert(bert) => bert.embed(tokens),
            Model::Table(table) => {
                let mut sum = vec![0.0; table.columns];
                for token in tokens {
                    for (sum, value) in sum.iter_mut().zip(table.row(*token as usize)) {
                        *sum += value;
                    }
                }
                normalized(sum)
            }
        })
    }
}
