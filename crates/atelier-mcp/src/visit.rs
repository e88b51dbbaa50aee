//! One call in a directory that is a workspace for this call only.

use std::path::Path;

use atelier_executor::Cancel;
use rmcp::model::JsonObject;

use crate::args::Args;
use crate::mount::Outcome;
use crate::reply::reason;
use crate::space::{Settings, Space};
use crate::tools;

/// Runs one workspace tool in the directory.
pub fn call_in(
    directory: &Path,
    settings: Settings,
    tool: &str,
    arguments: JsonObject,
    cancel: &Cancel,
) -> Outcome {
    let space = match Space::open(directory, settings) {
        Ok(space) => space,
        Err(error) => {
            return Outcome::error(&format!("The workspace cannot be used - {}", reason(&error)));
        }
    };
    match tools::run(&space, tool, Args::new(Some(arguments)), cancel) {
        Some(answer) => Outcome::of(answer),
        None => Outcome::error(&format!("Unknown tool: {tool}")),
    }
}
