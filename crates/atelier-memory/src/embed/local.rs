//! A model on this machine: a directory with `tokenizer.json` and `model.safetensors`.
//!
//! A directory that also has a `config.json` holds a BERT encoder. A single table of weights is a
//! static model, which averages one vector per token.

use super::{
    EmbedError,
    bert::{Bert, Config, Weights},
    normalized,
};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};
use tokenizers::Tokenizer;

/// MiniLM was trained on texts of up to 256 tokens; later tokens change little.
const LONGEST: usize = 256;
/// How many texts are encoded together.
const BATCH: usize = 16;

/// The default model, which `scripts/minilm` quantises. Its name stands for exactly these weights.
pub(crate) const MINILM: &str = "minilm-l6-v2-int8";
const MINILM_DIMENSION: usize = 384;
const MINILM_SHA256: &str = "1a02e168500865b1f46ad496ced7caee6003beffe4aff56c7816888fedcad11f";
/// The files of the default model.
const MINILM_FILES: [&str; 3] = ["config.json", "model.safetensors", "tokenizer.json"];

/// A model in a directory.
pub struct LocalModel {
    name: String,
    dimension: usize,
    directory: PathBuf,
    /// Read when the model is first used: many servers never embed anything.
    model: OnceLock<Local>,
    /// One thread at a time embeds texts that are stored. Queries do not wait for it.
    pub(super) storing: tokio::sync::Semaphore,
}

impl LocalModel {
    /// Opens any model.
    pub(super) fn open(directory: &Path) -> Result<Self, EmbedError> {
        let (model, weights) = Local::open(directory)?;
        let folder = directory
            .file_name()
            .map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned());
        Ok(Self {
            // The name contains a hash of the weights, because the same folder may hold another
            // model later.
            name: format!("local-{folder}-{:016x}", crate::lexical::hash(&weights, 0)),
            dimension: model.dimension(),
            directory: directory.to_owned(),
            model: OnceLock::from(model),
            storing: tokio::sync::Semaphore::new(1),
        })
    }

    /// The default model, if its files are in the directory. They are read when they are needed.
    pub(super) fn minilm(directory: &Path) -> Option<Self> {
        MINILM_FILES.iter().all(|name| directory.join(name).is_file()).then(|| Self {
            name: MINILM.to_owned(),
            dimension: MINILM_DIMENSION,
            directory: directory.to_owned(),
            model: OnceLock::new(),
            storing: tokio::sync::Semaphore::new(1),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// A vector for each text. Computes for some milliseconds each, so it must not run on an async
    /// thread.
    pub(crate) fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let model = match self.model.get() {
            Some(model) => model,
            None => {
                let (model, weights) = Local::open(&self.directory)?;
                if hexadecimal(&Sha256::digest(&weights)) != MINILM_SHA256 {
                    return Err(EmbedError::Model(format!(
                        "{} is not the file that belongs to this version: replace it with the \
                         output of scripts/minilm --int8",
                        self.directory.join("model.safetensors").display()
                    )));
                }
                self.model.get_or_init(|| model)
            }
        };
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in texts.chunks(BATCH) {
            vectors.extend(model.embed(batch)?);
        }
        Ok(vectors)
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Local {
    tokenizer: Tokenizer,
    model: Model,
}

enum Model {
    Bert(Box<Bert>),
    Table(Weights),
}

impl Local {
    /// Reads a model, and returns the file of its weights too.
    fn open(directory: &Path) -> Result<(Self, Vec<u8>), EmbedError> {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path)
                .map_err(|error| EmbedError::Model(format!("{}: {error}", path.display())))
        };
        let mut tokenizer = Tokenizer::from_bytes(read("tokenizer.json")?)
            .map_err(|error| EmbedError::Model(error.to_string()))?;
        // Models come with padding to a fixed length, which this encoder does not need.
        tokenizer.with_padding(None);
        let weights = read("model.safetensors")?;
        let tensors = SafeTensors::deserialize(&weights)
            .map_err(|error| EmbedError::Model(error.to_string()))?;
        let matrices = tensors.names().into_iter().filter(|name| !name.ends_with(".scale"));
        let model = match matrices.collect::<Vec<_>>().as_slice() {
            [only] => Model::Table(Weights::read(&tensors, only)?),
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
        Ok((Self { tokenizer, model }, weights))
    }

    fn dimension(&self) -> usize {
        match &self.model {
            Model::Bert(bert) => bert.dimension(),
            Model::Table(table) => table.columns(),
        }
    }

    fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let special = matches!(self.model, Model::Bert(_));
        let encode = |text: &String| {
            self.tokenizer
                .encode_fast(text.as_str(), special)
                .map_err(|error| EmbedError::Model(error.to_string()))
        };
        let encodings: Vec<_> = texts.iter().map(encode).collect::<Result<_, _>>()?;
        let tokens: Vec<&[u32]> = encodings.iter().map(|encoding| encoding.get_ids()).collect();
        Ok(match &self.model {
            Model::Bert(bert) => bert.embed(&tokens),
            Model::Table(table) => {
                let mean = |tokens: &&[u32]| {
                    let mut sum = vec![0.0; table.columns()];
                    tokens.iter().for_each(|token| table.add_row(*token as usize, &mut sum));
                    normalized(sum)
                };
                tokens.iter().map(mean).collect()
            }
        })
    }
}
