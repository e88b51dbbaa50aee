//! Which git commands print no file contents, and write files only to their own places.

/// Subcommands that print no file contents, and write files only to their own places.
const SILENT: &[&str] = &[
    "add",
    "annotate",
    "apply",
    "bisect",
    "blame",
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
    "var",
    "version",
];

/// Whether a subcommand, with its arguments, prints no file contents.
pub(super) fn is_silent(args: &[String]) -> bool {
    let options = || args[1..].iter().take_while(|arg| *arg != "--");
    let first = args.get(1).map(String::as_str);
    let picks_hunks = options().any(|arg| picks_hunks(arg));
    match args[0].as_str() {
        // These commands take contents from the objects that a patch names, or show the patch.
        "am" => !options().any(|arg| shows_patch(arg) || is_three_way(arg)),
        "apply" => !options().any(|arg| is_three_way(arg)),
        "add" | "checkout" | "commit" | "reset" | "restore" | "stage" | "stash" if picks_hunks => {
            false
        }
        "rebase" if options().any(|arg| shows_patch(arg)) => false,
        // A merge of subtrees writes files to other places, where nothing protects them.
        "cherry-pick" | "merge" | "pull" | "rebase" | "revert"
            if options().any(|arg| arg.contains("subtree")) =>
        {
            false
        }
        // A branch or tag can lead to a file, and these fields of a format print it.
        "branch" | "for-each-ref" | "tag" => {
            let sorts = |pair: &[String]| is_sort(&pair[0]) && pair[1].contains("raw");
            !args.iter().any(|arg| prints_objects(arg)) && !args.windows(2).any(sorts)
        }
        "commit" => !options().any(|option| option.starts_with('-') && is_verbose(option)),
        "stash" => match first {
            None | Some("push" | "save" | "pop" | "apply" | "drop" | "clear" | "branch") => true,
            Some("list") => args.len() == 2,
            _ => false,
        },
        "worktree" => first.is_some_and(|what| what != "add"),
        subcommand => SILENT.contains(&subcommand),
    }
}

/// Whether an option is `--show-current-patch`, also abbreviated. With it, git prints the commit
/// that it was applying.
fn shows_patch(option: &str) -> bool {
    option.strip_prefix("--").is_some_and(|long| abbreviates(long, "show-current-patch"))
}

/// Whether git may take `long`, which may have a value, for this option.
fn abbreviates(long: &str, option: &str) -> bool {
    let name = long.split('=').next().unwrap_or_default();
    !name.is_empty() && option.starts_with(name)
}

/// Whether an option is `--patch`, `--interactive` or `--edit`, also abbreviated or in a bundle of
/// short options. With it, git prints what has changed, to let somebody choose.
fn picks_hunks(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => ["patch", "interactive", "edit"].iter().any(|it| abbreviates(long, it)),
        // These letters take the rest of the bundle as their value.
        None => option.strip_prefix('-').is_some_and(|letters| {
            let flags = letters.split(['m', 'F', 'C', 'c', 't', 'u', 'S', 'b', 'B']).next();
            flags.is_some_and(|flags| flags.contains(['p', 'i', 'e']))
        }),
    }
}

/// Whether an option is `--3way`, also abbreviated or in a bundle of short options.
fn is_three_way(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => long.starts_with('3'),
        None => option.strip_prefix('-').is_some_and(|letters| {
            let flags = letters.split(['C', 'p', 'S']).next();
            flags.is_some_and(|flags| flags.contains('3'))
        }),
    }
}

/// Whether an option is `--sort`, also abbreviated.
fn is_sort(option: &str) -> bool {
    option.strip_prefix("--").is_some_and(|long| abbreviates(long, "sort"))
}

fn prints_objects(arg: &str) -> bool {
    let sorts = is_sort(arg) && arg.contains("raw");
    arg.contains("%(raw") || arg.contains("%(*raw") || sorts
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
