//! The additional tools: editing, appending, moving, deleting, searching in files, trees.

use std::fmt::Write;

use atelier_core::policy::Access;
use atelier_executor::{Cancel, Edit, Error, Expect, Glob, GrepSpec, Kind, Mending, Part};
use serde_json::Value;

use crate::args::Args;
use crate::list::directory_failure;
use crate::read::{failure as read_failure, read};
use crate::reply::{Answer, Failure, Reply, reason};
use crate::space::{Space, shown};
use crate::write::{allowed, failure as write_failure, replace};

const DEFAULT_LINES: u64 = 100;
const DEFAULT_TREE: u64 = 1000;

pub(crate) fn edit_file(space: &Space, mut args: Args) -> Answer {
    let (raw, list) = (args.text("path"), args.list("edits"));
    args.done()?;
    let edits = list.into_iter().map(edit).collect::<Result<Vec<_>, _>>()?;
    let path = space.path(&raw)?;
    allowed(space, "edit_file", &path)?;
    let path = space.behind_links(&path).map_err(|error| read_failure(space, &raw, &error))?;
    allowed(space, "edit_file", &path)?;
    space.workspace().edit(&path, &edits, &Expect::Anything).map_err(|error| match error {
        Error::EditMismatch { found, .. } => Failure::new(format!(
            "Failed to edit file - Text to replace was found {found} times; it must occur exactly \
             once"
        )),
        Error::NotFound { .. } | Error::NotAFile { .. } => read_failure(space, &raw, &error),
        error => Failure::new(format!("Failed to edit file - {}", reason(&error))),
    })?;
    Ok(Reply::text(format!("Successfully applied {} edit(s) to {raw}", edits.len())))
}

fn edit(value: Value) -> Result<Edit, Failure> {
    let Value::Object(given) = value else {
        return Err(Failure::new("Every edit must be an object"));
    };
    let mut args = Args::new(Some(given));
    let (old, new, all) = (args.text("old_text"), args.text("new_text"), args.flag("replace_all"));
    args.done()?;
    Ok(Edit { old, new, count: (!all).then_some(1) })
}

pub(crate) fn append_file(space: &Space, mut args: Args) -> Answer {
    let (raw, content) = (args.text("path"), args.text("content"));
    args.done()?;
    let path = space.path(&raw)?;
    allowed(space, "append_file", &path)?;
    replace(space, "append_file", &path, |path| {
        space.workspace().append(path, content.as_bytes(), &Expect::Anything, Mending::Never)
    })?;
    Ok(Reply::text(format!("Successfully appended {} bytes to {raw}", content.len())))
}

pub(crate) fn move_file(space: &Space, mut args: Args) -> Answer {
    let (from, to) = (args.text("source"), args.text("destination"));
    args.done()?;
    let (source, destination) = (space.path(&from)?, space.path(&to)?);
    let refused = space
        .refused("move_file", &source, Access::Remove)
        .or_else(|| space.refused("move_file", &destination, Access::Write));
    if let Some(why) = refused {
        return Err(Failure::new(format!("Failed to move file - {why}")));
    }
    space.workspace().move_entry(&source, &destination, false).map_err(|error| match error {
        Error::Outside { .. } | Error::Link { .. } => space.access_denied(),
        Error::NotFound { path } if path == source.as_str() => {
            Failure::new(format!("Path not found: {from}"))
        }
        Error::NotFound { .. } => {
            Failure::new(format!("Failed to move file - The directory of {to} does not exist"))
        }
        Error::Exists { .. } => Failure::new(format!("Destination already exists: {to}")),
        error => Failure::new(format!("Failed to move file - {}", reason(&error))),
    })?;
    Ok(Reply::text(format!("Successfully moved {from} to {to}")))
}

pub(crate) fn delete_file(space: &Space, mut args: Args) -> Answer {
    let (raw, recursive) = (args.text("path"), args.flag("recursive"));
    args.done()?;
    let path = space.path(&raw)?;
    if let Some(why) = space.refused("delete_file", &path, Access::Remove) {
        return Err(Failure::new(format!("Failed to delete - {why}")));
    }
    let gone = space.workspace().delete(&path, recursive).map_err(|error| match error {
        Error::Outside { .. } | Error::Link { .. } => space.access_denied(),
        Error::NotFound { .. } => Failure::new(format!("Path not found: {raw}")),
        error => Failure::new(format!("Failed to delete - {}", reason(&error))),
    })?;
    Ok(Reply::text(format!("Successfully deleted {raw} ({gone} entries)")))
}

pub(crate) fn read_multiple_files(space: &Space, mut args: Args) -> Answer {
    let paths = args.list("paths");
    args.done()?;
    let mut text = String::new();
    for path in paths {
        let Value::String(raw) = path else {
            return Err(Failure::new("Every path must be a string"));
        };
        if !text.is_empty() {
            text.push_str("\n---\n");
        }
        match read(space, &raw, Part::Whole) {
            Ok(content) => push(&mut text, format_args!("{}:\n{content}", shown(&raw))),
            Err(failure) => {
                push(&mut text, format_args!("{}: Error: {}", shown(&raw), failure.into_text()));
            }
        }
        // All files together may have the size of one file, so that a list of files cannot evade
        // the limit.
        if text.len() as u64 > space.settings().max_file_size {
            return Err(Failure::new("The files are too large to read together"));
        }
    }
    Ok(Reply::text(text))
}

pub(crate) fn grep(space: &Space, mut args: Args, cancel: &Cancel) -> Answer {
    let (raw, pattern) = (args.text("path"), args.text("pattern"));
    let glob = args.optional_text("glob");
    let (literal, ignore_case) = (args.flag("literal"), args.flag("ignore_case"));
    let (context, limit) = (args.count("context"), args.count("max_results"));
    args.done()?;
    let path = space.seen("grep", &raw)?;
    let failed = |error: &Error| Failure::new(format!("Search failed - {}", reason(error)));
    let glob =
        glob.map(|glob| Glob::parse_for_names(&glob, true)).transpose().map_err(|e| failed(&e))?;
    let spec = GrepSpec {
        pattern: pattern.clone(),
        literal,
        ignore_case,
        glob,
        context: u32::try_from(context.unwrap_or(0)).unwrap_or(u32::MAX),
        limit: usize::try_from(limit.unwrap_or(DEFAULT_LINES)).unwrap_or(usize::MAX),
    };
    let found =
        space.workspace().grep(&path, &spec, |_| false, cancel).map_err(|error| match error {
            Error::NotFound { .. } => Failure::new(format!("Path not found: {raw}")),
            Error::Outside { .. } => space.access_denied(),
            error => failed(&error),
        })?;
    if found.lines.is_empty() {
        return Ok(Reply::text(format!("No matches found for pattern '{pattern}' in {raw}")));
    }
    let limited =
        if found.cut { format!(" (limited to {})", found.matches) } else { String::new() };
    let mut text = format!("Found {} match(es) for '{pattern}'{limited}:\n", found.matches);
    for line in &found.lines {
        let mark = if line.matched { ':' } else { '-' };
        push(
            &mut text,
            format_args!("\n{}{mark}{}{mark}{}", shown(&line.path), line.line, line.text),
        );
    }
    Ok(Reply::text(text))
}

pub(crate) fn directory_tree(space: &Space, mut args: Args, cancel: &Cancel) -> Answer {
    let raw = args.text("path");
    let (depth, limit) =
        (args.count("max_depth"), args.count("max_results").unwrap_or(DEFAULT_TREE));
    args.done()?;
    let path = space.seen("directory_tree", &raw)?;
    // A glob with this many levels walks no deeper. A depth beyond the deepest possible path means
    // all levels.
    let pattern = match depth {
        Some(levels @ 1..=64) => (1..=levels)
            .map(|level| vec!["*"; level as usize].join("/"))
            .collect::<Vec<_>>()
            .join(","),
        _ => "**/*".to_owned(),
    };
    let glob = Glob::parse(&format!("{{{pattern}}}"))
        .map_err(|error| Failure::new(format!("Search failed - {}", reason(&error))))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = space
        .workspace()
        .search(&path, &glob, limit, cancel)
        .map_err(|error| directory_failure(space, &raw, &error))?;
    let above = space.behind_links(&path).map_err(|error| write_failure(space, &error))?.depth();
    let mut text = format!("{}/", raw.trim_end_matches('/'));
    for hit in &found.hits {
        let level = hit.path.components().count().saturating_sub(above);
        let name = hit.path.file_name().unwrap_or_default().to_string_lossy();
        let slash = if hit.kind == Kind::Directory { "/" } else { "" };
        push(
            &mut text,
            format_args!("\n{:indent$}{}{slash}", "", shown(&name), indent = level * 2),
        );
    }
    if found.cut {
        push(&mut text, format_args!("\n(limited to {})", found.hits.len()));
    }
    Ok(Reply::text(text))
}

fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(what);
}
