//! Classes of files: how the path of a file decides how dangerous it is to read or change it.

use super::{
    RuleError,
    class::CallClass,
    verdict::{Judgement, Verdict},
};
use crate::{failure::FailureCode, path::WorkspacePath};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap};

/// How a call uses a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The content or the metadata is read.
    Read,
    /// The file is created or changed.
    Write,
    /// The file is created by a compiler or packer, whose products may be executables.
    Output,
    /// The file is deleted or moved away.
    Remove,
}

/// How the finding about a file ends if the file is written, or taken away.
pub(super) const WRITES: &str = "write";
pub(super) const REMOVES: &str = "remove";

/// A class of files, as written in `rules/files.toml` or in a server's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileClass {
    pub id: String,
    pub verdict: Verdict,
    pub reason: String,
    /// The kinds of access that the class applies to.
    on: Vec<On>,
    /// Patterns for file names, such as `*.pem`.
    #[serde(default)]
    names: Vec<String>,
    /// Names of files that the class does not apply to although one of `names` matches them.
    #[serde(default)]
    except: Vec<String>,
    /// Names of directories. The class applies to the directory and everything in it.
    #[serde(default)]
    under: Vec<String>,
    /// Names of directories. The class applies to everything in them, but not to themselves.
    #[serde(default)]
    inside: Vec<String>,
    /// Paths in a directory of `inside` that the class does not apply to.
    #[serde(default)]
    open: Vec<String>,
    /// Parts of paths, such as `.config/gh`. The class applies to the path and everything in it.
    #[serde(default)]
    paths: Vec<String>,
    /// Whether the name `.*` also matches directories of the path.
    #[serde(default)]
    dot_anywhere: bool,
    #[serde(default)]
    examples: Examples,
    /// Whether the class comes with Atelier. The other classes are those of a server's owner.
    #[serde(skip)]
    builtin: bool,
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

/// All classes of files. They are indexed, so that judging a path costs a few hash lookups. A
/// number in an index is the position of a class in `classes`.
#[derive(Debug, Clone, Default)]
pub(super) struct FileRules {
    classes: Vec<FileClass>,
    /// Names without `*`.
    exact: HashMap<Box<str>, Vec<usize>>,
    /// Names of the form `*.extension`.
    extension: HashMap<Box<str>, Vec<usize>>,
    /// Names of the form `start*end`, as the start and the end.
    around: Vec<(Box<str>, Box<str>, usize)>,
    /// Names of the form `*part*end`, as the part and the end.
    within: Vec<(Box<str>, Box<str>, usize)>,
    /// Names with capital letters, which are compared with case: `BUILD` is a build file, and
    /// `build` an ordinary directory.
    cased: HashMap<Box<str>, Vec<usize>>,
    /// Names of the form `*part#*`, where `#` is a digit, as the part.
    versioned: Vec<(Box<str>, usize)>,
    /// Directories by their name.
    under: HashMap<Box<str>, Vec<usize>>,
    /// Directories whose content the class applies to, except what the class leaves open.
    inside: HashMap<Box<str>, Vec<usize>>,
    /// Directories by their extension, such as `*.app`. Such a bundle is a program, whatever is put
    /// into it.
    bundles: HashMap<Box<str>, Vec<usize>>,
    paths: Vec<(Box<str>, usize)>,
    /// Classes that match every name with a leading dot.
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
                    // In `*.so.#*`, the part is `.so.`, and a digit follows it.
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
            for name in &class.inside {
                rules.inside.entry(name.as_str().into()).or_default().push(at);
            }
            rules.paths.extend(class.paths.iter().map(|path| (path.as_str().into(), at)));
        }
        rules
    }

    pub(super) fn classes(&self) -> &[FileClass] {
        &self.classes
    }

    /// The classes for a place where nothing runs the files and every version is kept: those that
    /// deny, and those of the server's owner.
    pub(super) fn for_own_files(&self) -> Self {
        let holds = |class: &&FileClass| !class.builtin || class.verdict == Verdict::Deny;
        Self::new(self.classes.iter().filter(holds).cloned().collect())
    }

    /// Patterns for the paths of files that need approval to be read, such as `**/.env*`.
    pub(super) fn guarded_globs(&self) -> Vec<String> {
        let guarded =
            |class: &&FileClass| class.applies_to(Access::Read) && class.verdict > Verdict::Low;
        let mut globs = Vec::new();
        for class in self.classes.iter().filter(guarded) {
            globs.extend(class.names.iter().map(|name| format!("**/{name}")));
            globs.extend(class.under.iter().map(|name| format!("**/{name}/**")));
            globs.extend(class.inside.iter().map(|name| format!("**/{name}/*")));
            globs.extend(
                class.paths.iter().flat_map(|path| [format!("**/{path}"), format!("**/{path}/**")]),
            );
        }
        globs
    }

    /// Whether files of this kind need approval to be read; `None` if there is no such kind.
    pub(super) fn guards(&self, id: &str) -> Option<bool> {
        let class = self.classes.iter().find(|class| class.id == id)?;
        Some(class.applies_to(Access::Read) && class.verdict > Verdict::Low)
    }

    /// The strictest class of a path that applies to this access.
    pub(super) fn class(&self, relative: &str, access: Access) -> Option<&FileClass> {
        let mut strictest: Option<usize> = None;
        let mut found = |at: usize| {
            // Of two classes that are equally strict, the first in the table wins: `.env` is a
            // secret before it is a dot file.
            let weight = |at: usize| (self.classes[at].verdict, std::cmp::Reverse(at));
            if self.classes[at].applies_to(access)
                && strictest.is_none_or(|so_far| weight(at) > weight(so_far))
            {
                strictest = Some(at);
            }
        };
        let lower = lowered(relative);
        let mut names = lower.split('/').peekable();
        let mut behind = 0;
        while let Some(name) = names.next() {
            behind += name.len() + 1;
            if name.starts_with('.') {
                self.dots.iter().for_each(|at| found(*at));
            }
            let last = names.peek().is_none();
            for name in spellings(name) {
                for at in self.inside.get(name).into_iter().flatten().filter(|_| !last) {
                    if !self.classes[*at].leaves_open(&lower[behind..]) {
                        found(*at);
                    }
                }
                self.named(name, last, &mut found);
                // A backup has the same content as its original, so it has the same class for
                // reading.
                for original in originals(name) {
                    self.named(original, last, &mut |at| {
                        if self.classes[at].applies_to(Access::Read) {
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
            if lower.split_once(&**part).is_some_and(|(_, rest)| digit(rest) && !rest.contains('/'))
            {
                found(*at);
            }
        }
        if lower.contains('/') {
            self.paths
                .iter()
                .filter(|(path, _)| leads_through(&lower, path))
                .for_each(|(_, at)| found(*at));
        }
        if access == Access::Remove {
            self.paths
                .iter()
                .filter(|(path, _)| leads_to(&lower, path))
                .for_each(|(_, at)| found(*at));
        }
        strictest.map(|at| &self.classes[at])
    }

    /// The class of files that may be in this directory and that are recognised only by their path:
    /// for `.config`, the class of `.config/gh`.
    pub(super) fn leading_to(&self, relative: &str) -> Option<&FileClass> {
        let lower = lowered(relative);
        let here = self.paths.iter().filter(|(path, _)| leads_to(&lower, path));
        here.map(|(_, at)| &self.classes[*at]).find(|class| class.applies_to(Access::Read))
    }

    /// Reports every class that one name of a path has. `last` says whether it is the last name.
    fn named(&self, name: &str, last: bool, found: &mut impl FnMut(usize)) {
        self.under.get(name).into_iter().flatten().for_each(|at| found(*at));
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        self.bundles.get(extension).into_iter().flatten().for_each(|at| found(*at));
        if !last {
            return;
        }
        let mut found = |at: usize| {
            if !self.classes[at].except.iter().any(|except| except == name) {
                found(at);
            }
        };
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

    /// Judges one path by itself. `change_verdict` is the verdict for changes of an ordinary file.
    pub(super) fn judge(
        &self,
        path: &WorkspacePath,
        access: Access,
        change_verdict: Verdict,
    ) -> Judgement {
        let plain = match access {
            Access::Read => {
                Judgement::new(Verdict::Low, "file.read", "The file is only looked at.")
            }
            Access::Write | Access::Output => {
                Judgement::new(change_verdict, "file.write", "A file of the project is written.")
            }
            Access::Remove => {
                // The tool itself makes deleting High. Moving is not High.
                Judgement::new(
                    change_verdict,
                    "file.remove",
                    "A file of the project is taken away.",
                )
            }
        };
        // A change of an ordinary file is not a finding of its own, because the call itself is one.
        let plain = Judgement { class: CallClass::default(), ..plain };
        match self.class(path.relative(), access) {
            Some(class) => plain.stricter(class.judgement(access, path.as_str())),
            None => plain,
        }
    }
}

impl FileClass {
    /// The class as one that comes with Atelier.
    pub(super) fn into_builtin(self) -> Self {
        Self { builtin: true, ..self }
    }

    /// Whether the class applies to this access.
    fn applies_to(&self, access: Access) -> bool {
        match access {
            Access::Read => self.on.contains(&On::Read),
            Access::Write => self.on.contains(&On::Write),
            // A linker may write an executable. All other classes apply to it as well.
            Access::Output => self.on.contains(&On::Write) && self.id != "executable",
            Access::Remove => self.on.contains(&On::Remove),
        }
    }

    /// Whether a path below a directory of `inside` does not count.
    fn leaves_open(&self, path: &str) -> bool {
        self.open.iter().any(|open| {
            let rest = path.get(..open.len()).filter(|start| start.eq_ignore_ascii_case(open));
            rest.is_some_and(|_| matches!(path.as_bytes().get(open.len()), None | Some(b'/')))
        })
    }

    #[cfg(test)]
    pub(super) fn has_both_examples(&self) -> bool {
        !self.examples.matching.is_empty() && !self.examples.other.is_empty()
    }

    /// Checks the examples of this class without the other classes, so that they cannot hide a
    /// fault of this one. Returns how many examples there are.
    pub(super) fn check_examples(&self) -> Result<usize, RuleError> {
        let access = if self.on.contains(&On::Write) { Access::Write } else { Access::Read };
        let alone = FileRules::new(vec![self.clone()]);
        let matching = self.examples.matching.iter().map(|path| (path, true));
        let other = self.examples.other.iter().map(|path| (path, false));
        for (path, expected) in matching.chain(other) {
            if alone.class(path, access).is_some() != expected {
                let found = if expected { "not matched" } else { "matched" }.to_owned();
                return Err(RuleError::Example {
                    rule: self.id.clone(),
                    example: path.clone(),
                    found,
                });
            }
        }
        Ok(self.examples.matching.len() + self.examples.other.len())
    }

    /// The code of a denial: the file may not be used at all, or it may not be changed.
    pub(super) fn code(&self) -> FailureCode {
        match self.on.contains(&On::Read) {
            true => FailureCode::PathNotAllowed,
            false => FailureCode::WriteNotAllowed,
        }
    }

    /// The name of the finding that a call uses a file of this class. Reading, writing and removing
    /// the file are different findings, because a permission to read does not permit writing.
    pub(super) fn finding(&self, access: Access) -> String {
        let rule = self.rule();
        match access {
            Access::Read => rule,
            Access::Write | Access::Output => format!("{rule} {WRITES}"),
            Access::Remove => format!("{rule} {REMOVES}"),
        }
    }

    /// The rule that decides about files of this class.
    pub(super) fn rule(&self) -> String {
        format!("file.{}", self.id)
    }

    /// The judgement that this class gives. `shown` is how people see the path.
    pub(super) fn judgement(&self, access: Access, shown: &str) -> Judgement {
        let code = (self.verdict == Verdict::Deny).then(|| self.code());
        let reason = format!("{shown}: {}", self.reason);
        let mut judgement = Judgement::new(self.verdict, self.rule(), reason);
        if self.verdict.needs_approval() {
            judgement.class = CallClass::of(self.finding(access));
        }
        Judgement { code, ..judgement }
    }
}

/// Whether a path contains `part` as whole names: it is `part` or something beneath it. For a
/// `part` of the form `a/**/b`, whether the path ends in `b` somewhere beneath `a`.
fn leads_through(path: &str, part: &str) -> bool {
    let (part, name) = match part.split_once("/**/") {
        Some((part, name)) => (part, Some(name)),
        None => (part, None),
    };
    path.match_indices(part).any(|(start, _)| {
        let (before, behind) = (&path[..start], &path[start + part.len()..]);
        (before.is_empty() || before.ends_with('/'))
            && (behind.is_empty() || behind.starts_with('/'))
            && name.is_none_or(|name| {
                behind.strip_suffix(name).is_some_and(|between| between.ends_with('/'))
            })
    })
}

/// Whether `part` may continue a path: `.config` leads to `.config/gh`. For a `part` of the form
/// `a/**/b`, everything beneath `a` leads to it.
fn leads_to(path: &str, part: &str) -> bool {
    if let Some((above, _)) = part.split_once("/**/") {
        return leads_through(path, above);
    }
    part.match_indices('/').any(|(end, _)| {
        let before = path.strip_suffix(&part[..end]);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    })
}

/// The path in lower case, without the characters that some file systems drop from names
/// (`.g\u{200c}it`), with `/` in place of the `\` of Windows, and with plain letters in place of
/// full-width letters.
fn lowered(path: &str) -> Cow<'_, str> {
    if path.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase() && byte != b'\\') {
        return Cow::Borrowed(path);
    }
    let ignored =
        |c: &char| !matches!(c, '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}');
    let plain = |c: char| match c {
        '\\' => '/',
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xfee0).unwrap_or(c),
        c => c,
    };
    Cow::Owned(path.chars().filter(ignored).map(plain).flat_map(char::to_lowercase).collect())
}

/// Endings that people and editors give to the backup of a file.
const BACKUPS: [&str; 8] = [".bak", ".old", ".orig", ".save", ".backup", ".swp", ".swo", "~"];

/// The names that this name may be a backup of. vim also puts a dot in front of the name of a
/// backup, and further backups have numbers: `id_rsa.bak2`, `id_rsa.1`. git writes one side of a
/// conflict to `name~branch`, and cp makes `name.~1~`.
fn originals(name: &str) -> impl Iterator<Item = &str> {
    let unnumbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let original = BACKUPS.iter().find_map(|ending| unnumbered.strip_suffix(ending));
    let dotted = original.and_then(|name| name.strip_prefix('.'));
    let rotated = unnumbered.strip_suffix('.').filter(|_| unnumbered.len() < name.len());
    let side = name.split_once('~').map(|(side, _)| side.strip_suffix('.').unwrap_or(side));
    [original, dotted, rotated, side].into_iter().flatten()
}

/// The names that other programs may read this name as: the name itself, the name without the
/// ending or the stream that Windows drops, and what follows a line break.
fn spellings(name: &str) -> impl Iterator<Item = &str> {
    let dropped = |c: char| c == '.' || c.is_whitespace();
    let trimmed = name.trim_end_matches(dropped);
    let stream = name.split(':').next().unwrap_or(name).trim_end_matches(dropped);
    let behind = trimmed.rsplit(char::is_control).next().unwrap_or(trimmed);
    let others =
        [(trimmed, trimmed != name), (stream, stream != trimmed), (behind, behind != trimmed)];
    std::iter::once(name).chain(others.into_iter().filter(|(_, differs)| *differs).map(|(n, _)| n))
}
