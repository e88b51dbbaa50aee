//! The workspace tool over the Model Context Protocol: on standard input and output, and over HTTP.
//!
//! What touches files is in `atelier-executor`; here are the protocol, the tools' texts and the transports.
//! A [`Space`] is the directory that is served; [`WorkspaceServer`] answers the protocol for it. A [`Mount`] speaks
//! the same protocol for tools that somebody else runs; [`visit`] runs the workspace's own in a directory that is only
//! there for the call.

mod args;
mod catalogue;
mod extra;
mod follow;
pub mod http;
mod jsonrpc;
mod kept;
mod list;
mod mount;
mod read;
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
pub use visit::visit;
