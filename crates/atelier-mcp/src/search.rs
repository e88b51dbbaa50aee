//! `search_files`: finds names below a directory by glob.

use atelier_executor::{Cancel, Error, Glob};
use serde_json::json;

use crate::list::{Rows, directory_failure, is_directory, line_of};
use crate::reply::{Answer, Failure, Reply, reason};
use crate::served::{ServedWorkspace, shown};
use crate::tools::Request;

const DEFAULT_RESULTS: u64 = 100;

pub(crate) fn search_files(served: &ServedWorkspace, request: &Request, cancel: &Cancel) -> Answer {
    let (path, raw) = (request.call.path("path")?, request.written("path"));
    let pattern = request.call.text("pattern")?;
    let limit = request.count("max_results").unwrap_or(DEFAULT_RESULTS);
    served.check_readable("search_files", path)?;
    let glob = Glob::parse(pattern)
        .map_err(|error| Failure::new(format!("Search failed - {}", reason(&error))))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found =
        served.workspace().search(path, &glob, limit, cancel).map_err(|error| match error {
            Error::NotFound { .. }
            | Error::NotADirectory { .. }
            | Error::Outside { .. }
            | Error::NameTooLong { .. } => directory_failure(served, raw, &error),
            error => Failure::new(format!("Search failed - {}", reason(&error))),
        })?;
    let count = found.hits.len();
    let mut rows = Rows::new(count);
    let mut text = String::with_capacity(count * 48 + 80);
    if count == 0 && !found.cut {
        text = format!("No matches found for pattern '{}' in {raw}", shown(pattern));
    } else {
        let limited = if found.cut { format!(" (limited to {count})") } else { String::new() };
        text.push_str(&format!("Found {count} match(es) for '{}'{limited}:\n", shown(pattern)));
    }
    for hit in &found.hits {
        let directory = is_directory(served, hit);
        line_of(&mut text, directory, &hit.path.to_string_lossy());
        rows.push(directory, hit.path.as_os_str());
    }
    let data = json!({ "pattern": pattern, "count": count, "limited": found.cut });
    Ok(Reply::with_data(text, rows.into_data(data)))
}
