//! Shows what a set of changes does, as a unified diff.
//!
//! The section of each file begins with `diff --git a/OLD b/NEW`. Notes in words follow, or `---`,
//! `+++` and hunks with exact counts, so that a reader can split the text by file whatever the
//! files contain.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use atelier_core::TextEncoding;
use rustix::fs::OFlags;
use serde::Serialize;
use similar::TextDiff;

use crate::beneath;
use crate::door::{ChangeSet, Entry, Held, PathChange, Source};
use crate::workspace::Workspace;

/// Files longer than this are described, not shown.
const LONGEST: u64 = 1 << 20;
/// After so many bytes, further files are only named.
const LONGEST_DIFF: usize = 2 << 20;
const NOT_SHOWN: &str =
    "Not shown: the whole difference is too long. See it with `diff` and `paths`.";
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW);

/// A difference as text.
pub(crate) struct Difference {
    pub(crate) text: String,
    /// Whether files are only named.
    pub(crate) truncated: bool,
}

/// What the changes do. `is_secret` says whose content is not shown, `conflicts` what the workspace
/// has changed as well.
pub(crate) fn difference(
    workspace: &Workspace,
    held: &Held<'_>,
    set: &ChangeSet,
    is_secret: impl Fn(&Path) -> bool,
    conflicts: &[&Path],
) -> Difference {
    let (mut text, mut truncated) = (String::new(), false);
    let counted = count(set);
    let is_counted = |step: &&PathChange| {
        (step.is_ignored || step.is_folder()) && counted.contains_key(top(&step.path))
    };
    for step in set.steps.iter().filter(|step| !is_counted(step)) {
        let name = escaped(&step.path.to_string_lossy());
        if text.len() > LONGEST_DIFF {
            // Every file is named, so that nobody approves what they have not seen.
            text.push_str(&format!("diff --git a/{name} b/{name}\n{NOT_SHOWN}\n"));
            truncated = true;
            continue;
        }
        section(&mut text, &name, step, || {
            if is_secret(&step.path) {
                return None;
            }
            Some((old(workspace, step), new(held, step)))
        });
        if conflicts.contains(&step.path.as_path()) {
            text.push_str("Conflict: changed in the workspace as well\n");
        }
    }
    for (top, [added, changed, deleted]) in counted {
        let name = escaped(&top.to_string_lossy());
        let _ = writeln!(
            text,
            "diff --git a/{name} b/{name}\nIgnored by git: {added} files added, {changed} changed, \
             {deleted} deleted",
        );
    }
    Difference { text, truncated }
}

/// A conflict, seen from what the file was like before the layer touched it.
#[derive(Debug, Serialize)]
pub(crate) struct ThreeWay {
    path: String,
    /// The text before; empty if there was no file.
    base: String,
    /// What the folder has made of it, as a unified diff.
    folder: String,
    /// What the layer has made of it.
    layer: String,
}

/// So many bytes of conflicts are answered.
const LONGEST_CONFLICTS: usize = 512 << 10;

/// Both sides of each conflict, against the text that they began with. Conflicts are left out whose
/// beginning is not known, and those that are not texts or too long.
pub(crate) fn three_ways(
    workspace: &Workspace,
    held: &Held<'_>,
    set: &ChangeSet,
    conflicts: &[&Path],
    base: impl Fn(&Path) -> Option<String>,
) -> Vec<ThreeWay> {
    let mut left = LONGEST_CONFLICTS;
    let mut found = Vec::new();
    for step in set.steps.iter().filter(|step| conflicts.contains(&step.path.as_path())) {
        let sides = (base(&step.path), old(workspace, step), new(held, step));
        let (Some(base), Some(folder), Some(layer)) = sides else { continue };
        let name = escaped(&step.path.to_string_lossy());
        let against = |side: &str, text: &str| {
            let mut diff = String::new();
            hunks(&mut diff, &base, text, &format!("base/{name}"), &format!("{side}/{name}"));
            diff
        };
        let (folder, layer) = (against("folder", &folder), against("layer", &layer));
        let Some(rest) = left.checked_sub(base.len() + folder.len() + layer.len()) else {
            continue;
        };
        left = rest;
        found.push(ThreeWay { path: step.path.display().to_string(), base, folder, layer });
    }
    found
}

/// Where there are more files that git ignores than this, they are counted: nobody reads them.
const MOST_IGNORED: u64 = 50;

/// The folder at the top that a path lies in.
fn top(path: &Path) -> &Path {
    path.iter().next().map_or(path, Path::new)
}

/// How many files are added, changed and deleted that git ignores, by the folder at the top, where
/// they are many.
fn count(set: &ChangeSet) -> BTreeMap<&Path, [u64; 3]> {
    let mut tops: BTreeMap<&Path, [u64; 3]> = BTreeMap::new();
    for step in set.steps.iter().filter(|step| step.is_ignored && !step.is_folder()) {
        let kind = match (&step.before, &step.after) {
            (Entry::Absent, _) => 0,
            (_, Entry::Absent) => 2,
            _ => 1,
        };
        tops.entry(top(&step.path)).or_default()[kind] += 1;
    }
    tops.retain(|_, counts| counts.iter().sum::<u64>() > MOST_IGNORED);
    tops
}

/// Both sides of a file as text, where they are text and not too long.
type Sides = (Option<String>, Option<String>);

/// The section of one file. `sides` returns `None` for a secret file.
fn section(
    text: &mut String,
    name: &str,
    step: &PathChange,
    sides: impl FnOnce() -> Option<Sides>,
) {
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    line(format!("diff --git a/{name} b/{name}"));
    let PathChange { before, after, .. } = step;
    if let (Entry::File { mode: old, .. }, Entry::File { mode: new, .. }) = (before, after)
        && old & 0o777 != new & 0o777
    {
        line(format!("Mode: {:o} -> {:o}", old & 0o777, new & 0o777));
    }
    for (entry, words) in [(before, "Was"), (after, "Becomes")] {
        match entry {
            Entry::Link { target } => line(format!("{words} a link to {}", escaped(target))),
            Entry::Folder => line(format!("{words} a folder")),
            _ => {}
        }
    }
    let is_file = |entry: &Entry| matches!(entry, Entry::File { .. });
    if !is_file(before) && !is_file(after) || before.checksum() == after.checksum() {
        return;
    }
    let size = |entry: &Entry| match entry {
        Entry::File { size, .. } => *size,
        _ => 0,
    };
    match sides() {
        None => {
            if !is_file(after) {
                line(format!("Deleted: a file of {} bytes", size(before)));
            }
            line("Content not shown: it may hold secrets".to_owned());
        }
        Some((Some(old), Some(new))) => {
            if is_file(after) && size(after) == 0 {
                line("Becomes an empty file".to_owned());
            }
            let side = |entry: &Entry, letter: char| match is_file(entry) {
                true => format!("{letter}/{name}"),
                false => "/dev/null".to_owned(),
            };
            hunks(text, &old, &new, &side(before, 'a'), &side(after, 'b'));
        }
        Some(_) => line(format!("Binary: {} -> {} bytes", size(before), size(after))),
    }
}

/// Writes the hunks of a text, with both counts in each heading.
fn hunks(text: &mut String, old: &str, new: &str, old_name: &str, new_name: &str) {
    let diff = TextDiff::from_lines(old, new);
    let mut begun = false;
    for group in diff.grouped_ops(3) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        if !begun {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "--- {old_name}\n+++ {new_name}");
            begun = true;
        }
        let range = |start: usize, end: usize| match end - start {
            0 => format!("{start},0"),
            count => format!("{},{count}", start + 1),
        };
        let _ = writeln!(
            text,
            "@@ -{} +{} @@",
            range(first.old_range().start, last.old_range().end),
            range(first.new_range().start, last.new_range().end),
        );
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                similar::ChangeTag::Equal => ' ',
                similar::ChangeTag::Delete => '-',
                similar::ChangeTag::Insert => '+',
            };
            let line = change.value().trim_end_matches('\n');
            let _ = writeln!(text, "{sign}{line}");
            if change.missing_newline() {
                text.push_str("\\ No newline at end of file\n");
            }
        }
    }
}

/// The old content; empty if there was no file, `None` if it cannot be shown.
fn old(workspace: &Workspace, step: &PathChange) -> Option<String> {
    match &step.before {
        Entry::File { size, .. } => read(workspace.handle(), &step.path, *size),
        _ => Some(String::new()),
    }
}

fn new(held: &Held<'_>, step: &PathChange) -> Option<String> {
    match (&step.after, &step.source) {
        (Entry::File { checksum, .. }, Source::Image) => {
            held.image(checksum, LONGEST).and_then(text_of)
        }
        (Entry::File { size, .. }, Source::Folder(folder)) => {
            read(folder.as_fd(), &step.path, *size)
        }
        _ => Some(String::new()),
    }
}

fn read(side: impl AsFd, path: &Path, size: u64) -> Option<String> {
    if size > LONGEST {
        return None;
    }
    let file = File::from(beneath::open(side.as_fd(), path, FILE).ok()?);
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    text_of(bytes)
}

fn text_of(bytes: Vec<u8>) -> Option<String> {
    TextEncoding::decode(bytes).map(|(text, _)| text)
}

/// A name that stays on its line.
fn escaped(name: &str) -> String {
    match name.chars().any(char::is_control) {
        true => name
            .chars()
            .flat_map(|c| match c.is_control() {
                true => c.escape_default().collect::<Vec<_>>(),
                false => vec![c],
            })
            .collect(),
        false => name.to_owned(),
    }
}
