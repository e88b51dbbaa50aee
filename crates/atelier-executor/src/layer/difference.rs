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
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use similar::{Algorithm, ChangeTag, DiffOp, capture_diff_slices, group_diff_ops};

use super::content::{ESCAPED, HEAD, escaped_bytes, passive, readable};
use crate::beneath;
use crate::door::{ChangeSet, Entry, Held, PathChange, Source};
use crate::error::Error;
use crate::workspace::Workspace;

/// Files longer than this are described, not shown.
const LONGEST: u64 = 4 << 20;
/// A difference is not longer. Files that do not fit are only named.
const LONGEST_DIFF: usize = 4 << 20;
/// So many bytes of names follow.
const LONGEST_NAMES: usize = 1 << 20;
const NOT_SHOWN: &str =
    "Not shown: the whole difference is too long. See it with `diff` and `paths`.";
/// More lines than this that differ are shown as one block. Finding out which of them are the same
/// would take too long.
const MOST_COMPARED: usize = 4000;
/// How many unchanged lines are shown around a change.
const CONTEXT: usize = 3;
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW);

/// A difference as text.
pub(crate) struct Difference {
    pub(crate) text: String,
    /// The first file whose new content is not shown.
    pub(crate) unshown: Option<Unshown>,
}

/// Why the new content of a file is not shown.
pub(crate) enum Unshown {
    /// The file alone is too long, or could not be read.
    File { path: PathBuf, size: u64 },
    /// There was no room for it any more.
    Rest { path: PathBuf },
}

impl Unshown {
    /// The error for those who wanted it to land: nobody can approve what they cannot see.
    pub(crate) fn refused(self) -> Error {
        let shown = |path: &Path| escaped(&path.to_string_lossy());
        match self {
            Self::File { path, size } => {
                Error::TooLargeToShow { path: shown(&path), size, limit: LONGEST }
            }
            Self::Rest { path } => Error::NotAllShown { path: shown(&path) },
        }
    }
}

/// What the changes do. `is_withheld` says whose content in the workspace is not shown, `conflicts`
/// what the workspace has changed as well.
pub(crate) fn difference(
    workspace: &Workspace,
    held: &Held<'_>,
    set: &ChangeSet,
    is_withheld: impl Fn(&Path) -> bool,
    conflicts: &[&Path],
) -> Difference {
    let (mut text, mut unshown) = (String::new(), None);
    let counted = count(set);
    let is_counted = |step: &&PathChange| {
        (step.is_ignored || step.is_folder()) && counted.contains_key(top(&step.path))
    };
    let gone = set.steps.iter().filter(|step| step.after.checksum().is_none());
    let gone = gone.filter_map(|step| Some((step.before.checksum()?, step.path.as_path())));
    let look = Look { workspace, held, gone: gone.collect() };
    let (mut is_full, mut unnamed) = (false, 0_u64);
    for step in set.steps.iter().filter(|step| !is_counted(step)) {
        let name = escaped(&step.path.to_string_lossy());
        let begin = text.len();
        if !is_full {
            let is_whole = look.section(&mut text, &name, step, &is_withheld);
            is_full = text.len() > LONGEST_DIFF;
            if !is_whole && unshown.is_none() && !is_full {
                let size = size(&step.after);
                unshown = Some(Unshown::File { path: step.path.clone(), size });
            }
        }
        if is_full {
            // Every file is named, so that nobody takes the rest for everything.
            text.truncate(begin);
            match begin > LONGEST_DIFF + LONGEST_NAMES {
                true => unnamed += 1,
                false => text.push_str(&format!("diff --git a/{name} b/{name}\n{NOT_SHOWN}\n")),
            }
            unshown = unshown.or_else(|| match begin {
                0 => Some(Unshown::File { path: step.path.clone(), size: size(&step.after) }),
                _ => Some(Unshown::Rest { path: step.path.clone() }),
            });
        }
        if conflicts.contains(&step.path.as_path()) {
            text.push_str("Conflict: changed in the workspace as well\n");
        }
    }
    if unnamed > 0 {
        let _ = writeln!(text, "diff --git a/... b/...\nNot shown: {unnamed} more files");
    }
    for (top, [added, changed, deleted]) in counted {
        let name = escaped(&top.to_string_lossy());
        let _ = writeln!(
            text,
            "diff --git a/{name} b/{name}\nIgnored by git: {added} files added, {changed} changed, \
             {deleted} deleted",
        );
    }
    Difference { text, unshown }
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

/// Where the contents of both sides are.
struct Look<'a> {
    workspace: &'a Workspace,
    held: &'a Held<'a>,
    /// Files that are gone afterwards, by their content: it may come back under another name.
    gone: BTreeMap<&'a str, &'a Path>,
}

impl Look<'_> {
    /// Writes the section of one file. Returns whether it tells everything that the file becomes.
    fn section(
        &self,
        text: &mut String,
        name: &str,
        step: &PathChange,
        is_withheld: impl Fn(&Path) -> bool,
    ) -> bool {
        line(text, format!("diff --git a/{name} b/{name}"));
        let PathChange { before, after, .. } = step;
        if let (Entry::File { mode: old, .. }, Entry::File { mode: new, .. }) = (before, after)
            && old & 0o777 != new & 0o777
        {
            line(text, format!("Mode: {:o} -> {:o}", old & 0o777, new & 0o777));
        }
        for (entry, words) in [(before, "Was"), (after, "Becomes")] {
            match entry {
                Entry::Link { target } => {
                    line(text, format!("{words} a link to {}", escaped(target)));
                }
                Entry::Folder => line(text, format!("{words} a folder")),
                _ => {}
            }
        }
        if !is_file(before) && !is_file(after) || before.checksum() == after.checksum() {
            return true;
        }
        let withheld = is_withheld(&step.path);
        match is_file(after) {
            true => self.becomes(text, name, step, withheld),
            false => {
                self.goes(text, name, step, withheld);
                true
            }
        }
    }

    /// Writes what is lost with a file.
    fn goes(&self, text: &mut String, name: &str, step: &PathChange, withheld: bool) {
        let size = size(&step.before);
        if withheld {
            line(text, format!("Deleted: a file of {size} bytes"));
            return line(text, "Content not shown: it may hold secrets".to_owned());
        }
        match old(self.workspace, step) {
            Some(old) => hunks(text, &old, "", &format!("a/{name}"), "/dev/null"),
            None => line(text, format!("Deleted: a file of {size} bytes that is not text")),
        }
    }

    /// Writes what a file becomes. Returns whether that is everything.
    fn becomes(&self, text: &mut String, name: &str, step: &PathChange, withheld: bool) -> bool {
        let PathChange { before, after, source, .. } = step;
        let sizes = format!("{} -> {} bytes", size(before), size(after));
        if withheld && matches!(source, Source::Image) {
            // It is brought back as it was in the workspace, so this side is the person's own.
            line(text, format!("Content not shown: it may hold secrets ({sizes})"));
            return true;
        }
        let was =
            |why: &str| format!("Was a file of {} bytes that is not shown: {why}", size(before));
        let old = match before {
            Entry::File { .. } if withheld => {
                line(text, was("it may hold secrets"));
                Vec::new()
            }
            Entry::File { size, .. } => read(self.workspace.handle(), &step.path, *size)
                .unwrap_or_else(|| {
                    line(text, was("it is too long"));
                    Vec::new()
                }),
            _ => Vec::new(),
        };
        let Some(new) = new_bytes(self.held, step) else { return self.tell(text, step, &sizes) };
        if new.is_empty() {
            line(text, "Becomes an empty file".to_owned());
        }
        let [old_name, new_name] =
            [(before, 'a'), (after, 'b')].map(|(entry, letter)| match is_file(entry) {
                true => format!("{letter}/{name}"),
                false => "/dev/null".to_owned(),
            });
        match (readable(old.clone()), readable(new.clone())) {
            (Some(old), Some(new)) if old != new || new.is_empty() => {
                hunks(text, &old, &new, &old_name, &new_name);
            }
            (None, Some(new)) => {
                line(text, was("it is not text"));
                hunks(text, "", &new, &old_name, &new_name);
            }
            (_, None) if self.kind(step).is_some() => return self.tell(text, step, &sizes),
            // Not text, or the same text in other bytes.
            _ => {
                line(text, ESCAPED.to_owned());
                let [old, new] = [old, new].map(|bytes| escaped_bytes(&bytes));
                hunks(text, &old, &new, &old_name, &new_name);
            }
        }
        true
    }

    /// Says in words what a file becomes. Returns whether that says everything.
    fn tell(&self, text: &mut String, step: &PathChange, sizes: &str) -> bool {
        let checksum = step.after.checksum().unwrap_or_default();
        if let Some(kind) = self.kind(step) {
            line(text, format!("{kind}: {sizes}, SHA-256 {checksum}"));
            return true;
        }
        if let Some(from) = self.gone.get(checksum) {
            let from = escaped(&from.to_string_lossy());
            line(text, format!("Becomes what {from} is now: {sizes}, SHA-256 {checksum}"));
            return true;
        }
        line(text, format!("Not shown: it is too long ({sizes}, SHA-256 {checksum})"));
        false
    }

    /// What kind of file it becomes, if its bytes tell a person nothing and no program runs it.
    fn kind(&self, step: &PathChange) -> Option<&'static str> {
        let head = match (&step.source, &step.after) {
            (Source::Folder(folder), Entry::File { .. }) => {
                let file = beneath::open(folder.as_fd(), &step.path, FILE).ok()?;
                let mut head = Vec::new();
                File::from(file).take(HEAD).read_to_end(&mut head).ok()?;
                head
            }
            _ => new_bytes(self.held, step)?,
        };
        passive(&step.path, &head).filter(|_| !step.after.is_executable())
    }
}

fn line(text: &mut String, words: String) {
    text.push_str(&words);
    text.push('\n');
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry, Entry::File { .. })
}

fn size(entry: &Entry) -> u64 {
    match entry {
        Entry::File { size, .. } => *size,
        _ => 0,
    }
}

/// Writes the hunks of a text, with both counts in each heading. Only a line feed ends a line: a
/// lone carriage return must not look like the beginning of another line.
fn hunks(text: &mut String, old: &str, new: &str, old_name: &str, new_name: &str) {
    let [old, new] = [old, new].map(|side| side.split_inclusive('\n').collect::<Vec<&str>>());
    let mut begun = false;
    for group in group_diff_ops(compared(&old, &new), CONTEXT) {
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
        for change in group.iter().flat_map(|op| op.iter_changes(&old[..], &new[..])) {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            let value: &str = change.value();
            text.push(sign);
            text.push_str(value);
            if !value.ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
    }
}

/// Compares two texts by their lines. The result depends on the texts alone and not on time limits,
/// because a machine compares the difference that it makes with the one that a person approved.
fn compared(old: &[&str], new: &[&str]) -> Vec<DiffOp> {
    let same = |(old, new): &(&&str, &&str)| old == new;
    let start = old.iter().zip(new).take_while(same).count();
    let ends = old[start..].iter().rev().zip(new[start..].iter().rev());
    let end = ends.take_while(same).count();
    let (old_len, new_len) = (old.len() - start - end, new.len() - start - end);
    if old_len + new_len <= MOST_COMPARED || old_len == 0 || new_len == 0 {
        return capture_diff_slices(Algorithm::Myers, old, new);
    }
    let equal = |old_index, new_index, len| DiffOp::Equal { old_index, new_index, len };
    let (old_index, new_index) = (start, start);
    let mut ops = vec![DiffOp::Replace { old_index, old_len, new_index, new_len }];
    if start > 0 {
        ops.insert(0, equal(0, 0, start));
    }
    if end > 0 {
        ops.push(equal(old.len() - end, new.len() - end, end));
    }
    ops
}

/// The old content; empty if there was no file, `None` if it is no text that can be shown.
fn old(workspace: &Workspace, step: &PathChange) -> Option<String> {
    match &step.before {
        Entry::File { size, .. } => read(workspace.handle(), &step.path, *size).and_then(readable),
        _ => Some(String::new()),
    }
}

/// The new content; empty if there will be no file, `None` if it is too long.
fn new_bytes(held: &Held<'_>, step: &PathChange) -> Option<Vec<u8>> {
    match (&step.after, &step.source) {
        (Entry::File { checksum, .. }, Source::Image) => held.image(checksum, LONGEST),
        (Entry::File { size, .. }, Source::Folder(folder)) => {
            read(folder.as_fd(), &step.path, *size)
        }
        _ => Some(Vec::new()),
    }
}

fn read(side: impl AsFd, path: &Path, size: u64) -> Option<Vec<u8>> {
    if size > LONGEST {
        return None;
    }
    let file = File::from(beneath::open(side.as_fd(), path, FILE).ok()?);
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= LONGEST).then_some(bytes)
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
