//! One call in a directory that is a workspace for this call only.

use std::path::PathBuf;

use atelier_executor::Cancel;
use rmcp::model::JsonObject;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::mount::Outcome;
use crate::reply::reason;
use crate::space::{Settings, Space};
use crate::tools;

/// Runs one workspace tool in the directory. The tool has ended when this returns, even if the call
/// was cancelled, so the next user of the directory has it alone.
pub async fn visit(
    directory: PathBuf,
    settings: Settings,
    tool: String,
    arguments: JsonObject,
    given_up: &CancellationToken,
) -> Outcome {
    let cancel = match Cancel::new() {
        Ok(cancel) => cancel,
        Err(error) => return Outcome::error(&format!("Out of handles: {error}")),
    };
    let for_work = cancel.clone();
    let mut work = tokio::task::spawn_blocking(move || {
        let space = match Space::open(&directory, settings) {
            Ok(space) => space,
            Err(error) => {
                return Outcome::error(&format!(
                    "The workspace cannot be used - {}",
                    reason(&error)
                ));
            }
        };
        match tools::run(&space, &tool, Args::new(Some(arguments)), &for_work) {
            Some(answer) => Outcome::of(answer),
            None => Outcome::error(&format!("Unknown tool: {tool}")),
        }
    });
    let done = tokio::select! {
        done = &mut work => done,
        () = given_up.cancelled() => {
            cancel.cancel();
            work.await
        }
    };
    done.unwrap_or_else(|error| {
        tracing::error!(%error, "a tool failed");
        Outcome::error("The tool failed")
    })
}
