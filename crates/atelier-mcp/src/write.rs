//! `write_file` and `create_directory`.

use atelier_core::TextEncoding;
use atelier_core::path::WorkspacePath;
use atelier_core::policy::Access;
use atelier_executor::{Cancel, Error, Expect, MissingParents, Written};

use crate::reply::{Answer, Failure, Reply, reason};
use crate::served::ServedWorkspace;
use crate::tools::Request;

pub(crate) fn write_file(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let (path, content) = (request.call.path("path")?, request.call.text("content")?);
    allowed(served, "write_file", path)?;
    let written = replace(served, "write_file", path, |path| {
        let (workspace, expect) = (served.workspace(), &Expect::Anything);
        match served.settings().utf8_only {
            true => workspace
                .write(path, content.as_bytes(), expect, MissingParents::Refuse)
                .map(|written| (written, TextEncoding::UTF_8)),
            false => workspace.write_text(path, content, expect, MissingParents::Refuse),
        }
    })?;
    let (Written { size, .. }, encoding) = written;
    let said = format!("Successfully wrote {size} bytes to {}", request.written("path"));
    Ok(Reply { encoding: Some(encoding), ..Reply::text(said) })
}

/// Refuses a path that the rules do not let the tool write.
pub(crate) fn allowed(
    served: &ServedWorkspace,
    tool: &str,
    path: &WorkspacePath,
) -> Result<(), Failure> {
    match served.refused(tool, path, Access::Write) {
        Some(why) => Err(Failure::new(format!("Failed to write file - {why}"))),
        None => Ok(()),
    }
}

/// Writes a file, creates its parents if they are missing, and follows links that stay inside. Most
/// writes need neither, so both are tried only after a plain write failed.
pub(crate) fn replace(
    served: &ServedWorkspace,
    tool: &str,
    path: &WorkspacePath,
    write: impl Fn(&WorkspacePath) -> Result<(Written, TextEncoding), Error>,
) -> Result<(Written, TextEncoding), Failure> {
    let followed;
    let (path, first) = match write(path) {
        Err(Error::Link { .. }) => {
            followed = served.resolve_links(path).map_err(|error| failure(served, &error))?;
            allowed(served, tool, &followed)?;
            (&followed, write(&followed))
        }
        other => (path, other),
    };
    match first {
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => {
            if let Some(parent) = path.parent() {
                make(served, &parent).map_err(|error| match error {
                    Error::Outside { .. } => served.access_denied(),
                    error => Failure::new(format!(
                        "Failed to create parent directory - {}",
                        reason(&error)
                    )),
                })?;
            }
            write(path)
        }
        other => other,
    }
    .map_err(|error| failure(served, &error))
}

pub(crate) fn failure(served: &ServedWorkspace, error: &Error) -> Failure {
    match error {
        Error::Outside { .. } => served.access_denied(),
        error => Failure::new(format!("Failed to write file - {}", reason(error))),
    }
}

pub(crate) fn create_directory(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let (path, raw) = (request.call.path("path")?, request.written("path"));
    if let Some(why) = served.refused("create_directory", path, Access::Output) {
        return Err(Failure::new(format!("Failed to create directory - {why}")));
    }
    match make(served, path) {
        Ok(true) => Ok(Reply::text(format!("Successfully created directory {raw}"))),
        Ok(false) => Ok(Reply::text(format!("Directory already exists: {raw}"))),
        Err(Error::Outside { .. }) => Err(served.access_denied()),
        Err(Error::NotADirectory { .. }) => {
            Err(Failure::new(format!("Path exists but is not a directory: {raw}")))
        }
        Err(error) => Err(Failure::new(format!("Failed to create directory - {}", reason(&error)))),
    }
}

/// Creates a directory like `mkdir -p`, and follows links inside the workspace. Returns whether it
/// created anything.
fn make(served: &ServedWorkspace, path: &WorkspacePath) -> Result<bool, Error> {
    match served.workspace().create_directory(path) {
        Err(Error::Link { .. }) => {
            let real = served.resolve_links(path)?;
            if served.refused("create_directory", &real, Access::Output).is_some() {
                let why = "The link leads to a place where nothing may be created";
                return Err(Error::Protected { path: path.as_str().to_owned(), why });
            }
            served.workspace().create_directory(&real)
        }
        other => other,
    }
}
