//! The user's side: `atelier connect` runs beside the files, and is the only thing that touches them.
//!
//! It follows the project's event stream, checks every call again, runs what was approved through the
//! executor, and posts what came of it. A journal outside the folder makes sure that a call runs at most once.
//!
//! `atelier chat` speaks with agents from the same terminal, and asks with the same cards.

mod api;
mod backoff;
mod calls;
mod cards;
mod chat;
mod connection;
mod credentials;
mod desk;
mod diff;
mod error;
mod greeting;
mod journal;
mod keyboard;
mod local;
mod previews;
mod project;
mod rules;
mod screen;
mod signal;
mod sse;
mod state;
mod token;

pub use chat::{ChatOptions, chat};
pub use connection::{Options, connect};
pub use credentials::{Credentials, server_address};
pub use error::{Error, Result};
pub use local::Local;
pub use rules::ClientRules;
pub use screen::visible;
