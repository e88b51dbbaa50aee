//! The only code that touches a workspace directory or starts a process.
//!
//! Everything starts at [`Workspace`], an open directory handle. The API blocks: async callers use
//! `spawn_blocking`.

mod beneath;
mod cancel;
mod described;
mod door;
mod entries;
mod error;
mod glob;
mod grep;
mod ignored;
mod layer;
mod links;
mod process;
mod proxy;
mod read;
mod repositories;
mod search;
pub mod shown;
mod text;
mod tools;
mod tree;
mod walk;
mod workspace;
mod write;

pub use cancel::Cancel;
pub use described::Described;
pub use entries::Info;
pub use error::{Error, Result};
pub use glob::Glob;
pub use grep::{GrepSpec, Grepped, Line};
pub use ignored::{IGNORE_FILE, IgnoreRules};
pub use layer::{AgingLayer, LayerOptions, Layers, detect_layers};
pub use process::{
    Access, CommandSpec, Ending, GitIdentity, Outcome, Runner, RunnerOptions, Toolchains,
    detect_isolation, run_for_person,
};
pub use read::{Content, OpenFile, Part, checksum};
pub use search::{Entry, Found, Listed, Listing};
pub use text::TextContent;
pub use tools::{Approval, Function, Functions, Origin, Preview, ReadyCall, Tools};
pub use tree::{Leaf, Stamp};
pub use walk::{Hit, Kind};
pub use workspace::{Options, Workspace};
pub use write::{Edit, Expect, MissingParents, Written};
