//! `read_file`: a text file, whole or its first or last lines.

use atelier_core::path::WorkspacePath;
use atelier_executor::{Error, Part};

use crate::args::Args;
use crate::reply::{Answer, Failure, Reply, reason};
use crate::space::Space;

pub(crate) fn read_file(space: &Space, mut args: Args) -> Answer {
    let raw = args.text("path");
    let (head, tail) = (args.count("head"), args.count("tail"));
    args.done()?;
    let part = match (head, tail) {
        (Some(_), Some(_)) => {
            return Err(Failure::new("Cannot specify both 'head' and 'tail' parameters"));
        }
        (Some(lines), None) => Part::Head(lines),
        (None, Some(lines)) => Part::Tail(lines),
        (None, None) => Part::Whole,
    };
    read(space, &raw, part).map(Reply::text)
}

/// The text of a file. `raw` is the path as the caller wrote it.
pub(crate) fn read(space: &Space, raw: &str, part: Part) -> Result<String, Failure> {
    let path = space.seen("read_file", raw)?;
    let bytes = bytes(space, &path, part).map_err(|error| failure(space, raw, &error))?;
    String::from_utf8(bytes).map_err(|_| Failure::new("File contains invalid UTF-8 encoding"))
}

pub(crate) fn bytes(space: &Space, path: &WorkspacePath, part: Part) -> Result<Vec<u8>, Error> {
    space.workspace().open_file(path)?.bytes(part)
}

pub(crate) fn failure(space: &Space, raw: &str, error: &Error) -> Failure {
    match error {
        // A file in the middle of the path means that the path does not exist.
        Error::NotFound { .. } | Error::NotADirectory { .. } | Error::NameTooLong { .. } => {
            Failure::new(format!("File not found: {raw}"))
        }
        Error::NotAFile { .. } => Failure::new(format!("Not a file: {raw}")),
        Error::Outside { .. } => space.access_denied(),
        Error::TooLarge { .. } => Failure::new(format!("{}: {raw}", reason(error))),
        _ => Failure::new(format!("File not readable: {raw}")),
    }
}
