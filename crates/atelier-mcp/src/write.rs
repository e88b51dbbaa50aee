//! `write_file` and `create_directory`.

use atelier_core::path::WorkspacePath;
use atelier_core::policy::Access;
use atelier_executor::{Error, Expect, Mending, Written};

use crate::args::Args;
use crate::reply::{Answer, Failure, Reply, reason};
use crate::space::Space;

pub(crate) fn write_file(space: &Space, mut args: Args) -> Answer {
    let (raw, content) = (args.text("path"), args.text("content"));
    args.done()?;
    let path = space.path(&raw)?;
    allowed(space, "write_file", &path)?;
    let written = replace(space, "write_file", &path, |path| {
        space.workspace().write(path, content.as_bytes(), &Expect::Anything, Mending::Never)
    })?;
    Ok(Reply::text(format!("Successfully wrote {} bytes to {raw}", written.size)))
}

/// Returns an error if the rules do not allow the tool to write the path.
pub(crate) fn allowed(space: &Space, tool: &str, path: &WorkspacePath) -> Result<(), Failure> {
    match space.refused(tool, path, Access::Write) {
        Some(why) => Err(Failure::new(format!("Failed to write file - {why}"))),
        None => Ok(()),
    }
}

/// Writes a file, creates missing parents, and follows links that stay inside. Most writes need
/// neither, so both are tried only after a plain write has failed.
pub(crate) fn replace(
    space: &Space,
    tool: &str,
    path: &WorkspacePath,
    write: impl Fn(&WorkspacePath) -> Result<Written, Error>,
) -> Result<Written, Failure> {
    let followed;
    let (path, first) = match write(path) {
        Err(Error::Link { .. }) => {
            followed = space.behind_links(path).map_err(|error| failure(space, &error))?;
            allowed(space, tool, &followed)?;
            (&followed, write(&followed))
        }
        other => (path, other),
    };
    match first {
        Err(Error::NotFound { .. } | Error::NotADirectory { .. }) => {
            if let Some(parent) = path.parent() {
                make(space, &parent).map_err(|error| match error {
                    Error::Outside { .. } => space.access_denied(),
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
    .map_err(|error| failure(space, &error))
}

pub(crate) fn failure(space: &Space, error: &Error) -> Failure {
    match error {
        Error::Outside { .. } => space.access_denied(),
        error => Failure::new(format!("Failed to write file - {}", reason(error))),
    }
}

pub(crate) fn create_directory(space: &Space, mut args: Args) -> Answer {
    let raw = args.text("path");
    args.done()?;
    let path = space.path(&raw)?;
    if let Some(why) = space.refused("create_directory", &path, Access::Output) {
        return Err(Failure::new(format!("Failed to create directory - {why}")));
    }
    match make(space, &path) {
        Ok(true) => Ok(Reply::text(format!("Successfully created directory {raw}"))),
        Ok(false) => Ok(Reply::text(format!("Directory already exists: {raw}"))),
        Err(Error::Outside { .. }) => Err(space.access_denied()),
        Err(Error::NotADirectory { .. }) => {
            Err(Failure::new(format!("Path exists but is not a directory: {raw}")))
        }
        Err(error) => Err(Failure::new(format!("Failed to create directory - {}", reason(&error)))),
    }
}

/// Creates directories like `mkdir -p`, and follows links inside the workspace. Returns whether a
/// directory was created.
fn make(space: &Space, path: &WorkspacePath) -> Result<bool, Error> {
    match space.workspace().create_directory(path) {
        Err(Error::Link { .. }) => {
            let real = space.behind_links(path)?;
            if space.refused("create_directory", &real, Access::Output).is_some() {
                let why = "The link leads to a place where nothing can be created";
                return Err(Error::Protected { path: path.as_str().to_owned(), why });
            }
            space.workspace().create_directory(&real)
        }
        other => other,
    }
}
