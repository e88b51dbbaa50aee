//! What a git command line can show of files' content, read from its words alone.
//!
//! History keeps what is hidden from the working tree. So where it holds something that nobody may see unasked, only
//! the few shapes below run as they are or with that left out; whatever is not known here counts as showing it.

/// What a command line shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shows<'a> {
    /// No content: names of branches, messages, or files in their own places.
    Nothing,
    /// Content of whole commits or trees, of which pathspecs leave out what they exclude.
    Paths(Sight<'a>),
    /// Just these `revision:path`.
    Named(Vec<&'a str>),
    /// Anything, as far as is known.
    Anything(Sight<'a>),
}

/// Where a command looks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight<'a> {
    /// Into commits, not only at what is tracked now.
    pub(crate) history: bool,
    /// The revisions it names, ranges taken apart.
    pub(crate) revisions: Vec<&'a str>,
}

/// Sub-commands that print no file and put files nowhere but into their own places.
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

/// Options that add no content to what `log`, `show` and `diff` print. Spelt out: no abbreviations, no bundles.
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

/// The same with a value: behind `=`, or as the next word.
const QUIET_WITH: &[&str] = &[
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

/// The same with a value that stands behind `=` only.
const QUIET_IS: &[&str] =
    &["--abbrev", "--branches", "--color", "--decorate", "--format", "--pretty", "--remotes", "--tags"];

/// Options that show content, and of it only what pathspecs let through.
const SHOWING: &[&str] = &[
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

const SHOWING_IS: &[&str] = &[
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

const GREP_WITH: &[&str] =
    &["--after-context", "--before-context", "--context", "--max-count", "-A", "-B", "-C", "-m"];

/// Where the sub-command stands, and whether nothing before it changes what pathspecs mean.
pub(super) fn sub_command(args: &[String]) -> Option<(usize, bool)> {
    let (mut at, mut plain) = (0, true);
    while let Some(arg) = args.get(at).filter(|arg| arg.starts_with('-')) {
        plain &=
            matches!(arg.as_str(), "-C" | "-P" | "-p" | "--no-pager" | "--paginate" | "--no-optional-locks");
        at += if arg == "-C" { 2 } else { 1 };
    }
    (at < args.len()).then_some((at, plain))
}

/// Whether git is asked to compare files as any other program would, without a repository.
pub(crate) fn compares_files(args: &[String]) -> bool {
    let is = |(at, _): (usize, bool)| {
        args[at] == "diff" && args[at..].iter().take_while(|arg| *arg != "--").any(|arg| arg == "--no-index")
    };
    sub_command(args).is_some_and(is)
}

/// What the command line shows. `is_file` says whether a word names something that is there.
pub(crate) fn shows<'a>(args: &'a [String], is_file: impl Fn(&str) -> bool) -> Shows<'a> {
    let Some((at, plain)) = sub_command(args) else { return Shows::Nothing };
    let line = Line::read(&args[at], &args[at + 1..], &is_file);
    let sub = args[at].as_str();
    let sight = Sight { history: true, revisions: line.revisions() };
    match sub {
        _ if SILENT.contains(&sub) => Shows::Nothing,
        "commit" if !line.options.iter().any(|option| is_verbose(option)) => Shows::Nothing,
        "stash" => match args.get(at + 1).map(String::as_str) {
            None | Some("push" | "save" | "pop" | "apply" | "drop" | "clear" | "branch") => Shows::Nothing,
            Some("list") if args.len() == at + 2 => Shows::Nothing,
            _ => Shows::Anything(sight),
        },
        "reflog" if line.knows(Taste::Quiet) => Shows::Nothing,
        "worktree" if args.get(at + 1).is_some_and(|what| what != "add") => Shows::Nothing,
        // Files as they lie there: what is named was judged, and what is in folders is hidden by covers.
        "diff" if line.options.contains(&"--no-index") => Shows::Nothing,
        "log" if line.knows(Taste::Quiet) => Shows::Nothing,
        "show" | "diff" if !line.named.is_empty() && line.knows(Taste::Showing) => match line.only_named {
            true => Shows::Named(line.named),
            false => Shows::Anything(sight),
        },
        "log" | "show" | "whatchanged" if plain && line.knows(Taste::Showing) => Shows::Paths(sight),
        "diff" if plain && line.knows(Taste::Showing) => {
            let staged = line.options.iter().any(|option| matches!(*option, "--cached" | "--staged"));
            Shows::Paths(Sight { history: staged || !sight.revisions.is_empty(), ..sight })
        }
        "grep" if plain && line.named.is_empty() && line.knows(Taste::Grep) => Shows::Paths(sight),
        "status" if plain && line.knows(Taste::Status) => Shows::Paths(Sight::default()),
        "ls-files" if plain => Shows::Paths(Sight::default()),
        _ => Shows::Anything(sight),
    }
}

/// The same command with pathspecs behind it that leave these paths out, which are from the repository's top.
pub(crate) fn leaving_out(
    args: &[String],
    excluded: &[String],
    is_file: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut args = args.to_vec();
    let Some((at, _)) = sub_command(&args) else { return args };
    let dashes = args.iter().position(|arg| arg == "--");
    if args[at] == "log" {
        let paths = match dashes {
            Some(dashes) => dashes + 1 < args.len(),
            None => args[at + 1..].iter().any(|operand| !operand.starts_with('-') && is_file(operand)),
        };
        // So that it is the same commits that are listed, those that only touch a hidden file, too.
        if !paths {
            args.splice(at + 1..=at, ["--full-history", "--sparse"].map(str::to_owned));
        }
    }
    args.extend(excluded.iter().map(|path| format!(":(exclude,top,literal){path}")));
    args
}

#[derive(Clone, Copy)]
enum Taste {
    Quiet,
    Showing,
    Grep,
    Status,
}

/// The words behind a sub-command.
struct Line<'a> {
    options: Vec<&'a str>,
    /// Words before `--` that are neither options nor files.
    words: Vec<&'a str>,
    /// Those of the form `revision:path`.
    named: Vec<&'a str>,
    only_named: bool,
}

impl<'a> Line<'a> {
    fn read(sub: &str, args: &'a [String], is_file: &impl Fn(&str) -> bool) -> Self {
        let with = if sub == "grep" { GREP_WITH } else { QUIET_WITH };
        let dashes = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        let (mut options, mut words, mut named) = (Vec::new(), Vec::new(), Vec::new());
        let mut files = args.len().saturating_sub(dashes + 1);
        // The first word of grep is its pattern.
        let mut pattern = sub == "grep";
        let mut at = 0;
        while at < dashes {
            let arg = args[at].as_str();
            at += 1;
            if arg == "-e" && sub == "grep" {
                pattern = false;
                at += 1;
            } else if arg.starts_with('-') {
                options.push(arg);
                at += usize::from(with.contains(&arg));
            } else if std::mem::take(&mut pattern) {
                // Only looked for.
            } else if path_in(arg).is_some() && !is_file(arg) {
                named.push(arg);
            } else if is_file(arg) {
                files += usize::from(sub != "diff");
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

    /// Whether every option is one of these.
    fn knows(&self, taste: Taste) -> bool {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is = |list: &[&str], option: &str| {
            option.split_once('=').is_some_and(|(name, _)| list.contains(&name))
        };
        let quiet = |option: &str| {
            QUIET.contains(&option)
                || QUIET_WITH.contains(&option)
                || is(QUIET_WITH, option)
                || is(QUIET_IS, option)
                || number(&option[1..])
                || option.strip_prefix("-n").is_some_and(number)
        };
        let known = |option: &&&str| {
            let option = **option;
            match taste {
                Taste::Quiet => quiet(option),
                Taste::Showing => {
                    quiet(option)
                        || SHOWING.contains(&option)
                        || is(SHOWING_IS, option)
                        || matches!(option, "--cached" | "--staged" | "--merge-base")
                        || option.strip_prefix("-U").is_some_and(number)
                        || option.strip_prefix("-M").is_some_and(|rest| number(rest.trim_end_matches('%')))
                }
                Taste::Grep => GREP.contains(&option) || GREP_WITH.contains(&option) || is(GREP_WITH, option),
                Taste::Status => STATUS.contains(&option) || is(STATUS, option),
            }
        };
        self.options.iter().all(|option| known(&option))
    }
}

/// `-v` of git-commit, in a bundle and shortened, too: with it what is committed may be printed.
fn is_verbose(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => long.starts_with('v') && !long.starts_with("verif"),
        // Behind these letters stands a value.
        None => {
            option.split(['m', 'F', 'C', 'c', 't', 'u', 'S']).next().is_some_and(|flags| flags.contains('v'))
        }
    }
}

/// The path of `revision:path`, `:path` or `:1:path`; none for a pathspec, a message looked for, or anything else.
pub(crate) fn path_in(word: &str) -> Option<&str> {
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

/// Whether the word can be the number of an object, whole or shortened.
pub(crate) fn is_number(word: &str) -> bool {
    let digits = word.split(['^', '~', '@']).next().unwrap_or(word);
    digits.len() >= 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn is_file(name: &str) -> bool {
        matches!(name, "src" | "a.txt")
    }

    #[test]
    fn what_is_not_known_may_show_anything() {
        for (line, expected) in [
            ("--version", "nothing"),
            ("commit -am verbose", "nothing"),
            ("commit --no-verify -m x", "nothing"),
            ("commit --verb --dry-run", "anything"),
            ("commit -av", "anything"),
            ("log --oneline -5 --all", "nothing"),
            ("log -n 5 --author x -g", "nothing"),
            ("log -p", "paths"),
            ("log -U5 --stat=80 main..x -- src", "paths"),
            ("log --pat", "anything"),
            ("log -p --full-diff", "anything"),
            ("--literal-pathspecs log -p", "anything"),
            ("-P -C src log -p", "paths"),
            ("diff --no-indent-heuristic a b", "paths"),
            ("diff --no-index a b", "nothing"),
            ("diff --no-ind a b", "anything"),
            ("show HEAD:a.txt", "named"),
            ("show HEAD:a.txt HEAD", "anything"),
            ("show :/fix", "paths"),
            ("show :1:a.txt", "named"),
            ("diff HEAD:x a.txt", "named"),
            ("grep -n x HEAD -- src", "paths"),
            ("grep x HEAD:src", "anything"),
            ("grep --no-index x", "anything"),
            ("status -sb", "paths"),
            ("status -v", "anything"),
            ("archive HEAD", "anything"),
            ("stash pop", "nothing"),
            ("stash show", "anything"),
            ("reflog -5", "nothing"),
            ("reflog -p", "anything"),
        ] {
            let args = words(line);
            let found = match shows(&args, is_file) {
                Shows::Nothing => "nothing",
                Shows::Paths(_) => "paths",
                Shows::Named(_) => "named",
                Shows::Anything(_) => "anything",
            };
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn it_is_seen_where_a_command_looks() {
        let sight = |line: &str| match shows(&words(line), is_file) {
            Shows::Paths(sight) => (sight.history, sight.revisions.iter().map(|r| (*r).to_owned()).collect()),
            other => panic!("{line}: {other:?}"),
        };
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(sight("diff"), (false, names(&[])));
        assert_eq!(sight("diff a.txt"), (false, names(&[])));
        assert_eq!(sight("diff --cached"), (true, names(&[])));
        assert_eq!(sight("diff main...x ^y"), (true, names(&["main", "x", "y"])));
        assert_eq!(sight("show abcd"), (true, names(&["abcd"])));
        assert!(is_number("abcd^{}") && is_number("0123456789") && !is_number("main") && !is_number("abc"));
    }

    #[test]
    fn what_is_guarded_is_left_out_of_what_git_shows() {
        let excluded = ["deep/.env".to_owned()];
        let without = |line: &str| leaving_out(&words(line), &excluded, is_file).join(" ");
        let spec = ":(exclude,top,literal)deep/.env";
        assert_eq!(without("-C src show HEAD"), format!("-C src show HEAD {spec}"));
        assert_eq!(without("log -p"), format!("log --full-history --sparse -p {spec}"));
        assert_eq!(without("log -p src"), format!("log -p src {spec}"));
        assert_eq!(without("log -p -- a"), format!("log -p -- a {spec}"));
    }
}
