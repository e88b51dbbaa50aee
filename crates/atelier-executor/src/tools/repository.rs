//! One repository, as git itself finds it from where a command runs, and what git says about it.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use atelier_core::policy::call;
use atelier_core::policy::git::{Line, Meaning, ProtectedPaths, named_file};

use super::Tools;
use crate::cancel::Cancel;
use crate::process::{GitAnswer, History, KnownRepository, Runner, SETTINGS, SecretRules, folder};
use crate::workspace::relative;

type Answer<T> = Result<T, &'static str>;

const OUTSIDE: &str = "it is unknown where its files are";
const TOO_LARGE: &str = "the repository is too large to look through";

/// Printed by git between the answers to two words.
const SEPARATOR: &str = "--is-inside-git-dir";

/// More revisions than this are not named one by one.
const MAX_NAMED: usize = 2000;

/// More ids than this are not remembered.
const MAX_COMMITS: usize = 100_000;

/// Files and folders of a repository in which references are.
pub(super) const REFERENCES: [&str; 13] = [
    "HEAD",
    "packed-refs",
    "refs",
    "reftable",
    "logs",
    "worktrees",
    "FETCH_HEAD",
    "ORIG_HEAD",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
    "BISECT_HEAD",
];

/// Files that cut a history off, or lead to objects of another repository.
pub(super) const BORDERS: [&str; 4] =
    ["shallow", "info/grafts", "objects/info/alternates", "commondir"];

/// Lists every path that ever existed, by the commit that added it. A list of objects would not be
/// enough: content that moves keeps its id and would be listed under one path only. All options of
/// the log are given here, so that no configuration changes the list.
pub(super) const ADDED: &[&str] = &[
    "log",
    "--root",
    "-m",
    "--diff-filter=A",
    "--no-renames",
    "--no-relative",
    "--name-only",
    "-z",
    "--format=",
    "--ignore-missing",
];

/// Everything that a revision can be reached from.
pub(super) const STARTS: &[&str] = &[
    "--all",
    "--reflog",
    "FETCH_HEAD",
    "ORIG_HEAD",
    "MERGE_HEAD",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
    "BISECT_HEAD",
];

/// A word of a command, and the ids that git resolves it to; `None` if it does not know the word.
#[derive(Debug)]
pub(super) struct Asked<'w> {
    word: &'w str,
    /// Whether the word counts as the beginning of an object's id, and as nothing else.
    is_id: bool,
    ids: Option<Vec<String>>,
}

pub(super) struct Repository<'a> {
    tools: &'a Tools<'a>,
    runner: &'a Runner,
    command: &'a call::Command,
    known: KnownRepository,
    /// The folders with the references and the index; `None` if they are outside the workspace.
    folders: Option<(PathBuf, PathBuf)>,
}

impl<'a> Repository<'a> {
    /// Finds the repository, and asks git about the words of the command line. `None` if there is
    /// no repository.
    pub(super) fn open<'w>(
        tools: &'a Tools<'a>,
        runner: &'a Runner,
        command: &'a call::Command,
        line: Option<&Line<'w>>,
    ) -> Answer<Option<(Self, Vec<Asked<'w>>)>> {
        let workspace = tools.workspace;
        let ignored = workspace.ignored().map_err(|_| ".atelierignore cannot be read")?;
        let rules = SecretRules { ignored, secrets: tools.policy.guarded_globs() };
        let found = workspace.discover(&folder(relative(&command.cwd), &command.args));
        let settings = found.as_ref().and_then(|git_dir| workspace.fingerprint(git_dir, &SETTINGS));
        let is_loose = line.is_some_and(Line::is_loose);
        let words = line.map(Line::words).unwrap_or_default();
        let names = line.map(Line::names).unwrap_or_default();
        let names = known_names(tools, runner, command, names)?;
        let all: Vec<(&str, bool)> = words
            .into_iter()
            .map(|word| (word, is_loose))
            .chain(names.into_iter().map(|name| (name, false)))
            .collect();
        // The repository is known from an earlier command, and git has nothing new to resolve.
        if let Some(git_dir) = found.as_ref().filter(|_| all.is_empty() && settings.is_some())
            && let Some(known) = runner.known_repository(&workspace.root().join(git_dir), &rules)
            && known.settings == settings
        {
            let folders = Some((git_dir.clone(), git_dir.clone()));
            return Ok(Some((Self { tools, runner, command, known, folders }, Vec::new())));
        }
        let asked: Vec<String> = all
            .iter()
            .flat_map(|(word, is_id)| match is_id {
                true => [format!("--disambiguate={word}"), SEPARATOR.to_owned()],
                false => [(*word).to_owned(), SEPARATOR.to_owned()],
            })
            .collect();
        let mut args = vec![
            "rev-parse",
            "--revs-only",
            "--path-format=absolute",
            "--absolute-git-dir",
            "--git-common-dir",
            "--show-toplevel",
        ];
        args.extend(asked.iter().map(String::as_str));
        let answer = ask(tools, runner, command, &args)?;
        let mut lines = answer.stdout.lines();
        let (git_dir, common, top) = match (lines.next(), lines.next(), lines.next()) {
            (None, ..) if !answer.success => return Ok(None),
            (Some(git_dir), Some(common), Some(top)) => (git_dir, common, top),
            _ => return Err(OUTSIDE),
        };
        let inside =
            |path: &str| Path::new(path).strip_prefix(workspace.root()).map(Path::to_owned).ok();
        let top = inside(top).ok_or(OUTSIDE)?;
        let folders = inside(common).zip(inside(git_dir));
        // Remembers only a repository that can be found again without asking git.
        let settings = settings.filter(|_| found.is_some() && found == inside(git_dir));
        let known =
            runner.known_repository(Path::new(git_dir), &rules).filter(|known| known.top == top);
        let known = known.map(|known| KnownRepository { settings, ..known });
        let known = known.unwrap_or_else(|| KnownRepository {
            git_dir: git_dir.into(),
            top,
            rules,
            settings,
            index: None,
            history: History::default(),
        });
        let mut ids: Vec<Vec<String>> = Vec::new();
        let mut current = Vec::new();
        for line in lines {
            match line {
                "true" | "false" => ids.push(std::mem::take(&mut current)),
                id => current.push(id.trim_start_matches('^').to_owned()),
            }
        }
        let mut ids = ids.into_iter();
        let asked = all.into_iter();
        let asked = asked.map(|(word, is_id)| Asked { word, is_id, ids: ids.next() }).collect();
        Ok(Some((Self { tools, runner, command, known, folders }, asked)))
    }

    pub(super) fn top(&self) -> &Path {
        &self.known.top
    }

    pub(super) fn command(&self) -> &call::Command {
        self.command
    }

    pub(super) fn remember(self) {
        self.runner.remember_repository(self.known);
    }

    /// The meanings of the words.
    pub(super) fn meanings(
        &mut self,
        line: &Line<'_>,
        asked: Vec<Asked<'_>>,
    ) -> Answer<Vec<Meaning>> {
        self.forget_if_borders_moved();
        let ids = asked.iter().filter(|asked| named_file(asked.word).is_none());
        let ids: BTreeSet<String> =
            ids.flat_map(|asked| asked.ids.iter().flatten().cloned()).collect();
        let commits = self.commits(ids)?;
        let mut meanings = Vec::new();
        for asked in &asked {
            meanings.push(match (&asked.ids, named_file(asked.word)) {
                // No object has such an id, so the word names nothing.
                (None, _) if asked.is_id => Meaning::Commits,
                // Git knew the word a moment ago.
                (None, _) if line.is_loose() => Meaning::Object,
                (None, _) => Meaning::Unknown,
                (Some(ids), Some((revision, path))) => self.file(revision, path, ids)?,
                (Some(ids), None) if ids.iter().all(|id| commits.contains(id)) => Meaning::Commits,
                (Some(_), None) => Meaning::Object,
            });
        }
        Ok(meanings)
    }

    /// The ids that lead to commits. Their history is examined as well.
    fn commits(&mut self, ids: BTreeSet<String>) -> Answer<HashSet<String>> {
        let (known, new): (Vec<String>, Vec<String>) =
            ids.into_iter().partition(|id| self.known.history.commits.contains(id));
        let mut commits: HashSet<String> = known.into_iter().collect();
        let peeled: Vec<String> = new.iter().map(|id| format!("{id}^{{commit}}")).collect();
        if !peeled.is_empty() {
            let args = peeled.iter().flat_map(|id| [id.as_str(), SEPARATOR]);
            let args: Vec<&str> = ["rev-parse", "--revs-only"].into_iter().chain(args).collect();
            let answer = self.ask(&args)?;
            // Git stops at the first id that is no commit.
            let proven =
                answer.stdout.lines().filter(|line| matches!(*line, "true" | "false")).count();
            let proven: Vec<String> = new.into_iter().take(proven).collect();
            self.scan(&proven)?;
            commits.extend(proven);
        }
        Ok(commits)
    }

    /// The meaning of `revision:path`, proven by a listing of that revision.
    fn file(&self, revision: &str, path: &str, ids: &[String]) -> Answer<Meaning> {
        let literal = format!(":(top,literal){path}");
        let relative = path.starts_with("./") || path.starts_with("../");
        let args = match revision {
            "" if relative => return Ok(Meaning::Object),
            "" => vec!["ls-files", "-s", "-z", "--full-name", "--", &literal],
            _ if relative => vec!["ls-tree", "--full-name", "-z", revision, path],
            _ => vec!["ls-tree", "--full-tree", "-z", revision, path.trim_end_matches('/')],
        };
        let answer = self.ask(&args)?;
        let [id] = ids else { return Ok(Meaning::Object) };
        let meaning = |entry: &str| {
            let (about, found) = entry.split_once('\t')?;
            let same = relative || found == path.trim_end_matches('/');
            match about.split(' ').collect::<Vec<_>>().as_slice() {
                [_, "tree", tree] if tree == id && same => Some(Meaning::Tree),
                [_, "blob", blob] if blob == id && same => Some(Meaning::File(found.to_owned())),
                // An entry of the index. In a conflict, it has several versions of the file.
                [_, blob, stage] if blob == id && same && stage.len() == 1 => {
                    Some(Meaning::File(found.to_owned()))
                }
                _ => None,
            }
        };
        Ok(answer.stdout.split('\0').find_map(meaning).unwrap_or(Meaning::Object))
    }

    /// Protected files of the index.
    pub(super) fn index(&mut self) -> Answer<ProtectedPaths> {
        let fingerprint = self.folders.as_ref();
        let fingerprint = fingerprint
            .and_then(|(_, git_dir)| self.tools.workspace.fingerprint(git_dir, &["index"]));
        if let Some((known, protected)) = &self.known.index
            && Some(*known) == fingerprint
        {
            return Ok(protected.clone());
        }
        let index = self.ask(&["ls-files", "-z", "--full-name", ":/"])?;
        if !index.success {
            return Err(TOO_LARGE);
        }
        let mut protected = ProtectedPaths::default();
        index.stdout.split('\0').for_each(|path| self.classify(path, &mut protected));
        self.known.index = fingerprint.map(|fingerprint| (fingerprint, protected.clone()));
        Ok(protected)
    }

    /// Protected files of everything that references lead to, and of the commits that the command
    /// names.
    pub(super) fn history(&mut self) -> Answer<ProtectedPaths> {
        self.scan(&[])?;
        Ok(self.known.history.protected.clone())
    }

    /// Examines what is new since the last time, and the history of these commits.
    fn scan(&mut self, named: &[String]) -> Answer<()> {
        let references = self.fingerprint(&REFERENCES);
        if references.is_some() && references == self.known.history.references && named.is_empty() {
            return Ok(());
        }
        let tips = match references.is_some() && references == self.known.history.references {
            true => self.known.history.tips.clone(),
            false => {
                let list = ["rev-list", "--no-walk=unsorted", "--ignore-missing"];
                let listed = self.ask(&[&list, STARTS, &["--"]].concat())?;
                if !listed.success {
                    return Err(TOO_LARGE);
                }
                listed.stdout.lines().map(str::to_owned).collect()
            }
        };
        let history = &self.known.history;
        let new = tips.iter().chain(named).filter(|id| !history.commits.contains(*id));
        let new: BTreeSet<&str> = new.map(String::as_str).collect();
        let few = !history.tips.is_empty() && new.len() + history.tips.len() <= MAX_NAMED;
        let mut args = ADDED.to_vec();
        if few {
            args.extend(&new);
            args.push("--not");
            args.extend(history.tips.iter().map(String::as_str));
        } else {
            args.extend(STARTS);
            args.extend(named.iter().map(String::as_str));
        }
        args.push("--");
        if !new.is_empty() {
            let added = self.ask(&args)?;
            if !added.success {
                return Err(TOO_LARGE);
            }
            let mut found = ProtectedPaths::default();
            added.stdout.split('\0').for_each(|path| self.classify(path, &mut found));
            let new: Vec<String> = new.into_iter().map(str::to_owned).collect();
            let history = &mut self.known.history;
            history.protected.extend(found);
            history.commits.extend(new);
            if history.commits.len() > MAX_COMMITS {
                history.commits = tips.iter().cloned().collect();
            }
        }
        self.known.history.tips = tips;
        self.known.history.references = references;
        Ok(())
    }

    /// If the borders of a history have changed, earlier findings are about another history.
    fn forget_if_borders_moved(&mut self) {
        let borders = self.fingerprint(&BORDERS);
        if self.known.history.borders != borders || borders.is_none() {
            self.known.history = History { borders, ..History::default() };
        }
    }

    fn fingerprint(&self, names: &[&str]) -> Option<u64> {
        let (common, git_dir) = self.folders.as_ref()?;
        let workspace = self.tools.workspace;
        let (common, own) =
            (workspace.fingerprint(common, names)?, workspace.fingerprint(git_dir, names)?);
        Some(common.wrapping_mul(31).wrapping_add(own))
    }

    fn ask(&self, args: &[&str]) -> Answer<GitAnswer> {
        ask(self.tools, self.runner, self.command, args)
    }

    pub(super) fn classify(&self, path: &str, protected: &mut ProtectedPaths) {
        if path.is_empty() {
            return;
        }
        // The path is checked as the file lies in the workspace, and as it would lie in a copy of
        // the repository.
        let here = self.known.top.join(path);
        let ignored = &self.known.rules.ignored;
        if ignored.hides(&here, false) || ignored.hides(Path::new(path), false) {
            protected.hidden.insert(path.to_owned());
        } else if self.tools.is_secret(&here) {
            protected.secret.insert(path.to_owned());
        }
    }
}

/// Those of the names that git knows, in whatever way.
fn known_names<'w>(
    tools: &Tools<'_>,
    runner: &Runner,
    command: &call::Command,
    names: BTreeSet<&'w str>,
) -> Answer<Vec<&'w str>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    // This command skips names that it does not know. No reference matches the pattern, so it adds
    // no names of its own.
    let list = ["name-rev", "--refs=refs/none/of/them", "--"];
    let args: Vec<&str> = list.into_iter().chain(names.iter().copied()).collect();
    let answer = ask(tools, runner, command, &args)?;
    let known: HashSet<&str> =
        answer.stdout.lines().filter_map(|line| line.strip_suffix(" undefined")).collect();
    Ok(names.into_iter().filter(|name| known.contains(name)).collect())
}

fn ask(
    tools: &Tools<'_>,
    runner: &Runner,
    command: &call::Command,
    args: &[&str],
) -> Answer<GitAnswer> {
    let cancel = Cancel::new().map_err(|_| "git cannot be asked")?;
    runner.ask_git(tools.workspace, command, args, &cancel).map_err(|_| "git cannot be asked")
}
