//! The models that agents use: OpenAI-compatible endpoints, Anthropic, and a demo model that needs
//! neither key nor network.

mod access;
mod answer_builder;
mod anthropic;
mod config;
mod demo;
mod endpoint;
mod error;
mod listing;
mod model;
mod models;
mod openai;
mod request;
mod trial;

pub use access::{KeyOwner, ModelAccess, StoredKey, StoredProvider};
pub use anthropic::Anthropic;
pub use config::{
    ModelInfo, ModelsConfig, ProviderConfig, ProviderKind, Providers, is_address, is_provider_name,
    known_providers,
};
pub use demo::{DEMO, Demo};
pub use error::{ModelError, TimeoutPhase};
pub use listing::{ListedModel, ModelList};
pub use model::Model;
pub use models::{DEFAULT_ALIASES, KeySource, Models};
pub use openai::OpenAi;
pub use request::{
    Answer, BYTES_PER_TOKEN, CallRequest, CallResult, Finish, JsonFormat, Message, Request,
    ToolSchema, Usage, tokens,
};
pub use secrecy::SecretString;
pub use trial::{Tested, UnknownModel};
