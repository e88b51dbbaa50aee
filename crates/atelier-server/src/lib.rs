//! The HTTP server of Atelier: authentication, access checks, routes, event streams, the console.
//!
//! Handlers extract, call and reply. The runtime and the store decide what happens.

mod access;
mod app;
mod auth;
mod body;
mod console;
mod docs;
mod error;
mod first_bytes;
mod idempotency;
mod listen;
mod load;
mod middleware;
mod openapi;
mod path;
mod program_view;
mod query;
mod routes;
mod settings;
mod stream;

pub use app::{App, OWNER, Services};
pub use auth::{
    Auth, AuthError, AuthSettings, LocalKey, NewToken, ProviderSignIn, check_keys, user_id,
};
pub use listen::{Listening, serve};
pub use load::Loads;
pub use openapi::document as openapi;
pub use routes::mcp::{ConversationHost, McpHandler, ProjectHost};
pub use settings::Settings;
