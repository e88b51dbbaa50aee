//! The workspace tools over the Model Context Protocol: on standard input and output, and over
//! HTTP.
//!
//! The code that touches files is in `atelier-executor`. This crate has the protocol, the texts of
//! the tools and the transports. A [`Space`] is the directory that is served, and
//! [`WorkspaceServer`] answers the protocol for it. A [`Mount`] speaks the same protocol for tools
//! that other code runs. [`call_in`] runs one workspace tool in a directory that is a workspace for
//! this call only.

mod args;
mod catalogue;
mod extra;
mod follow;
pub mod http;
mod jsonrpc;
mod list;
mod mount;
mod read;
mod replay;
mod reply;
mod resources;
mod search;
mod server;
mod space;
pub mod stdio;
mod tools;
mod uri;
mod visit;
mod watch;
mod write;

pub use mount::{Call, Mount, Offer, Outcome, Progress, Run};
pub use server::WorkspaceServer;
pub use space::{Settings, Space};
pub use visit::call_in;
