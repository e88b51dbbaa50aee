//! The HTTP side of Atelier: who is asking, what they may, and how it is said.
//!
//! Handlers extract, call and reply; what happens is decided in the runtime and the store.

mod app;
mod auth;
mod body;
mod console;
mod docs;
mod error;
mod guard;
mod listen;
mod openapi;
mod opening;
mod routes;
mod settings;
mod stream;

pub use app::{App, OWNER, Parts};
pub use auth::{Auth, AuthError, AuthSettings, Grant, LocalKey, ProviderSignIn, check_keys, user_id};
pub use listen::{Listening, serve};
pub use openapi::document as openapi;
pub use routes::mcp::{McpDoor, OwnedConversation};
pub use settings::Settings;
