//! `search_files`: names by glob, below a directory.

use atelier_executor::{Cancel, Error, Glob};
use serde_json::{Value, json};

use crate::args::Args;
use crate::list::{directory_failure, is_directory, kind, mark};
use crate::reply::{Answer, Failure, Reply, reason};
use crate::space::{Space, shown};

const DEFAULT_RESULTS: u64 = 100;

pub(crate) fn search_files(space: &Space, mut args: Args, cancel: &Cancel) -> Answer {
    let (raw, pattern) = (args.text("path"), args.text("pattern"));
    let limit = args.count("max_results").unwrap_or(DEFAULT_RESULTS);
    args.done()?;
    let path = space.path(&raw)?;
    let glob =
        Glob::parse(&pattern).map_err(|error| Failure::new(format!("Search failed - {}", reason(&error))))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = space.workspace().search(&path, &glob, limit, cancel).map_err(|error| match error {
        Error::NotFound { .. }
        | Error::NotADirectory { .. }
        | Error::Outside { .. }
        | Error::NameTooLong { .. } => directory_failure(space, &raw, &error),
        error => Failure::new(format!("Search failed - {}", reason(&error))),
    })?;
    let count = found.hits.len();
    let data = |matches: Vec<Value>| json!({ "pattern": pattern, "count": count, "limited": found.cut, "matches": matches });
    if found.hits.is_empty() && !found.cut {
        let text = format!("No matches found for pattern '{pattern}' in {raw}");
        return Ok(Reply::with_data(text, data(Vec::new())));
    }
    let limited = if found.cut { format!(" (limited to {count})") } else { String::new() };
    let mut text = format!("Found {count} match(es) for '{pattern}'{limited}:\n");
    text.reserve(count * 40);
    let mut matches = Vec::with_capacity(count);
    for hit in &found.hits {
        let directory = is_directory(space, hit);
        let name = hit.path.to_string_lossy();
        text.push('\n');
        text.push_str(mark(directory));
        text.push_str(&shown(&name));
        matches.push(json!({ "path": name, "type": kind(directory) }));
    }
    Ok(Reply::with_data(text, data(matches)))
}
