//! The user's side: `atelier connect` runs where the files are, and is the only program that
//! touches them.
//!
//! It follows the project's event stream, checks every call again, runs approved calls with the
//! executor, and sends their outcomes. A journal outside the folder makes sure that a call runs at
//! most once.
//!
//! `atelier chat` talks to agents from a terminal and shows the same approval cards.

mod api_client;
mod backoff;
mod banner;
mod calls;
mod cards;
mod chat;
mod connection;
mod credentials;
mod dispatched_call;
mod editor;
mod error;
mod interactive;
mod journal;
mod keyboard;
mod live_output;
mod local_workspace;
mod machine_api;
mod markdown;
mod previews;
mod project;
mod rules;
mod screen;
mod sse;
mod state;
mod token;

pub use api_client::ApiClient;
pub use atelier_executor::{Origin, detect_isolation, detect_layers, run_for_person};
pub use chat::{ChatOptions, chat};
pub use connection::{Options, connect};
pub use credentials::{Credentials, server_address, server_or_usual};
pub use error::{Error, Result};
pub use interactive::{InteractiveOptions, Start, interactive};
pub use keyboard::read_secret;
pub use local_workspace::LocalWorkspace;
pub use rules::ClientRules;
