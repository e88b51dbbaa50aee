//! The files that a patch would write. The command names only the patch, so each file in the patch
//! is judged as if its own call wrote it.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use atelier_core::FailureCode;
use atelier_core::path::{MAX_PATH_BYTES, WorkspacePath};
use atelier_core::policy::Access;
use atelier_core::policy::call::{self, ToolCall};
use atelier_core::policy::class::CallClass;
use atelier_core::policy::verdict::{Judgement, Verdict};
use rustix::io::Errno;

use super::Tools;
use crate::error::Error;
use crate::read::Part;
use crate::walk::Kind;
use crate::workspace::{relative, to_workspace_path};

impl Tools<'_> {
    pub(super) fn judge_patches(&self, command: &call::Command, judgement: Judgement) -> Judgement {
        if !applies_patches(command) {
            return judgement;
        }
        let call = ToolCall::from(command.clone());
        let used = self.policy.paths(&call, self.roots);
        let (mut patches, mut found) = (Vec::new(), Vec::new());
        // The folders in which the names of a patch may start. The options of a command and its
        // folder are put in front of the names.
        let mut folders = BTreeSet::from([String::new()]);
        for used in used.into_iter().filter(|used| used.access == Access::Read) {
            match self.workspace.read(&used.path, Part::Whole) {
                Ok(patch) => patches.push(patch.bytes),
                Err(Error::NotFound { .. } | Error::NotAFile { .. }) => {
                    let raw = WorkspacePath::parse(&used.raw, self.roots);
                    folders.extend(
                        [Some(&used.path), raw.as_ref().ok()].into_iter().flatten().map(text),
                    );
                    self.read_mails(command, &used.path, &mut patches, &mut found);
                }
                Err(error) => found.push(unread(&error.to_string())),
            }
        }
        if lists_patches(command) {
            found.push(unread("the file lists others"));
        }
        found.extend(
            patches.iter().map(|patch| self.judge_patch(&String::from_utf8_lossy(patch), &folders)),
        );
        found.into_iter().fold(judgement, |judgement, found| {
            let found = found.about(judgement.subject());
            judgement.stricter(found)
        })
    }

    /// `git am` takes a folder of mails, each of them a patch.
    fn read_mails(
        &self,
        command: &call::Command,
        folder: &WorkspacePath,
        patches: &mut Vec<Vec<u8>>,
        found: &mut Vec<Judgement>,
    ) {
        if command.command != "git" || !command.args.iter().any(|arg| arg == "am") {
            return;
        }
        for below in ["", "cur", "new"] {
            let Ok(dir) = to_workspace_path(&relative(folder).join(below), "") else { continue };
            let Ok(names) = self.workspace.entries(&dir) else { continue };
            for (name, _) in names.into_iter().filter(|(_, kind)| *kind != Kind::Directory) {
                let mail = to_workspace_path(&relative(&dir).join(name), "");
                match mail.and_then(|mail| self.workspace.read(&mail, Part::Whole)) {
                    Ok(mail) if patches.len() < MOST_MAILS => patches.push(mail.bytes),
                    Ok(_) => return found.push(unread("there are too many mails")),
                    Err(error) => found.push(unread(&error.to_string())),
                }
            }
        }
    }

    fn judge_patch(&self, patch: &str, folders: &BTreeSet<String>) -> Judgement {
        // Everybody who approves a patch knows that it changes ordinary files.
        let changes = Judgement::new(Verdict::Medium, "patch", "It changes files of the project.");
        let mut worst = Judgement { class: CallClass::default(), ..changes };
        let mut left = MOST_NAMES;
        let mut is_header = false;
        let mut places = HashMap::new();
        for line in patch.lines() {
            // A header continues in the next line if that line is indented.
            let goes_on = is_header && line.starts_with([' ', '\t']);
            if goes_on || is_encoded(line) {
                worst = worst.stricter(unread("it is encoded"));
            }
            is_header = line.get(..8).is_some_and(|name| name.eq_ignore_ascii_case("content-"));
            if line.contains(SERIES) {
                worst = worst.stricter(unread("it lists other patches"));
            }
            let line = bare(line);
            if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
                let reason = "Git takes the content of a binary file from its history if it is \
                              there, and the patch only names it.";
                worst = worst.stricter(Judgement::new(Verdict::High, "binary", reason));
            }
            if let Some(mode) =
                line.strip_prefix("new file mode ").or(line.strip_prefix("new mode "))
                && mode.trim() != "100644"
            {
                let reason = "The patch creates a link or an executable file.";
                worst = worst.stricter(Judgement::new(Verdict::High, "mode", reason));
            }
            for name in names(line) {
                let Some(name) = name else {
                    worst = worst.stricter(unread(UNREADABLE));
                    continue;
                };
                // The command may strip any number of folders, so the file is one of these.
                let strips = name.match_indices('/').map(|(slash, _)| slash + 1);
                for (strip, at) in [0].into_iter().chain(strips).enumerate() {
                    for folder in folders {
                        if left == 0 {
                            return worst.stricter(unread("it names too many files"));
                        }
                        left -= 1;
                        let name = name[at..].trim_start_matches('/');
                        let found = self.judge_name(folder, name, &mut places);
                        // By default, git strips one folder, and patch none. With any other number,
                        // a person decides what is meant.
                        worst = worst.stricter(match found.verdict == Verdict::Deny && strip > 1 {
                            true if found.rule == HIDDEN => unread(MAY_BE_HIDDEN),
                            _ => found,
                        });
                    }
                }
            }
        }
        worst
    }

    /// Judges a write to one name, by the name itself and by where the links in its folder lead.
    /// `places` remembers the folders of a patch.
    fn judge_name(&self, folder: &str, name: &str, places: &mut Places) -> Judgement {
        if name.is_empty() {
            return Judgement::new(Verdict::Low, "patch", "It names no file.");
        }
        let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        // A name that is no path for us may be one for the program that applies the patch.
        let Ok(path) = WorkspacePath::parse(&path, self.roots) else { return unread(UNREADABLE) };
        // Git copies from the index, which has every file, also the hidden ones.
        if self.is_hidden(relative(&path)) {
            return hidden();
        }
        let named = self.policy.judge_resolved(&path, Access::Write, false);
        let (Some(above), Some(file)) = (relative(&path).parent(), path.file_name()) else {
            return named;
        };
        let place =
            places.entry(above.to_owned()).or_insert_with_key(|above| self.real_folder(above));
        match place.as_ref().map(|place| to_workspace_path(&place.join(file), path.as_str())) {
            Some(Ok(real)) if real == path => named,
            Some(Ok(real)) if self.is_hidden(relative(&real)) => hidden(),
            Some(Ok(real)) => {
                named.stricter(self.policy.judge_resolved(&real, Access::Write, false))
            }
            _ => named.stricter(unread("a link leads out of the workspace")),
        }
    }

    fn is_hidden(&self, path: &Path) -> bool {
        self.workspace.ignored().map_or(true, |ignored| ignored.hides(path, false))
    }

    /// Where a folder lies once links are followed; `None` if it is outside the workspace. Folders
    /// that do not exist yet lie where their names say.
    fn real_folder(&self, folder: &Path) -> Option<PathBuf> {
        match self.resolve(folder, Access::Write) {
            Ok(real) => Some(real),
            Err(Errno::XDEV | Errno::LOOP) => None,
            Err(_) => match (folder.parent(), folder.file_name()) {
                (Some(above), Some(name)) => Some(self.real_folder(above)?.join(name)),
                _ => None,
            },
        }
    }
}

/// Folders that a patch names, and where they lie.
type Places = HashMap<PathBuf, Option<PathBuf>>;

/// A patch with more names is not examined any further.
const MOST_NAMES: usize = 200_000;
/// A folder with more mails is not read.
const MOST_MAILS: usize = 1000;
/// Two names of the greatest length, with every byte escaped as four.
const LONGEST_LINE: usize = 2 * 4 * (MAX_PATH_BYTES + 1);
/// A line with more blanks than this is not read, because each blank may end a name.
const MOST_BLANKS: usize = 64;

/// The first line of a list of patches, which `git am` recognises by itself.
const SERIES: &str = "This series applies on GIT commit";

const UNREADABLE: &str = "the name of a file in it cannot be read";

/// The rule of paths that `.atelierignore` names.
const HIDDEN: &str = "path.ignored";

const MAY_BE_HIDDEN: &str = "it may name files that .atelierignore names";

/// Hidden files do not exist for agents, so the reason names none.
fn hidden() -> Judgement {
    let reason = "Not found: the patch names a file that does not exist here.";
    Judgement::denied(FailureCode::NotFound, HIDDEN, reason.to_owned())
}

fn unread(why: &str) -> Judgement {
    Judgement::new(
        Verdict::High,
        "unread",
        format!("It is unknown what the patch would write: {why}."),
    )
}

/// Whether the command may apply a patch. A wrong yes only costs an examination.
fn applies_patches(command: &call::Command) -> bool {
    let sub = || command.args.iter().any(|arg| arg == "apply" || arg == "am");
    command.command == "patch" || (command.command == "git" && sub())
}

/// The path as text, empty for the root.
fn text(path: &WorkspacePath) -> String {
    relative(path).to_string_lossy().into_owned()
}

/// Whether the files that the command names are lists of patches.
fn lists_patches(command: &call::Command) -> bool {
    command.args.iter().any(|arg| arg.contains("stgit-series"))
}

/// The line without what GNU patch ignores before a header: indentation and quote marks of an
/// e-mail.
fn bare(line: &str) -> &str {
    let mut line = line.trim_start_matches([' ', '\t', 'X']);
    while let Some(rest) = line.strip_prefix("- ") {
        line = rest;
    }
    line
}

/// Whether an e-mail says that the rest has to be decoded first, which `git am` does: from an
/// encoding, from another character set, or from lines that were broken for display.
fn is_encoded(line: &str) -> bool {
    const PLAIN: [&str; 3] = ["7bit", "8bit", "binary"];
    const TYPES: [&str; 3] =
        ["text/plain", "text/plain;charset=utf-8", "text/plain;charset=us-ascii"];
    let Some((name, value)) = line.split_once(':') else { return false };
    let value: String = value.chars().filter(|c| !c.is_whitespace() && *c != '"').collect();
    let is_one_of = |known: &[&str]| known.contains(&value.to_ascii_lowercase().as_str());
    match name.trim_end().to_ascii_lowercase().as_str() {
        "content-transfer-encoding" => !is_one_of(&PLAIN),
        "content-type" => !is_one_of(&TYPES),
        _ => false,
    }
}

/// The names that a line of a patch may contain, in any format, because git and GNU patch disagree
/// about where a name ends. `None` stands for a name that cannot be read.
fn names(line: &str) -> Vec<Option<Cow<'_, str>>> {
    const BEFORE: [&str; 11] = [
        "+++ ",
        "--- ",
        "*** ",
        "rename from ",
        "rename old ",
        "rename to ",
        "rename new ",
        "copy from ",
        "copy to ",
        "Index:",
        "diff --git ",
    ];
    let Some(rest) = BEFORE.iter().find_map(|before| line.strip_prefix(before)) else {
        return Vec::new();
    };
    if rest.len() > LONGEST_LINE || blanks(rest).count() > MOST_BLANKS {
        return vec![None];
    }
    let both = line.starts_with("diff --git ");
    let seconds = blanks(rest).filter(|_| both).map(|at| &rest[at..]);
    [rest].into_iter().chain(seconds).flat_map(|text| beginnings(text.trim())).collect()
}

/// The names that a text may begin with.
fn beginnings(text: &str) -> Vec<Option<Cow<'_, str>>> {
    if text.starts_with('"') {
        return vec![unquoted(text).map(Cow::from)];
    }
    // A tab separates the name from the time; for GNU patch, a blank does as well. For git, a tab
    // may be part of the name, so the text after it counts as a name too.
    let ends = blanks(text).chain([text.len()]);
    let name = |end: usize| match text[..end].contains('\t') {
        true => Cow::from(text[..end].replace('\t', "/")),
        false => Cow::from(&text[..end]),
    };
    ends.map(|end| Some(name(end))).collect()
}

fn blanks(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices([' ', '\t']).map(|(at, _)| at)
}

/// The quoted name at the beginning of the text, as git and GNU patch read it. The text after it is
/// not part of the name.
fn unquoted(text: &str) -> Option<String> {
    let mut bytes = text.bytes().skip(1);
    let mut name = Vec::new();
    loop {
        let byte = match bytes.next()? {
            b'"' => return Some(String::from_utf8_lossy(&name).into_owned()),
            b'\\' => match bytes.next()? {
                b'a' => 0x07,
                b'b' => 0x08,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 0x0b,
                b'f' => 0x0c,
                b'r' => b'\r',
                plain @ (b'"' | b'\\') => plain,
                high @ b'0'..=b'3' => {
                    let mut digit = || bytes.next().filter(|digit| matches!(digit, b'0'..=b'7'));
                    ((high - b'0') << 6) | ((digit()? - b'0') << 3) | (digit()? - b'0')
                }
                _ => return None,
            },
            plain => plain,
        };
        name.push(byte);
    }
}
