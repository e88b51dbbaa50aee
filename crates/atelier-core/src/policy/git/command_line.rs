//! Which file contents a git command line can show, read from its words.

use std::collections::BTreeSet;

/// Which file contents a git command line can show.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// No contents: names of branches, commit messages, or files written to their own places.
    Nothing,
    /// Contents of whole commits or trees. Pathspecs can exclude files from it.
    Filterable(Scope<'a>),
    /// The contents of these `revision:path` only.
    Named(Vec<&'a str>),
    /// Possibly any contents. Every command line that is not known here counts as this.
    Anything(Scope<'a>),
}

/// Where a command takes contents from.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Scope<'a> {
    /// From commits, and not only from what is tracked now.
    pub history: bool,
    /// The revisions that the command names. The two sides of a range are listed separately.
    pub revisions: Vec<&'a str>,
}

/// Subcommands that print no file contents, and write files only to their own places.
const SILENT: &[&str] = &[
    "add",
    "am",
    "annotate",
    "apply",
    "bisect",
    "blame",
    "branch",
    "check-attr",
    "check-ignore",
    "checkout",
    "cherry",
    "cherry-pick",
    "clean",
    "clone",
    "config",
    "count-objects",
    "describe",
    "fetch",
    "for-each-ref",
    "init",
    "ls-remote",
    "ls-tree",
    "merge",
    "merge-base",
    "mv",
    "name-rev",
    "pull",
    "push",
    "rebase",
    "remote",
    "reset",
    "restore",
    "rev-list",
    "rev-parse",
    "revert",
    "rm",
    "shortlog",
    "show-branch",
    "show-ref",
    "stage",
    "submodule",
    "switch",
    "tag",
    "var",
    "version",
];

/// Options of `log`, `show` and `diff` that print no file contents. Git's abbreviations and bundles
/// of short options are not listed, so they count as unknown.
const QUIET: &[&str] = &[
    "--abbrev-commit",
    "--all",
    "--all-match",
    "--author-date-order",
    "--boundary",
    "--branches",
    "--cherry-mark",
    "--cherry-pick",
    "--clear-decorations",
    "--color",
    "--date-order",
    "--decorate",
    "--default-prefix",
    "--exit-code",
    "--extended-regexp",
    "--first-parent",
    "--fixed-strings",
    "--full-index",
    "--graph",
    "--invert-grep",
    "--left-right",
    "--merges",
    "--no-abbrev-commit",
    "--no-color",
    "--no-decorate",
    "--no-ext-diff",
    "--no-merges",
    "--no-notes",
    "--no-patch",
    "--no-prefix",
    "--no-renames",
    "--no-textconv",
    "--no-walk",
    "--oneline",
    "--pretty",
    "--quiet",
    "--reflog",
    "--regexp-ignore-case",
    "--relative-date",
    "--remotes",
    "--reverse",
    "--simplify-by-decoration",
    "--source",
    "--tags",
    "--topo-order",
    "--walk-reflogs",
    "-E",
    "-F",
    "-g",
    "-i",
    "-q",
    "-s",
    "-z",
];

/// Options that print no file contents and take a value, behind `=` or as the next word.
const QUIET_WITH_VALUE: &[&str] = &[
    "--after",
    "--author",
    "--before",
    "--committer",
    "--date",
    "--grep",
    "--max-count",
    "--max-parents",
    "--min-parents",
    "--since",
    "--skip",
    "--until",
    "-n",
];

/// Options that print no file contents and take a value only behind `=`.
const QUIET_EQUALS: &[&str] = &[
    "--abbrev",
    "--branches",
    "--color",
    "--decorate",
    "--format",
    "--pretty",
    "--remotes",
    "--tags",
];

/// Options that print file contents, but only of files that the pathspecs let through.
const CONTENT: &[&str] = &[
    "--binary",
    "--cc",
    "--check",
    "--color-moved",
    "--color-words",
    "--compact-summary",
    "--cumulative",
    "--dirstat",
    "--find-renames",
    "--function-context",
    "--histogram",
    "--ignore-all-space",
    "--ignore-blank-lines",
    "--ignore-cr-at-eol",
    "--ignore-space-at-eol",
    "--ignore-space-change",
    "--ignore-submodules",
    "--indent-heuristic",
    "--irreversible-delete",
    "--minimal",
    "--name-only",
    "--name-status",
    "--no-indent-heuristic",
    "--numstat",
    "--patch",
    "--patch-with-raw",
    "--patch-with-stat",
    "--patience",
    "--raw",
    "--shortstat",
    "--stat",
    "--summary",
    "--text",
    "--word-diff",
    "-D",
    "-M",
    "-R",
    "-W",
    "-a",
    "-b",
    "-c",
    "-m",
    "-p",
    "-u",
    "-w",
];

/// Options that print file contents within the pathspecs and take a value behind `=`.
const CONTENT_EQUALS: &[&str] = &[
    "--color-moved",
    "--diff-algorithm",
    "--diff-filter",
    "--diff-merges",
    "--find-renames",
    "--ignore-submodules",
    "--inter-hunk-context",
    "--stat",
    "--unified",
    "--word-diff",
];

/// Options of `status` that keep to the pathspecs.
const STATUS: &[&str] = &[
    "--ahead-behind",
    "--branch",
    "--column",
    "--find-renames",
    "--ignore-submodules",
    "--ignored",
    "--long",
    "--no-ahead-behind",
    "--no-renames",
    "--porcelain",
    "--renames",
    "--short",
    "--show-stash",
    "--untracked-files",
    "-b",
    "-s",
    "-sb",
    "-u",
    "-uall",
    "-unormal",
    "-uno",
    "-z",
];

/// Options of `grep` that keep to the pathspecs.
const GREP: &[&str] = &[
    "--basic-regexp",
    "--break",
    "--cached",
    "--column",
    "--count",
    "--extended-regexp",
    "--files-with-matches",
    "--files-without-match",
    "--fixed-strings",
    "--full-name",
    "--heading",
    "--ignore-case",
    "--invert-match",
    "--line-number",
    "--name-only",
    "--no-color",
    "--only-matching",
    "--perl-regexp",
    "--quiet",
    "--show-function",
    "--text",
    "--word-regexp",
    "-E",
    "-F",
    "-G",
    "-H",
    "-I",
    "-L",
    "-P",
    "-W",
    "-a",
    "-c",
    "-h",
    "-i",
    "-in",
    "-l",
    "-n",
    "-ni",
    "-o",
    "-p",
    "-q",
    "-r",
    "-v",
    "-w",
    "-z",
];

/// Options of `grep` that keep to the pathspecs and take a value, behind `=` or as the next word.
const GREP_WITH_VALUE: &[&str] =
    &["--after-context", "--before-context", "--context", "--max-count", "-A", "-B", "-C", "-m"];

/// The position of the subcommand, and whether no option before it changes the meaning of
/// pathspecs.
pub fn subcommand(args: &[String]) -> Option<(usize, bool)> {
    const HARMLESS: [&str; 6] =
        ["-C", "-P", "-p", "--no-pager", "--paginate", "--no-optional-locks"];
    let (mut at, mut plain) = (0, true);
    while let Some(arg) = args.get(at).filter(|arg| arg.starts_with('-')) {
        plain &= HARMLESS.contains(&arg.as_str());
        at += if arg == "-C" { 2 } else { 1 };
    }
    (at < args.len()).then_some((at, plain))
}

/// Whether the command compares two files like `diff`, without a repository.
pub fn compares_files(args: &[String]) -> bool {
    subcommand(args).is_some_and(|(at, _)| {
        let mut options = args[at..].iter().take_while(|arg| *arg != "--");
        args[at] == "diff" && options.any(|arg| arg == "--no-index")
    })
}

impl<'a> Shown<'a> {
    /// Reads a command line. `existing` holds the words that name a file or folder where git runs,
    /// because git takes those for paths and not for revisions.
    pub fn by(args: &'a [String], existing: &BTreeSet<&str>) -> Self {
        let Some((at, plain)) = subcommand(args) else { return Self::Nothing };
        let line = Line::read(&args[at], &args[at + 1..], existing);
        let subcommand = args[at].as_str();
        let scope = Scope { history: true, revisions: line.revisions() };
        match subcommand {
            _ if SILENT.contains(&subcommand) => Self::Nothing,
            "commit" if !line.options.iter().any(|option| is_verbose(option)) => Self::Nothing,
            "stash" => match args.get(at + 1).map(String::as_str) {
                None | Some("push" | "save" | "pop" | "apply" | "drop" | "clear" | "branch") => {
                    Self::Nothing
                }
                Some("list") if args.len() == at + 2 => Self::Nothing,
                _ => Self::Anything(scope),
            },
            "reflog" if line.has_only(Options::Quiet) => Self::Nothing,
            "worktree" if args.get(at + 1).is_some_and(|what| what != "add") => Self::Nothing,
            // Compares files of the working tree: those that are named were rated by their paths,
            // and those in folders are hidden from the command.
            "diff" if line.options.contains(&"--no-index") => Self::Nothing,
            "log" if line.has_only(Options::Quiet) => Self::Nothing,
            "show" | "diff" if !line.named.is_empty() && line.has_only(Options::Content) => {
                match line.only_named {
                    true => Self::Named(line.named),
                    false => Self::Anything(scope),
                }
            }
            "log" | "show" | "whatchanged" if plain && line.has_only(Options::Content) => {
                Self::Filterable(scope)
            }
            "diff" if plain && line.has_only(Options::Content) => {
                let staged = |option: &&str| matches!(*option, "--cached" | "--staged");
                let staged = line.options.iter().any(staged);
                let history = staged || !scope.revisions.is_empty();
                Self::Filterable(Scope { history, ..scope })
            }
            "grep" if plain && line.named.is_empty() && line.has_only(Options::Grep) => {
                Self::Filterable(scope)
            }
            "status" if plain && line.has_only(Options::Status) => {
                Self::Filterable(Scope::default())
            }
            "ls-files" if plain => Self::Filterable(Scope::default()),
            _ => Self::Anything(scope),
        }
    }
}

/// The arguments with pathspecs that exclude these paths, which start at the repository's top.
pub(super) fn excluding(
    args: &[String],
    excluded: &BTreeSet<String>,
    existing: &BTreeSet<&str>,
) -> Vec<String> {
    let mut args = args.to_vec();
    let Some((at, _)) = subcommand(&args) else { return args };
    let dashes = args.iter().position(|arg| arg == "--");
    if args[at] == "log" {
        let has_paths = match dashes {
            Some(dashes) => dashes + 1 < args.len(),
            None => args[at + 1..].iter().any(|word| existing.contains(word.as_str())),
        };
        // Without these options, a pathspec would also hide the commits that touch only excluded
        // files.
        if !has_paths {
            args.splice(at + 1..=at, ["--full-history", "--sparse"].map(str::to_owned));
        }
    }
    args.extend(excluded.iter().map(|path| format!(":(exclude,top,literal){path}")));
    args
}

/// A set of options whose effect on the output is known.
#[derive(Clone, Copy)]
enum Options {
    /// They print no file contents.
    Quiet,
    /// They print file contents within the pathspecs.
    Content,
    Grep,
    Status,
}

/// The words behind a subcommand.
struct Line<'a> {
    options: Vec<&'a str>,
    /// Words before `--` that are neither options nor files.
    words: Vec<&'a str>,
    /// Words of the form `revision:path`.
    named: Vec<&'a str>,
    only_named: bool,
}

impl<'a> Line<'a> {
    fn read(subcommand: &str, args: &'a [String], existing: &BTreeSet<&str>) -> Self {
        let is_grep = subcommand == "grep";
        let with_value = if is_grep { GREP_WITH_VALUE } else { QUIET_WITH_VALUE };
        let dashes = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        let (mut options, mut words, mut named) = (Vec::new(), Vec::new(), Vec::new());
        let mut files = args.len().saturating_sub(dashes + 1);
        // The first word of grep is its pattern.
        let mut is_pattern = is_grep;
        let mut at = 0;
        while at < dashes {
            let arg = args[at].as_str();
            at += 1;
            if arg == "-e" && is_grep {
                is_pattern = false;
                at += 1;
            } else if arg.starts_with('-') {
                options.push(arg);
                at += usize::from(with_value.contains(&arg));
            } else if std::mem::take(&mut is_pattern) {
                // A pattern shows nothing by itself.
            } else if path_in(arg).is_some() && !existing.contains(arg) {
                named.push(arg);
            } else if existing.contains(arg) {
                files += usize::from(subcommand != "diff");
            } else {
                words.push(arg);
            }
        }
        Self { only_named: words.is_empty() && files == 0, options, words, named }
    }

    fn revisions(&self) -> Vec<&'a str> {
        let parts = self.words.iter().flat_map(|word| word.split(".."));
        let parts = parts.map(|part| part.trim_matches(['.', '^']));
        parts.filter(|part| !part.is_empty() && !part.starts_with(":(")).collect()
    }

    /// Whether every option is in the set.
    fn has_only(&self, set: Options) -> bool {
        self.options.iter().all(|option| match set {
            Options::Quiet => is_quiet(option),
            Options::Content => is_quiet(option) || is_content(option),
            Options::Grep => {
                GREP.contains(option)
                    || GREP_WITH_VALUE.contains(option)
                    || equals(GREP_WITH_VALUE, option)
            }
            Options::Status => STATUS.contains(option) || equals(STATUS, option),
        })
    }
}

fn is_quiet(option: &str) -> bool {
    QUIET.contains(&option)
        || QUIET_WITH_VALUE.contains(&option)
        || equals(QUIET_WITH_VALUE, option)
        || equals(QUIET_EQUALS, option)
        || is_digits(&option[1..])
        || option.strip_prefix("-n").is_some_and(is_digits)
}

fn is_content(option: &str) -> bool {
    let percentage = |rest: &str| is_digits(rest.trim_end_matches('%'));
    CONTENT.contains(&option)
        || equals(CONTENT_EQUALS, option)
        || matches!(option, "--cached" | "--staged" | "--merge-base")
        || option.strip_prefix("-U").is_some_and(is_digits)
        || option.strip_prefix("-M").is_some_and(percentage)
}

/// Whether the option is one of the list with a value behind `=`.
fn equals(list: &[&str], option: &str) -> bool {
    option.split_once('=').is_some_and(|(name, _)| list.contains(&name))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether an option is `--verbose` of `git commit`, also abbreviated or in a bundle of short
/// options. With it, git prints what is committed.
fn is_verbose(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => long.starts_with('v') && !long.starts_with("verif"),
        // These letters take the rest of the bundle as their value.
        None => {
            let flags = option.split(['m', 'F', 'C', 'c', 't', 'u', 'S']).next();
            flags.is_some_and(|flags| flags.contains('v'))
        }
    }
}

/// The path in `revision:path`, `:path` or `:1:path`. `None` for pathspecs, `:/message` and other
/// words.
pub fn path_in(word: &str) -> Option<&str> {
    let (revision, path) = word.split_once(':')?;
    if !revision.is_empty() {
        return Some(path);
    }
    match path.as_bytes() {
        [b'(' | b'/' | b'!' | b'^', ..] | [] => None,
        [b'0'..=b'3', b':', ..] => Some(&path[2..]),
        _ => Some(path),
    }
}

/// Whether the word can be the id of an object, in full or abbreviated.
pub fn is_object_id(word: &str) -> bool {
    let digits = word.split(['^', '~', '@']).next().unwrap_or(word);
    digits.len() >= 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
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
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn existing() -> BTreeSet<&'static str> {
        ["src", "a.txt"].into()
    }

    #[test]
    fn unknown_command_lines_may_show_anything() {
        for (line, expected) in [
            ("--version", "nothing"),
            ("commit -am verbose", "nothing"),
            ("commit --no-verify -m x", "nothing"),
            ("commit --verb --dry-run", "anything"),
            ("commit -av", "anything"),
            ("log --oneline -5 --all", "nothing"),
            ("log -n 5 --author x -g", "nothing"),
            ("log -p", "filterable"),
            ("log -U5 --stat=80 main..x -- src", "filterable"),
            ("log --pat", "anything"),
            ("log -p --full-diff", "anything"),
            ("--literal-pathspecs log -p", "anything"),
            ("-P -C src log -p", "filterable"),
            ("diff --no-indent-heuristic a b", "filterable"),
            ("diff --no-index a b", "nothing"),
            ("diff --no-ind a b", "anything"),
            ("show HEAD:a.txt", "named"),
            ("show HEAD:a.txt HEAD", "anything"),
            ("show :/fix", "filterable"),
            ("show :1:a.txt", "named"),
            ("diff HEAD:x a.txt", "named"),
            ("grep -n x HEAD -- src", "filterable"),
            ("grep x HEAD:src", "anything"),
            ("grep --no-index x", "anything"),
            ("status -sb", "filterable"),
            ("status -v", "anything"),
            ("archive HEAD", "anything"),
            ("stash pop", "nothing"),
            ("stash show", "anything"),
            ("reflog -5", "nothing"),
            ("reflog -p", "anything"),
        ] {
            let args = words(line);
            let found = match Shown::by(&args, &existing()) {
                Shown::Nothing => "nothing",
                Shown::Filterable(_) => "filterable",
                Shown::Named(_) => "named",
                Shown::Anything(_) => "anything",
            };
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn the_scope_names_revisions_and_history() {
        for (line, history, revisions) in [
            ("diff", false, &[][..]),
            ("diff a.txt", false, &[]),
            ("diff --cached", true, &[]),
            ("diff --staged a.txt", true, &[]),
            ("diff main...x ^y", true, &["main", "x", "y"]),
            ("diff main :(top)x", true, &["main"]),
            ("show abcd", true, &["abcd"]),
            ("status", false, &[]),
            ("ls-files main", false, &[]),
            ("grep pattern main", true, &["main"]),
            ("grep -e pattern main", true, &["main"]),
            ("log -p -n 5 main", true, &["main"]),
        ] {
            let args = words(line);
            let scope = Scope { history, revisions: revisions.to_vec() };
            assert_eq!(Shown::by(&args, &existing()), Shown::Filterable(scope), "{line}");
        }
    }

    #[test]
    fn named_objects_are_found_with_their_paths() {
        let args = words("show HEAD:a.txt :1:b :c");
        let named = vec!["HEAD:a.txt", ":1:b", ":c"];
        assert_eq!(Shown::by(&args, &existing()), Shown::Named(named));
        for (word, path) in [
            ("HEAD:a.txt", Some("a.txt")),
            (":1:b", Some("b")),
            (":c", Some("c")),
            (":(top)c", None),
            (":/fix", None),
            (":!c", None),
            (":^c", None),
            (":", None),
            ("HEAD", None),
        ] {
            assert_eq!(path_in(word), path, "{word}");
        }
        for (word, id) in [
            ("abcd^{}", true),
            ("0123456789", true),
            ("abcd~2", true),
            ("main", false),
            ("abc", false),
        ] {
            assert_eq!(is_object_id(word), id, "{word}");
        }
    }

    #[test]
    fn excluded_paths_become_pathspecs() {
        let excluded = BTreeSet::from(["deep/.env".to_owned()]);
        let without = |line: &str| excluding(&words(line), &excluded, &existing()).join(" ");
        let spec = ":(exclude,top,literal)deep/.env";
        assert_eq!(without("-C src show HEAD"), format!("-C src show HEAD {spec}"));
        assert_eq!(without("log -p"), format!("log --full-history --sparse -p {spec}"));
        assert_eq!(without("log -p src"), format!("log -p src {spec}"));
        assert_eq!(without("log -p -- a"), format!("log -p -- a {spec}"));
        assert_eq!(without("log -p --"), format!("log --full-history --sparse -p -- {spec}"));
        assert_eq!(without("--version"), "--version");
    }

    #[test]
    fn only_diff_without_a_repository_compares_files() {
        for (line, compares) in [
            ("diff --no-index a b", true),
            ("-C src diff --no-index a b", true),
            ("diff a -- --no-index", false),
            ("log --no-index", false),
            ("diff a b", false),
            ("--version", false),
        ] {
            assert_eq!(compares_files(&words(line)), compares, "{line}");
        }
    }

    #[test]
    fn a_checkout_of_a_file_overwrites_it() {
        for (line, path) in [
            ("checkout a.txt", Some("a.txt")),
            ("checkout main a.txt", Some("a.txt")),
            ("checkout main", None),
            ("checkout -b a.txt", None),
            ("checkout --track a.txt", None),
            ("checkout main -- a.txt", None),
            ("restore a.txt", None),
        ] {
            let args = words(line);
            assert_eq!(overwritten_path(&args, &existing()), path, "{line}");
        }
    }
}
