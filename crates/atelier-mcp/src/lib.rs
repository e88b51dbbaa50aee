//! The tools of a workspace over the Model Context Protocol, on standard input and output and over
//! HTTP.
//!
//! The tools are defined in `atelier_core::tools`, and `atelier-executor` touches the files. This
//! crate has the protocol, the texts that MCP hosts get, and the transports. A [`ServedWorkspace`]
//! is the directory that is served, and [`WorkspaceServer`] answers the protocol for it. A
//! [`Mount`] speaks the same protocol for tools that another part of the program runs.
//! [`run_single_call`] runs one of the workspace's tools in a directory that exists only for the
//! call.

mod call_log;
mod extra;
mod handles;
pub mod hosts;
pub mod http;
mod jsonrpc;
mod list;
mod listing;
mod mount;
mod notify;
mod read;
mod replay;
mod reply;
mod resources;
mod search;
mod served;
mod server;
mod single_call;
pub mod stdio;
mod tools;
mod uri;
mod watch;
mod write;

pub use mount::{Call, Mount, MountInfo, Outcome, Progress, RunTool};
pub use served::{ServedWorkspace, Settings};
pub use server::WorkspaceServer;
pub use single_call::run_single_call;
