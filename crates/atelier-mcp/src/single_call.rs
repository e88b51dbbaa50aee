//! Runs one call in a directory that is opened as a workspace only for this call.

use std::path::Path;

use atelier_executor::Cancel;
use rmcp::model::JsonObject;

use crate::mount::Outcome;
use crate::reply::reason;
use crate::served::{ServedWorkspace, Settings};
use crate::tools;

/// Runs one of the workspace's tools in the directory.
pub fn run_single_call(
    directory: &Path,
    settings: Settings,
    tool: &str,
    arguments: JsonObject,
    cancel: &Cancel,
) -> Outcome {
    let served = match ServedWorkspace::open(directory, settings) {
        Ok(served) => served,
        Err(error) => {
            return Outcome::error(&format!("The workspace cannot be used - {}", reason(&error)));
        }
    };
    Outcome::of(tools::run(&served, tool, arguments, cancel))
}
