//! The models that agents use: OpenAI-compatible endpoints, Anthropic, and a demo model that needs
//! neither key nor network.

mod answer_builder;
mod anthropic;
mod config;
mod demo;
mod endpoint;
mod error;
mod keys;
mod model;
mod models;
mod openai;
mod request;

pub use anthropic::Anthropic;
pub use config::{
    ModelInfo, ModelsConfig, ProviderConfig, ProviderKind, Providers, known_providers,
};
pub use demo::{DEMO, Demo};
pub use error::{ModelError, TimeoutPhase};
pub use keys::TenantKeys;
pub use model::Model;
pub use models::Models;
pub use openai::OpenAi;
pub use request::{
    Answer, BYTES_PER_TOKEN, CallRequest, CallResult, Finish, JsonFormat, Message, Request,
    ToolSchema, Usage, tokens,
};
pub use secrecy::SecretString;
