//! The models agents ask: OpenAI-compatible endpoints, Anthropic, and a demo that needs neither key nor network.

mod anthropic;
mod config;
mod demo;
mod draft;
mod endpoint;
mod error;
mod exchange;
mod keys;
mod model;
mod models;
mod openai;

pub use anthropic::Anthropic;
pub use config::{ModelInfo, ModelsConfig, ProviderConfig, ProviderKind, Providers, known_providers};
pub use demo::{DEMO, Demo};
pub use error::{ModelError, Wait};
pub use exchange::{
    Answer, BYTES_PER_TOKEN, CallRequest, CallResult, Finish, JsonFormat, Message, Request, ToolSchema,
    Usage, tokens,
};
pub use keys::TenantKeys;
pub use model::Model;
pub use models::Models;
pub use openai::OpenAi;
pub use secrecy::SecretString;
