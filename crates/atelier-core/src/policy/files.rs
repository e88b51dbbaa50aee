//! What the name of a file says about reading or changing it.

use super::{
    RuleError,
    verdict::{Judgement, Verdict},
};
use crate::{failure::FailureCode, path::WorkspacePath};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap};

/// What is done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Content or metadata is looked at.
    Read,
    /// Made, or changed.
    Write,
    /// Made by a compiler or packer, whose products may well be executables.
    Output,
    /// Taken away: deleted, or moved elsewhere.
    Remove,
}

/// One kind of file, as the data has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileClass {
    pub id: String,
    pub verdict: Verdict,
    pub reason: String,
    on: Vec<On>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    under: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    /// `.*` counts for directories on the way as well.
    #[serde(default)]
    dot_anywhere: bool,
    #[serde(default)]
    examples: Examples,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum On {
    Read,
    Write,
    Remove,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Examples {
    #[serde(rename = "match")]
    matching: Vec<String>,
    other: Vec<String>,
}

/// All kinds, indexed so that judging a path costs a few hash look-ups.
#[derive(Debug, Clone, Default)]
pub(super) struct FileRules {
    classes: Vec<FileClass>,
    exact: HashMap<Box<str>, Vec<usize>>,
    extension: HashMap<Box<str>, Vec<usize>>,
    /// A `*` anywhere else: what must be before it, and what behind.
    around: Vec<(Box<str>, Box<str>, usize)>,
    /// `*part*end`.
    within: Vec<(Box<str>, Box<str>, usize)>,
    /// Names in the data with capitals: compared as they are, because `build` is an ordinary directory.
    cased: HashMap<Box<str>, Vec<usize>>,
    versioned: Vec<(Box<str>, usize)>,
    under: HashMap<Box<str>, Vec<usize>>,
    /// Directories by their extension, `*.app`: a bundle is a program, whatever is put into it.
    bundles: HashMap<Box<str>, Vec<usize>>,
    paths: Vec<(Box<str>, usize)>,
    dots: Vec<usize>,
}

impl FileRules {
    pub(super) fn new(classes: Vec<FileClass>) -> Self {
        let mut rules = Self { classes, ..Self::default() };
        for (at, class) in rules.classes.iter().enumerate() {
            for name in &class.names {
                match name.split_once('*') {
                    None if name.contains(|c: char| c.is_ascii_uppercase()) => {
                        rules.cased.entry(name.as_str().into()).or_default().push(at);
                    }
                    None => rules.exact.entry(name.as_str().into()).or_default().push(at),
                    Some((".", "")) if class.dot_anywhere => rules.dots.push(at),
                    Some(("", end)) if end.rfind('.') == Some(0) => {
                        rules.extension.entry(end[1..].into()).or_default().push(at);
                    }
                    // `*.so.#*`: the part between the stars, with a digit behind it.
                    Some(("", end)) if end.ends_with("#*") => {
                        rules.versioned.push((end.trim_end_matches("#*").into(), at));
                    }
                    Some(("", end)) if end.contains('*') => {
                        let (part, end) = end.split_once('*').unwrap_or((end, ""));
                        rules.within.push((part.into(), end.into(), at));
                    }
                    Some((start, end)) => rules.around.push((start.into(), end.into(), at)),
                }
            }
            for name in &class.under {
                let (index, name) = match name.strip_prefix("*.") {
                    Some(extension) => (&mut rules.bundles, extension),
                    None => (&mut rules.under, name.as_str()),
                };
                index.entry(name.into()).or_default().push(at);
            }
            rules.paths.extend(class.paths.iter().map(|path| (path.as_str().into(), at)));
        }
        rules
    }

    pub(super) fn classes(&self) -> &[FileClass] {
        &self.classes
    }

    /// Every kind that is more than looked at when it is read, as patterns over whole paths: `**/.env*`.
    pub(super) fn guarded_globs(&self) -> Vec<String> {
        let guarded = |class: &&FileClass| class.counts(Access::Read) && class.verdict > Verdict::Low;
        let mut globs = Vec::new();
        for class in self.classes.iter().filter(guarded) {
            globs.extend(class.names.iter().map(|name| format!("**/{name}")));
            globs.extend(class.under.iter().map(|name| format!("**/{name}/**")));
            globs.extend(class.paths.iter().flat_map(|path| [format!("**/{path}"), format!("**/{path}/**")]));
        }
        globs
    }

    /// The strictest kind that the path is of, for what is done with it.
    pub(super) fn class(&self, relative: &str, access: Access) -> Option<&FileClass> {
        let mut strictest: Option<usize> = None;
        let mut found = |at: usize| {
            // Of two that are as strict, the one that is first in the table: `.env` is a secret before it is a dot file.
            let weight = |at: usize| (self.classes[at].verdict, std::cmp::Reverse(at));
            if self.classes[at].counts(access) && strictest.is_none_or(|so_far| weight(at) > weight(so_far)) {
                strictest = Some(at);
            }
        };
        let lower = lowered(relative);
        let mut names = lower.split('/').peekable();
        while let Some(name) = names.next() {
            if name.starts_with('.') {
                self.dots.iter().for_each(|at| found(*at));
            }
            let last = names.peek().is_none();
            for name in spellings(name) {
                self.named(name, last, &mut found);
                // A backup of what is asked about when it is read holds the same.
                for original in originals(name) {
                    self.named(original, last, &mut |at| {
                        if self.classes[at].counts(Access::Read) {
                            found(at);
                        }
                    });
                }
            }
        }
        let last = relative.rsplit(['/', '\\']).next().unwrap_or(relative);
        self.cased.get(last).into_iter().flatten().for_each(|at| found(*at));
        for (part, at) in &self.versioned {
            let digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
            if lower.split_once(&**part).is_some_and(|(_, rest)| digit(rest) && !rest.contains('/')) {
                found(*at);
            }
        }
        if lower.contains('/') {
            self.paths.iter().filter(|(path, _)| leads_through(&lower, path)).for_each(|(_, at)| found(*at));
        }
        if access == Access::Remove {
            self.paths.iter().filter(|(path, _)| leads_to(&lower, path)).for_each(|(_, at)| found(*at));
        }
        strictest.map(|at| &self.classes[at])
    }

    /// The kind of what may lie beneath and is known by where it lies: `.config/gh` beneath `.config`.
    pub(super) fn leading_to(&self, relative: &str) -> Option<&FileClass> {
        let lower = lowered(relative);
        let here = self.paths.iter().filter(|(path, _)| leads_to(&lower, path));
        here.map(|(_, at)| &self.classes[*at]).find(|class| class.counts(Access::Read))
    }

    /// Every kind that one name of a path is of, the last or one on the way.
    fn named(&self, name: &str, last: bool, found: &mut impl FnMut(usize)) {
        self.under.get(name).into_iter().flatten().for_each(|at| found(*at));
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        self.bundles.get(extension).into_iter().flatten().for_each(|at| found(*at));
        if !last {
            return;
        }
        self.exact.get(name).into_iter().flatten().for_each(|at| found(*at));
        self.extension.get(extension).into_iter().flatten().for_each(|at| found(*at));
        for (part, end, at) in &self.within {
            if name.strip_suffix(&**end).is_some_and(|name| name.contains(&**part)) {
                found(*at);
            }
        }
        for (start, end, at) in &self.around {
            let long_enough = name.len() >= start.len() + end.len();
            if long_enough && name.starts_with(&**start) && name.ends_with(&**end) {
                found(*at);
            }
        }
    }

    /// The judgement of one path, on its own.
    pub(super) fn judge(&self, path: &WorkspacePath, access: Access, changes: Verdict) -> Judgement {
        let plain = match access {
            Access::Read => Judgement::new(Verdict::Low, "file.read", "The file is only looked at."),
            Access::Write | Access::Output => {
                Judgement::new(changes, "file.write", "A file of the project is written.")
            }
            Access::Remove => {
                // Deleting is High by its tool; moving is not.
                Judgement::new(changes, "file.remove", "A file of the project is taken away.")
            }
        };
        match self.class(path.relative(), access) {
            Some(class) => plain.stricter(class.judgement(path.as_str())),
            None => plain,
        }
    }
}

impl FileClass {
    fn counts(&self, access: Access) -> bool {
        match access {
            Access::Read => self.on.contains(&On::Read),
            Access::Write => self.on.contains(&On::Write),
            // A linker may write an executable; nobody may write into .git.
            Access::Output => self.on.contains(&On::Write) && self.id != "executable",
            Access::Remove => self.on.contains(&On::Remove),
        }
    }

    #[cfg(test)]
    pub(super) fn has_both_examples(&self) -> bool {
        !self.examples.matching.is_empty() && !self.examples.other.is_empty()
    }

    /// Judged alone, so that another class cannot hide a fault of this one.
    pub(super) fn check_examples(&self) -> Result<usize, RuleError> {
        let access = if self.on.contains(&On::Write) { Access::Write } else { Access::Read };
        let alone = FileRules::new(vec![self.clone()]);
        let matching = self.examples.matching.iter().map(|path| (path, true));
        let other = self.examples.other.iter().map(|path| (path, false));
        for (path, expected) in matching.chain(other) {
            if alone.class(path, access).is_some() != expected {
                let found = if expected { "not matched" } else { "matched" }.to_owned();
                return Err(RuleError::Example { rule: self.id.clone(), example: path.clone(), found });
            }
        }
        Ok(self.examples.matching.len() + self.examples.other.len())
    }

    /// The stable code of a refusal: for the whole file, or for changing it.
    pub(super) fn code(&self) -> FailureCode {
        match self.on.contains(&On::Read) {
            true => FailureCode::PathNotAllowed,
            false => FailureCode::WriteNotAllowed,
        }
    }

    pub(super) fn judgement(&self, shown: &str) -> Judgement {
        let code = (self.verdict == Verdict::Deny).then(|| self.code());
        let reason = format!("{shown}: {}", self.reason);
        Judgement { code, ..Judgement::new(self.verdict, format!("file.{}", self.id), reason) }
    }
}

/// Whether a path is `part` or beneath it, wherever that is; of `a/**/b`, whether it is a `b` somewhere beneath an `a`.
fn leads_through(path: &str, part: &str) -> bool {
    let (part, name) = match part.split_once("/**/") {
        Some((part, name)) => (part, Some(name)),
        None => (part, None),
    };
    path.match_indices(part).any(|(start, _)| {
        let (before, behind) = (&path[..start], &path[start + part.len()..]);
        (before.is_empty() || before.ends_with('/'))
            && (behind.is_empty() || behind.starts_with('/'))
            && name.is_none_or(|name| behind.strip_suffix(name).is_some_and(|between| between.ends_with('/')))
    })
}

/// Whether a path ends where `part` begins: `.config` of `.config/gh`, and all that is beneath `a` of `a/**/b`.
fn leads_to(path: &str, part: &str) -> bool {
    if let Some((above, _)) = part.split_once("/**/") {
        return leads_through(path, above);
    }
    part.match_indices('/').any(|(end, _)| {
        let before = path.strip_suffix(&part[..end]);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    })
}

/// Lower case, without the characters that some file systems drop from names (`.g\u{200c}it`), with `/` for the `\`
/// of Windows, and with plain letters for full-width ones that look the same.
fn lowered(path: &str) -> Cow<'_, str> {
    if path.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase() && byte != b'\\') {
        return Cow::Borrowed(path);
    }
    let ignored = |c: &char| !matches!(c, '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}');
    let plain = |c: char| match c {
        '\\' => '/',
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0).unwrap_or(c),
        c => c,
    };
    Cow::Owned(path.chars().filter(ignored).map(plain).flat_map(char::to_lowercase).collect())
}

/// What people and editors put behind the name of a file that they keep.
const BACKUPS: [&str; 8] = [".bak", ".old", ".orig", ".save", ".backup", ".swp", ".swo", "~"];

/// What a name is the backup of; vim puts a dot in front as well.
fn originals(name: &str) -> impl Iterator<Item = &str> {
    let original = BACKUPS.iter().find_map(|ending| name.strip_suffix(ending));
    original.into_iter().chain(original.and_then(|name| name.strip_prefix('.')))
}

/// A name as written, as Windows would shorten it, and as a list with one name a line would break it.
fn spellings(name: &str) -> impl Iterator<Item = &str> {
    let dropped = |c: char| c == '.' || c.is_whitespace();
    let trimmed = name.trim_end_matches(dropped);
    let stream = name.split(':').next().unwrap_or(name).trim_end_matches(dropped);
    let behind = trimmed.rsplit(char::is_control).next().unwrap_or(trimmed);
    let others = [(trimmed, trimmed != name), (stream, stream != trimmed), (behind, behind != trimmed)];
    std::iter::once(name).chain(others.into_iter().filter(|(_, differs)| *differs).map(|(n, _)| n))
}
