//! Options of git whose effect and number of values are known exactly. Every other spelling, such
//! as an abbreviation that git would accept, counts as unknown.

/// The contents that an option makes a command show, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// No file contents.
    Quiet,
    /// File contents, but only of files that the pathspecs let through.
    Filtered,
    /// Possibly contents of files that the pathspecs exclude.
    Whole,
}

/// Options with the same effect.
pub(super) struct Group {
    effect: Effect,
    flags: &'static [&'static str],
    /// Options that take a value, after `=` or as the next word.
    with_value: &'static [&'static str],
    /// Options that take a value only after `=`.
    with_equals: &'static [&'static str],
    /// These letters take a value that follows them directly, such as `-U5`. With `true` only a
    /// number.
    glued: &'static [(&'static str, bool)],
    /// Whether `-5` is a number of commits.
    digits: bool,
}

const NONE: Group = Group {
    effect: Effect::Quiet,
    flags: &[],
    with_value: &[],
    with_equals: &[],
    glued: &[],
    digits: false,
};

/// The effect of an option, and whether its value is the next word.
pub(super) fn look_up(groups: &[Group], option: &str) -> Option<(Effect, bool)> {
    groups.iter().find_map(|group| {
        let flag = group.flags.contains(&option)
            || (group.digits && is_number(&option[1..]))
            || group.glued.iter().any(|(name, number)| {
                let value = option.strip_prefix(name).filter(|value| !value.is_empty());
                value.is_some_and(|value| !number || is_number(value.trim_end_matches('%')))
            });
        let equals = || {
            let name = option.split_once('=').map(|(name, _)| name);
            name.is_some_and(|name| {
                // A short option takes `=` as the first character of its value.
                name.starts_with("--")
                    && (group.with_equals.contains(&name) || group.with_value.contains(&name))
            })
        };
        match group.with_value.contains(&option) {
            true => Some((group.effect, true)),
            false => (flag || equals()).then_some((group.effect, false)),
        }
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// How commits are walked and described. `git show` takes these as well.
const COMMITS: Group = Group {
    flags: &[
        "--abbrev-commit",
        "--all-match",
        "--ancestry-path",
        "--author-date-order",
        "--basic-regexp",
        "--boundary",
        "--cherry",
        "--cherry-mark",
        "--cherry-pick",
        "--children",
        "--clear-decorations",
        "--count",
        "--date-order",
        "--decorate",
        "--dense",
        "--do-walk",
        "--exclude-first-parent-only",
        "--expand-tabs",
        "--extended-regexp",
        "--first-parent",
        "--fixed-strings",
        "--full-history",
        "--graph",
        "--in-commit-order",
        "--invert-grep",
        "--left-only",
        "--left-right",
        "--log-size",
        "--mailmap",
        "--merges",
        "--no-abbrev-commit",
        "--no-decorate",
        "--no-expand-tabs",
        "--no-graph",
        "--no-mailmap",
        "--no-merges",
        "--no-notes",
        "--no-walk",
        "--not",
        "--notes",
        "--oneline",
        "--parents",
        "--perl-regexp",
        "--pretty",
        "--quiet",
        "--regexp-ignore-case",
        "--relative-date",
        "--remove-empty",
        "--reverse",
        "--right-only",
        "--show-notes",
        "--show-pulls",
        "--simplify-by-decoration",
        "--simplify-merges",
        "--source",
        "--sparse",
        "--topo-order",
        "--use-mailmap",
        "-E",
        "-F",
        "-P",
        "-i",
        "-q",
    ],
    with_value: &[
        "--after",
        "--author",
        "--before",
        "--committer",
        "--date",
        "--decorate-refs",
        "--decorate-refs-exclude",
        "--encoding",
        "--grep",
        "--grep-reflog",
        "--max-count",
        "--since",
        "--since-as-filter",
        "--skip",
        "--until",
        "-n",
    ],
    with_equals: &[
        "--ancestry-path",
        "--decorate",
        "--expand-tabs",
        "--format",
        "--max-parents",
        "--min-parents",
        "--no-walk",
        "--pretty",
    ],
    glued: &[("-n", true)],
    digits: true,
    ..NONE
};

/// Options that add branches, tags or their earlier values. `git show` would also show the object
/// that a tag names if it is no commit, so these options are unknown there.
const REFS: Group = Group {
    flags: &[
        "--all",
        "--branches",
        "--merge",
        "--reflog",
        "--remotes",
        "--single-worktree",
        "--tags",
        "--walk-reflogs",
        "-g",
    ],
    with_value: &["--exclude", "--glob"],
    with_equals: &["--branches", "--remotes", "--tags"],
    ..NONE
};

/// How differences are printed, for commands that print none unless they are told to.
const LAYOUT: Group = Group {
    flags: &[
        "--color",
        "--default-prefix",
        "--exit-code",
        "--full-index",
        "--no-color",
        "--no-ext-diff",
        "--no-patch",
        "--no-prefix",
        "--no-renames",
        "--no-textconv",
        "--rename-empty",
        "-s",
        "-z",
    ],
    with_equals: &["--abbrev", "--color"],
    ..NONE
};

const CONTENT: Group = Group {
    effect: Effect::Filtered,
    flags: &[
        "--binary",
        "--cc",
        "--check",
        "--color-moved",
        "--color-words",
        "--combined-all-paths",
        "--compact-summary",
        "--cumulative",
        "--dd",
        "--diff-merges=1",
        "--diff-merges=c",
        "--diff-merges=cc",
        "--diff-merges=combined",
        "--diff-merges=dense-combined",
        "--diff-merges=first-parent",
        "--diff-merges=m",
        "--diff-merges=none",
        "--diff-merges=off",
        "--diff-merges=on",
        "--diff-merges=separate",
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
        "--ita-invisible-in-index",
        "--ita-visible-in-index",
        "--minimal",
        "--name-only",
        "--name-status",
        "--no-indent-heuristic",
        "--numstat",
        "--patch",
        "--patch-with-raw",
        "--patch-with-stat",
        "--patience",
        "--pickaxe-regex",
        "--raw",
        "--relative",
        "--shortstat",
        "--stat",
        "--summary",
        "--text",
        "--word-diff",
        "-D",
        "-M",
        "-R",
        "-U",
        "-W",
        "-a",
        "-b",
        "-c",
        "-m",
        "-p",
        "-r",
        "-t",
        "-u",
        "-w",
    ],
    with_value: &[
        "--anchored",
        "--color-moved-ws",
        "--diff-algorithm",
        "--diff-filter",
        "--dst-prefix",
        "--ignore-matching-lines",
        "--inter-hunk-context",
        "--line-prefix",
        "--output-indicator-context",
        "--output-indicator-new",
        "--output-indicator-old",
        "--rotate-to",
        "--skip-to",
        "--src-prefix",
        "--stat-count",
        "--stat-graph-width",
        "--stat-name-width",
        "--stat-width",
        "--word-diff-regex",
        "--ws-error-highlight",
        "-G",
        "-I",
        "-S",
        "-l",
    ],
    with_equals: &[
        "--color-moved",
        "--color-words",
        "--dirstat",
        "--find-renames",
        "--ignore-submodules",
        "--relative",
        "--stat",
        "--unified",
        "--word-diff",
    ],
    glued: &[("-U", true), ("-M", true), ("-S", false), ("-G", false), ("-l", true)],
    ..NONE
};

/// Options that reach beyond the pathspecs. They look for earlier names of a file, show whole
/// commits, or merge again, which puts sides of a conflict under names that no commit has.
const WHOLE: Group = Group {
    effect: Effect::Whole,
    flags: &[
        "--find-copies",
        "--find-copies-harder",
        "--follow",
        "--full-diff",
        "--pickaxe-all",
        "-C",
    ],
    with_value: &["--diff-merges", "-L"],
    with_equals: &["--find-copies"],
    glued: &[("-C", true), ("-L", false)],
    ..NONE
};

const REMERGE: Group = Group { effect: Effect::Whole, flags: &["--remerge-diff"], ..NONE };

pub(super) const LOG: &[Group] = &[COMMITS, REFS, LAYOUT, CONTENT, WHOLE, REMERGE];
pub(super) const SHOW: &[Group] = &[COMMITS, LAYOUT, CONTENT, WHOLE, REMERGE];

pub(super) const DIFF: &[Group] = &[
    LAYOUT,
    CONTENT,
    WHOLE,
    Group {
        effect: Effect::Filtered,
        flags: &[
            "--base",
            "--cached",
            "--merge-base",
            "--no-index",
            "--ours",
            "--quiet",
            "--staged",
            "--theirs",
            "-0",
            "-1",
            "-2",
            "-3",
            "-q",
        ],
        ..NONE
    },
];

pub(super) const STATUS: &[Group] = &[
    Group {
        effect: Effect::Filtered,
        flags: &[
            "--ahead-behind",
            "--branch",
            "--column",
            "--find-renames",
            "--ignore-submodules",
            "--ignored",
            "--long",
            "--no-ahead-behind",
            "--no-column",
            "--no-renames",
            "--porcelain",
            "--renames",
            "--short",
            "--show-stash",
            "--untracked-files",
            "-b",
            "-bs",
            "-s",
            "-sb",
            "-u",
            "-uall",
            "-uno",
            "-unormal",
            "-z",
        ],
        with_equals: &[
            "--column",
            "--find-renames",
            "--ignore-submodules",
            "--ignored",
            "--porcelain",
            "--untracked-files",
        ],
        ..NONE
    },
    Group { effect: Effect::Whole, flags: &["--verbose", "-v", "-vv"], ..NONE },
];

pub(super) const GREP: &[Group] = &[Group {
    effect: Effect::Filtered,
    flags: &[
        "--all-match",
        "--and",
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
        "--function-context",
        "--heading",
        "--ignore-case",
        "--invert-match",
        "--line-number",
        "--name-only",
        "--no-color",
        "--not",
        "--null",
        "--only-matching",
        "--or",
        "--perl-regexp",
        "--quiet",
        "--recursive",
        "--show-function",
        "--text",
        "--word-regexp",
    ],
    with_value: &[
        "--after-context",
        "--before-context",
        "--context",
        "--max-count",
        "--max-depth",
        "--threads",
        "-A",
        "-B",
        "-C",
        "-e",
        "-m",
    ],
    with_equals: &["--color"],
    glued: &[("-A", true), ("-B", true), ("-C", true), ("-m", true), ("-e", false)],
    digits: true,
}];

/// Letters of `git grep` that can stand together behind one dash.
pub(super) const GREP_LETTERS: &str = "EFGHILPWachilnopqrvwz";
