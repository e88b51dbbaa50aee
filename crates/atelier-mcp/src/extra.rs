//! The tools of `--extra-tools`: editing, appending, moving, deleting, searching in files, trees.

use std::fmt::Write;

use atelier_core::TextEncoding;
use atelier_core::policy::{Access, call};
use atelier_executor::{Cancel, Edit, Error, Expect, Glob, GrepSpec, Kind, MissingParents, Part};

use crate::list::directory_failure;
use crate::read::{failure as read_failure, read};
use crate::reply::{Answer, Failure, Reply, reason};
use crate::served::{ServedWorkspace, shown};
use crate::tools::Request;
use crate::write::{allowed, failure as write_failure, replace};

const DEFAULT_LINES: u64 = 100;
const DEFAULT_TREE: u64 = 1000;

pub(crate) fn edit_file(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let (path, raw) = (request.call.path("path")?, request.written("path"));
    let edits: Vec<Edit> = request.call.edits("edits").iter().map(edit).collect();
    allowed(served, "edit_file", path)?;
    let path = served.resolve_links(path).map_err(|error| read_failure(served, raw, &error))?;
    allowed(served, "edit_file", &path)?;
    if served.settings().utf8_only {
        read(served, &path, raw, Part::Whole)?;
    }
    let edited = served.workspace().edit(&path, &edits, &Expect::Anything);
    let (_, encoding) = edited.map_err(|error| match error {
        Error::EditMismatch { found, .. } => Failure::new(format!(
            "Failed to edit file - Text to replace was found {found} times; it must occur exactly \
             once"
        )),
        Error::NotFound { .. } | Error::NotAFile { .. } => read_failure(served, raw, &error),
        error => Failure::new(format!("Failed to edit file - {}", reason(&error))),
    })?;
    let said = format!("Successfully applied {} edit(s) to {raw}", edits.len());
    Ok(Reply { encoding: Some(encoding), ..Reply::text(said) })
}

fn edit(edit: &call::Edit) -> Edit {
    let count = (!edit.replace_all).then_some(1);
    Edit { old: edit.old_text.clone(), new: edit.new_text.clone(), count }
}

pub(crate) fn append_file(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let (path, content) = (request.call.path("path")?, request.call.text("content")?);
    allowed(served, "append_file", path)?;
    let (_, encoding) = replace(served, "append_file", path, |path| {
        let (workspace, expect) = (served.workspace(), &Expect::Anything);
        match served.settings().utf8_only {
            true => workspace
                .append(path, content.as_bytes(), expect, MissingParents::Refuse)
                .map(|written| (written, TextEncoding::UTF_8)),
            false => workspace.append_text(path, content, expect, MissingParents::Refuse),
        }
    })?;
    let bytes = encoding.encode(content).map_or(content.len(), |bytes| bytes.len());
    let said = format!("Successfully appended {bytes} bytes to {}", request.written("path"));
    Ok(Reply { encoding: Some(encoding), ..Reply::text(said) })
}

pub(crate) fn move_file(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let (source, destination) = (request.call.path("source")?, request.call.path("destination")?);
    let (from, to) = (request.written("source"), request.written("destination"));
    let refused = served
        .refused("move_file", source, Access::Remove)
        .or_else(|| served.refused("move_file", destination, Access::Write));
    if let Some(why) = refused {
        return Err(Failure::new(format!("Failed to move file - {why}")));
    }
    served.workspace().move_entry(source, destination, false).map_err(|error| match error {
        Error::Outside { .. } | Error::Link { .. } => served.access_denied(),
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

pub(crate) fn delete_file(served: &ServedWorkspace, request: &Request, _: &Cancel) -> Answer {
    let (path, raw) = (request.call.path("path")?, request.written("path"));
    if let Some(why) = served.refused("delete_file", path, Access::Remove) {
        return Err(Failure::new(format!("Failed to delete - {why}")));
    }
    let gone = served.workspace().delete(path, request.call.flag("recursive")).map_err(
        |error| match error {
            Error::Outside { .. } | Error::Link { .. } => served.access_denied(),
            Error::NotFound { .. } => Failure::new(format!("Path not found: {raw}")),
            error => Failure::new(format!("Failed to delete - {}", reason(&error))),
        },
    )?;
    Ok(Reply::text(format!("Successfully deleted {raw} ({gone} entries)")))
}

pub(crate) fn read_multiple_files(
    served: &ServedWorkspace,
    request: &Request,
    _: &Cancel,
) -> Answer {
    let mut text = String::new();
    for raw in request.call.words("paths") {
        if !text.is_empty() {
            text.push_str("\n---\n");
        }
        let read = served.path(raw).and_then(|path| read(served, &path, raw, Part::Whole));
        match read {
            Ok(content) => push(&mut text, format_args!("{}:\n{}", shown(raw), content.text)),
            Err(failure) => {
                push(&mut text, format_args!("{}: Error: {}", shown(raw), failure.into_text()));
            }
        }
        // All files together may have the size of one file, so that a list of files cannot evade
        // the limit.
        if text.len() as u64 > served.settings().max_file_size {
            return Err(Failure::new("The files are too large to read together"));
        }
    }
    Ok(Reply::text(text))
}

pub(crate) fn grep(served: &ServedWorkspace, request: &Request, cancel: &Cancel) -> Answer {
    let call = &request.call;
    let (path, raw, pattern) = (call.path("path")?, request.written("path"), call.text("pattern")?);
    let glob = call.optional_text("glob");
    let (context, limit) = (request.count("context"), request.count("max_results"));
    served.check_readable("grep", path)?;
    let failed = |error: &Error| Failure::new(format!("Search failed - {}", reason(error)));
    let glob =
        glob.map(|glob| Glob::parse_for_names(glob, true)).transpose().map_err(|e| failed(&e))?;
    let spec = GrepSpec {
        pattern: pattern.to_owned(),
        literal: call.flag("literal"),
        ignore_case: call.flag("ignore_case"),
        glob,
        context: u32::try_from(context.unwrap_or(0)).unwrap_or(u32::MAX),
        limit: usize::try_from(limit.unwrap_or(DEFAULT_LINES)).unwrap_or(usize::MAX),
    };
    // If the rules refuse a file that is named, they also refuse it when a search comes across it.
    let refused = |found: &std::path::Path| {
        let path = found.to_str().and_then(|path| served.path(path).ok());
        path.is_none_or(|path| served.check_readable("grep", &path).is_err())
    };
    let found =
        served.workspace().grep(path, &spec, refused, cancel).map_err(|error| match error {
            Error::NotFound { .. } => Failure::new(format!("Path not found: {raw}")),
            Error::Outside { .. } => served.access_denied(),
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

pub(crate) fn directory_tree(
    served: &ServedWorkspace,
    request: &Request,
    cancel: &Cancel,
) -> Answer {
    let (path, raw) = (request.call.path("path")?, request.written("path"));
    let (depth, limit) =
        (request.count("max_depth"), request.count("max_results").unwrap_or(DEFAULT_TREE));
    served.check_readable("directory_tree", path)?;
    // A glob with that many levels walks no deeper. Beyond the deepest path there is, all levels
    // are meant.
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
    let found = served
        .workspace()
        .search(path, &glob, limit, cancel)
        .map_err(|error| directory_failure(served, raw, &error))?;
    let above = served.resolve_links(path).map_err(|error| write_failure(served, &error))?.depth();
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
