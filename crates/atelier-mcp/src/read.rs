//! `read_file`: a text file, whole or its first or last lines.

use atelier_core::TextEncoding;
use atelier_core::path::WorkspacePath;
use atelier_executor::{Cancel, Content, Error, Part, TextContent};

use crate::reply::{Answer, Failure, Reply, reason};
use crate::served::ServedWorkspace;
use crate::tools::Request;

pub(crate) fn read_file(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let part = match (request.count("head"), request.count("tail")) {
        (Some(_), Some(_)) => {
            return Err(Failure::new("Cannot specify both 'head' and 'tail' parameters"));
        }
        (Some(lines), None) => Part::Head(lines),
        (None, Some(lines)) => Part::Tail(lines),
        (None, None) => Part::Whole,
    };
    let TextContent { text, encoding, .. } =
        read(served, request.call.path("path")?, request.written("path"), part)?;
    Ok(Reply { encoding: Some(encoding), ..Reply::text(text) })
}

/// The text of a file that the host calls `raw`.
pub(crate) fn read(
    served: &ServedWorkspace,
    path: &WorkspacePath,
    raw: &str,
    part: Part,
) -> Result<TextContent, Failure> {
    served.check_readable("read_file", path)?;
    let found = match served.settings().utf8_only {
        true => utf8(served, path, part),
        false => match served.workspace().read_text(path, part) {
            // Hosts get every file that is UTF-8, even with bytes that no text has.
            Err(Error::Binary { .. }) => utf8(served, path, part),
            found => found,
        },
    };
    found.map_err(|error| failure(served, raw, &error))
}

fn utf8(served: &ServedWorkspace, path: &WorkspacePath, part: Part) -> Result<TextContent, Error> {
    let Content { bytes, checksum, size } = served.workspace().read(path, part)?;
    let invalid = |_| Error::InvalidUtf8 { path: path.as_str().to_owned() };
    let text = String::from_utf8(bytes).map_err(invalid)?;
    Ok(TextContent { text, encoding: TextEncoding::UTF_8, checksum, size })
}

pub(crate) fn bytes(
    served: &ServedWorkspace,
    path: &WorkspacePath,
    part: Part,
) -> Result<Vec<u8>, Error> {
    served.workspace().open_file(path)?.bytes(part)
}

pub(crate) fn failure(served: &ServedWorkspace, raw: &str, error: &Error) -> Failure {
    match error {
        // If a part of the path is a file, there is no such file either.
        Error::NotFound { .. } | Error::NotADirectory { .. } | Error::NameTooLong { .. } => {
            Failure::new(format!("File not found: {raw}"))
        }
        Error::Binary { .. } | Error::InvalidUtf8 { .. } => {
            Failure::new("File contains invalid UTF-8 encoding")
        }
        Error::NotAFile { .. } => Failure::new(format!("Not a file: {raw}")),
        Error::Outside { .. } => served.access_denied(),
        Error::TooLarge { .. } => Failure::new(format!("{}: {raw}", reason(error))),
        _ => Failure::new(format!("File not readable: {raw}")),
    }
}
