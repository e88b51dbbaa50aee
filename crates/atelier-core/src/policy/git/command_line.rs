//! A git command line, read as git reads it: which words are options and their values, which are
//! revisions or paths, and which file contents the command can show.

use std::collections::BTreeSet;

use super::{
    options::{self, Effect, Group},
    silent::is_silent,
    words::{as_commits, is_pathspec, object_ids, object_names},
};

/// The file contents that a git command line can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// No contents: names of branches, commit messages, or files written to their own places.
    Nothing,
    /// No contents. But if a word names a folder of a commit and not the commit itself, files come
    /// to other places, where nothing protects them.
    NothingOfCommits,
    /// Contents of whole commits or trees. Pathspecs can exclude files from it.
    Filterable,
    /// Possibly any contents of the revisions that the command names, or of the whole history.
    Whole,
    /// Possibly anything, because a part of the command line is not known here.
    Unknown,
}

/// The places that a command takes contents from, once the meanings of its words are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only from the files that it names as `revision:path`.
    NamedFiles,
    /// From the index and the working tree.
    Index,
    /// From commits as well.
    History,
}

/// The meaning of a word of a command line, according to git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// One or more commits: a revision or a range.
    Commits,
    /// The file at this path from the repository's top, in a commit or in the index.
    File(String),
    /// A folder in a commit.
    Tree,
    /// An object without a known path.
    Object,
    /// Git does not know the word, so it can only be a path.
    Unknown,
}

/// A git command line, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line<'a> {
    args: &'a [String],
    /// The position of the subcommand.
    at: usize,
    shown: Shown,
    reach: Reach,
    /// The words that git may take for revisions, with their positions.
    words: Vec<(usize, &'a str)>,
    /// The position of `--`.
    dashes: Option<usize>,
    compares_files: bool,
    /// Git reads these words in ways that are not known here, so they only serve to find ids of
    /// objects.
    loose: bool,
}

/// The places that a command takes contents from, by its subcommand and options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Index,
    /// From commits if it names some.
    IfNamed,
    History,
}

/// The position of the subcommand, and whether no option before it changes the meaning of
/// pathspecs.
pub fn subcommand(args: &[String]) -> Option<(usize, bool)> {
    const HARMLESS: [&str; 6] =
        ["-C", "-P", "-p", "--no-pager", "--paginate", "--no-optional-locks"];
    let (mut at, mut plain) = (0, true);
    while let Some(arg) = args.get(at).filter(|arg| arg.starts_with('-')) {
        plain &= HARMLESS.contains(&arg.as_str());
        at += if matches!(arg.as_str(), "-C" | "--attr-source") { 2 } else { 1 };
    }
    (at < args.len()).then_some((at, plain))
}

/// Whether the command compares two files like `diff`, without a repository.
pub fn compares_files(args: &[String]) -> bool {
    Line::read(args).is_some_and(|line| line.compares_files)
}

impl<'a> Line<'a> {
    /// Reads the arguments of git. `None` if there is no subcommand.
    pub fn read(args: &'a [String]) -> Option<Self> {
        let (at, plain) = subcommand(args)?;
        let subcommand = args[at].as_str();
        let first = args.get(at + 1).map(String::as_str);
        let mut line = match subcommand {
            "checkout" | "reset" | "restore" if is_silent(&args[at..]) => {
                Self::loose(args, at, Shown::NothingOfCommits)
            }
            _ if is_silent(&args[at..]) => Self::loose(args, at, Shown::Nothing),
            "log" => Self::exact(args, at, options::LOG, Reach::History),
            "whatchanged" => {
                Self::exact(args, at, options::LOG, Reach::History).at_least(Shown::Filterable)
            }
            "reflog" => match Self::exact(args, at, options::LOG, Reach::History).shown {
                Shown::Nothing => Self::loose(args, at, Shown::Nothing),
                _ => Self::loose(args, at, Shown::Whole),
            },
            "show" => {
                Self::exact(args, at, options::SHOW, Reach::History).at_least(Shown::Filterable)
            }
            "diff" => {
                let mut line = Self::exact(args, at, options::DIFF, Reach::IfNamed)
                    .at_least(Shown::Filterable);
                // Files of the working tree that are named were rated by their paths, and those in
                // folders are hidden from the command.
                if line.compares_files && line.shown != Shown::Unknown {
                    line.shown = Shown::Nothing;
                }
                line
            }
            "status" => {
                Self::exact(args, at, options::STATUS, Reach::Index).at_least(Shown::Filterable)
            }
            "grep" => Self::grep(args, at),
            "ls-files" if !args[at..].iter().any(|arg| arg.starts_with("--with")) => {
                let words = Vec::new();
                Self {
                    loose: false,
                    reach: Reach::Index,
                    words,
                    ..Self::loose(args, at, Shown::Filterable)
                }
            }
            "cat-file" if matches!(first, Some("-t" | "-e" | "-s")) => {
                Self::loose(args, at, Shown::Nothing)
            }
            _ => Self::loose(args, at, Shown::Whole),
        };
        if !plain && line.shown == Shown::Filterable {
            line.shown = Shown::Whole;
        }
        Some(line)
    }

    pub fn shown(&self) -> Shown {
        self.shown
    }

    /// The words that git has to be asked about: revisions, or for some commands only ids of
    /// objects.
    pub fn words(&self) -> Vec<&'a str> {
        match (self.loose, self.reach) {
            (true, _) => self.loose_words().iter().flat_map(|arg| object_ids(arg)).collect(),
            (false, Reach::Index) => Vec::new(),
            (false, _) => self.words.iter().map(|(_, word)| *word).collect(),
        }
    }

    /// The words that could name an object, if git reads the words of the command in ways that are
    /// not known here.
    pub fn names(&self) -> BTreeSet<&'a str> {
        let words = self.loose_words().iter().filter(|_| self.loose);
        words.flat_map(|word| object_names(word)).collect()
    }

    /// The arguments in which a command may find objects.
    fn loose_words(&self) -> &'a [String] {
        let end = match self.shown {
            // These commands find only paths behind `--`.
            Shown::NothingOfCommits => self.dashes.unwrap_or(self.args.len()),
            _ => self.args.len(),
        };
        &self.args[self.at + 1..end]
    }

    /// Whether the words are only ids of objects, or abbreviations of them.
    pub fn is_loose(&self) -> bool {
        self.loose
    }

    /// The words that are paths, once it is known which are revisions.
    pub fn paths(&self, meanings: &[Meaning]) -> impl Iterator<Item = &'a str> {
        let revisions = if self.loose { self.words.len() } else { revisions(meanings).len() };
        let before = self.words.iter().skip(revisions).map(|(_, word)| *word);
        let behind = self.dashes.map_or(&[][..], |dashes| &self.args[dashes + 1..]);
        before.chain(behind.iter().map(String::as_str))
    }

    /// Whether the command is `git diff`, which compares files without the repository if one lies
    /// outside.
    pub fn is_diff(&self) -> bool {
        self.args[self.at] == "diff"
    }

    /// The places that contents come from.
    pub fn scope(&self, meanings: &[Meaning]) -> Scope {
        let revisions = revisions(meanings);
        let named =
            !revisions.is_empty() && revisions.iter().all(|it| matches!(it, Meaning::File(_)));
        // `git log` passes over files and shows commits. These three commands show only the named
        // files.
        let only_named = matches!(self.args[self.at].as_str(), "diff" | "grep" | "show");
        match (self.reach, revisions.is_empty()) {
            _ if named && only_named && !self.loose => Scope::NamedFiles,
            (Reach::Index, _) | (Reach::IfNamed, true) => Scope::Index,
            _ => Scope::History,
        }
    }

    /// The first word that git would have to refuse, because it is neither a revision nor a path.
    pub fn stray(&self, meanings: &[Meaning], existing: &BTreeSet<&str>) -> Option<&'a str> {
        if self.loose || self.reach == Reach::Index {
            return None;
        }
        let mut unknown = self.words.iter().skip(revisions(meanings).len()).map(|(_, word)| *word);
        match self.dashes {
            Some(_) => unknown.next(),
            None => unknown.find(|word| !existing.contains(word) && !is_pathspec(word)),
        }
    }

    /// The arguments with every path behind `--`, and with pathspecs that exclude these paths.
    /// `None` if nothing has to be added.
    pub(super) fn pinned(
        &self,
        meanings: &[Meaning],
        excluded: &BTreeSet<String>,
    ) -> Option<Vec<String>> {
        let revisions = if self.reach == Reach::Index { 0 } else { revisions(meanings).len() };
        let paths = self.words.get(revisions..).unwrap_or_default();
        let moves = self.dashes.is_none() && !paths.is_empty();
        if self.loose || (excluded.is_empty() && !moves) {
            return None;
        }
        let end = self.dashes.unwrap_or(self.args.len());
        let is_moved = |at: usize| moves && paths.iter().any(|(path, _)| *path == at);
        let kept = (0..end).filter(|at| !is_moved(*at));
        let mut args: Vec<String> = kept.map(|at| self.args[at].clone()).collect();
        let has_paths = match self.dashes {
            Some(dashes) => dashes + 1 < self.args.len(),
            None => moves,
        };
        // Without these options, a pathspec would also hide the commits that touch only excluded
        // files.
        if self.args[self.at] == "log" && !has_paths {
            args.splice(self.at + 1..=self.at, ["--full-history", "--sparse"].map(str::to_owned));
        }
        args.push("--".to_owned());
        if moves {
            args.extend(paths.iter().map(|(_, path)| (*path).to_owned()));
        }
        let behind = self.dashes.map_or(&[][..], |dashes| &self.args[dashes + 1..]);
        args.extend(behind.iter().cloned());
        args.extend(excluded.iter().map(|path| exclude(path)));
        Some(args)
    }

    /// The arguments with pathspecs that exclude these paths, for a command that names something
    /// that does not exist. If it does by the time the command runs, it must be a commit: pathspecs
    /// exclude nothing from a file. `None` if nothing has to be changed.
    pub(super) fn excluding(
        &self,
        meanings: &[Meaning],
        existing: &BTreeSet<&str>,
        excluded: &BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if self.loose {
            return None;
        }
        let mut args = self.args.to_vec();
        for (at, word) in self.words.iter().skip(revisions(meanings).len()) {
            let is_path = existing.contains(word) || is_pathspec(word);
            if self.dashes.is_some() || !is_path {
                args[*at] = as_commits(word);
            }
        }
        if self.dashes.is_none() && !excluded.is_empty() {
            args.push("--".to_owned());
        }
        args.extend(excluded.iter().map(|path| exclude(path)));
        Some(args)
    }

    fn loose(args: &'a [String], at: usize, shown: Shown) -> Self {
        let dashes = args.iter().position(|arg| arg == "--").filter(|dashes| *dashes > at);
        let words = args.iter().enumerate().take(dashes.unwrap_or(args.len())).skip(at + 1);
        let words =
            words.filter(|(_, arg)| !arg.starts_with('-')).map(|(at, arg)| (at, arg.as_str()));
        Self {
            args,
            at,
            shown,
            reach: Reach::History,
            words: words.collect(),
            dashes,
            compares_files: false,
            loose: true,
        }
    }

    fn exact(args: &'a [String], at: usize, groups: &[Group], reach: Reach) -> Self {
        let mut line = Self {
            loose: false,
            reach,
            words: Vec::new(),
            ..Self::loose(args, at, Shown::Nothing)
        };
        line.dashes = None;
        let mut effect = Some(Effect::Quiet);
        let mut follows = false;
        let mut index = at + 1;
        while let Some(arg) = args.get(index).map(String::as_str) {
            if arg == "--" {
                line.dashes = Some(index);
                break;
            }
            if !arg.starts_with('-') || arg.len() == 1 {
                line.words.push((index, arg));
                index += 1;
                continue;
            }
            let found = options::look_up(groups, arg);
            // By itself it prints nothing. With contents, it prints those of another file.
            let follow = arg == "--follow" && found.is_some();
            follows |= follow;
            if !follow {
                effect = effect.zip(found).map(|(effect, (other, _))| effect.max(other));
            }
            if matches!(arg, "--cached" | "--staged") {
                line.reach = Reach::History;
            }
            line.compares_files |= arg == "--no-index" && found.is_some();
            index += if found.is_some_and(|(_, value)| value) { 2 } else { 1 };
        }
        let prints = effect != Some(Effect::Quiet) || args[at] != "log";
        line.shown = shown_by(effect.map(|it| if follows && prints { Effect::Whole } else { it }));
        line
    }

    /// `git grep` takes options only in front of its first word, which is the pattern unless `-e`
    /// gave one.
    fn grep(args: &'a [String], at: usize) -> Self {
        let mut line = Self {
            loose: false,
            reach: Reach::IfNamed,
            words: Vec::new(),
            ..Self::loose(args, at, Shown::Filterable)
        };
        line.dashes = None;
        let (mut effect, mut index, mut has_pattern) = (Some(Effect::Filtered), at + 1, false);
        while let Some(arg) = args.get(index).filter(|arg| arg.starts_with('-') && *arg != "--") {
            let bundle = || {
                let letters = arg[1..].chars().all(|letter| options::GREP_LETTERS.contains(letter));
                (arg.len() > 1 && letters).then_some((Effect::Filtered, false))
            };
            let found = options::look_up(options::GREP, arg).or_else(bundle);
            has_pattern |= arg.starts_with("-e");
            effect = effect.zip(found).map(|(effect, (other, _))| effect.max(other));
            index += if found.is_some_and(|(_, value)| value) { 2 } else { 1 };
        }
        line.shown = shown_by(effect);
        index += usize::from(!has_pattern);
        for (index, arg) in args.iter().enumerate().skip(index) {
            match arg.as_str() {
                "--" => {
                    line.dashes = Some(index);
                    break;
                }
                late if late.starts_with('-') => line.shown = Shown::Unknown,
                word => line.words.push((index, word)),
            }
        }
        line
    }

    fn at_least(mut self, least: Shown) -> Self {
        if self.shown == Shown::Nothing {
            self.shown = least;
        }
        self
    }
}

/// A pathspec that excludes a path from the repository's top.
fn exclude(path: &str) -> String {
    format!(":(exclude,top,literal){path}")
}

fn shown_by(effect: Option<Effect>) -> Shown {
    match effect {
        Some(Effect::Quiet) => Shown::Nothing,
        Some(Effect::Filtered) => Shown::Filterable,
        Some(Effect::Whole) => Shown::Whole,
        None => Shown::Unknown,
    }
}

/// The meanings up to the first word that git does not know: git takes that word and all words
/// after it for paths.
pub(super) fn revisions(meanings: &[Meaning]) -> &[Meaning] {
    let known = meanings.iter().take_while(|meaning| **meaning != Meaning::Unknown).count();
    &meanings[..known]
}

/// A path that `git checkout` would overwrite with what the index or a commit holds. Its words
/// alone do not tell, because they could also name a branch.
pub fn overwritten_path<'a>(args: &'a [String], existing: &BTreeSet<&str>) -> Option<&'a str> {
    const BRANCHING: [&str; 6] = ["-b", "-B", "--orphan", "-d", "--detach", "-t"];
    let at = args.iter().position(|arg| arg == "checkout")?;
    let args = &args[at + 1..];
    let is_branching =
        |arg: &String| BRANCHING.contains(&arg.as_str()) || arg.starts_with("--track");
    if args.iter().any(is_branching) {
        return None;
    }
    let words = args.iter().take_while(|arg| *arg != "--").map(String::as_str);
    words.filter(|word| !word.starts_with('-')).find(|word| existing.contains(word))
}

#[cfg(test)]
mod tests;
