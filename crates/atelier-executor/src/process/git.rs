//! git, with a configuration that starts no helper programs.
//!
//! A repository's configuration can name programs for nearly everything that git does. Settings in
//! the environment come last and take precedence. What only an option can switch off is switched
//! off by that option.

use std::path::{Path, PathBuf};

use atelier_core::policy::git::subcommand;

/// The author of commits, and the credentials for remote servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitIdentity {
    pub name: Option<String>,
    pub email: Option<String>,
    /// A file in git's own format (`https://user:token@host`) that the machine's owner lends to
    /// approved commands with network access.
    pub credentials: Option<PathBuf>,
}

const SETTINGS: &[(&str, &str)] = &[
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.pager", "cat"),
    ("core.editor", ":"),
    ("sequence.editor", ":"),
    ("core.askPass", ""),
    ("core.sshCommand", "ssh -F /dev/null -oBatchMode=yes -oStrictHostKeyChecking=yes"),
    ("core.alternateRefsCommand", "true"),
    ("core.attributesFile", "/dev/null"),
    ("credential.helper", ""),
    ("protocol.ext.allow", "never"),
    ("commit.gpgSign", "false"),
    ("commit.verbose", "false"),
    ("tag.gpgSign", "false"),
    ("push.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("log.diffMerges", "separate"),
    ("merge.verifySignatures", "false"),
    ("gpg.program", "false"),
    ("gpg.ssh.program", "false"),
    ("gpg.x509.program", "false"),
    ("interactive.diffFilter", ""),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("init.templateDir", ""),
    ("submodule.recurse", "false"),
    ("help.format", "man"),
    ("man.viewer", "man"),
    // Examining a submodule would start another git with the submodule's configuration and filters.
    ("diff.ignoreSubmodules", "dirty"),
    ("status.submoduleSummary", "false"),
    ("diff.submodule", "short"),
    ("fetch.recurseSubmodules", "false"),
    ("safe.bareRepository", "explicit"),
    // The sandbox decides what the process may read, not git's check of owners.
    ("safe.directory", "*"),
];

/// The name of the lent credentials in the command's temporary folder, which is deleted with the
/// command. git selects the line for each host.
pub(super) const LENT: &str = "git-credentials";
const LENT_HELPER: &str = "store --file=\"$TMPDIR/git-credentials\"";

/// The environment of a git command. `neutralised` has the names of settings in the repository's
/// configuration that would run something and can be emptied.
pub(super) fn environment(
    identity: &GitIdentity,
    neutralised: &[String],
    lent: bool,
) -> Vec<(String, String)> {
    let mut settings: Vec<(&str, &str)> = SETTINGS.to_vec();
    settings.extend(neutralised.iter().filter_map(|name| Some((name.as_str(), neutral(name)?))));
    // The preceding empty value removes helpers that the repository names.
    settings.extend(lent.then_some(("credential.helper", LENT_HELPER)));
    let identity = [("user.name", &identity.name), ("user.email", &identity.email)];
    settings.extend(identity.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
    let mut environment = vec![("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string())];
    for (at, (name, value)) in settings.iter().enumerate() {
        environment.push((format!("GIT_CONFIG_KEY_{at}"), (*name).to_owned()));
        environment.push((format!("GIT_CONFIG_VALUE_{at}"), (*value).to_owned()));
    }
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        // HOME is kept for later commands, and every command can write to it.
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        // An empty value takes precedence over the repository's `core.gitProxy`.
        ("GIT_PROXY_COMMAND", ""),
        ("GIT_NO_LAZY_FETCH", "1"),
        // Git must show and write exactly the objects that were examined, not the replacements that
        // `refs/replace` names for them. A remote can add such replacements.
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", ""),
        ("SSH_ASKPASS", ""),
        ("GIT_EDITOR", ":"),
        ("GIT_SEQUENCE_EDITOR", ":"),
        ("GIT_PAGER", "cat"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_MERGE_AUTOEDIT", "no"),
        ("GIT_DISCOVERY_ACROSS_FILESYSTEM", "0"),
        // Without `file`: git would start programs with the configuration and hooks of the other
        // repository.
        ("GIT_ALLOW_PROTOCOL", "git:http:https:ssh"),
    ] {
        environment.push((name.to_owned(), value.to_owned()));
    }
    environment
}

/// The environment of scripts in a layer, which may call git. Programs that git starts there stay
/// in the layer, so only settings are switched off that would make git wait for a person.
#[cfg(target_os = "linux")]
pub(super) fn script_environment(identity: &GitIdentity) -> Vec<(String, String)> {
    let name = identity.name.as_deref().unwrap_or("Atelier");
    let email = identity.email.as_deref().unwrap_or("atelier@localhost");
    let settings = [
        ("user.name", name),
        ("user.email", email),
        ("safe.directory", "*"),
        ("core.fsmonitor", "false"),
        ("commit.gpgSign", "false"),
        ("tag.gpgSign", "false"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
    ];
    let mut environment = vec![("GIT_CONFIG_COUNT".to_owned(), settings.len().to_string())];
    for (at, (name, value)) in settings.iter().enumerate() {
        environment.push((format!("GIT_CONFIG_KEY_{at}"), (*name).to_owned()));
        environment.push((format!("GIT_CONFIG_VALUE_{at}"), (*value).to_owned()));
    }
    for (name, value) in [
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_EDITOR", ":"),
        ("GIT_SEQUENCE_EDITOR", ":"),
        ("GIT_PAGER", "cat"),
        ("GIT_MERGE_AUTOEDIT", "no"),
    ] {
        environment.push((name.to_owned(), value.to_owned()));
    }
    environment
}

/// The value with which a setting starts no program. An empty merge driver would still be started
/// as an empty command. `false` fails, and git then reports a conflict in the file.
fn neutral(name: &str) -> Option<&'static str> {
    let (section, key) = (name.split('.').next()?, name.rsplit('.').next()?);
    Some(match (section.to_ascii_lowercase().as_str(), key.to_ascii_lowercase().as_str()) {
        // An empty filter passes content through unchanged.
        ("filter", "clean" | "smudge" | "process") => "",
        ("filter", "required") => "false",
        ("merge", "driver") if name.matches('.').count() > 1 => "false",
        ("tar", "command") => "false",
        ("submodule", "ignore") => "dirty",
        ("submodule", "update") => "checkout",
        ("diff", "textconv") => "cat",
        ("trailer", "cmd" | "command") | ("hook", "command") => "true",
        // This program runs here if the other repository is on this machine, and with the user's
        // account if it is on another machine.
        ("remote", "uploadpack") => "git-upload-pack",
        ("remote", "receivepack") => "git-receive-pack",
        // Credentials must not be visible to anybody on the network.
        ("http", "sslverify") => "true",
        ("http" | "remote", "proxy") | ("http", "curloptresolve") => "",
        _ => return None,
    })
}

/// The names of settings that make git run a program or connect to another server.
pub(super) fn helpers(names: &str) -> Vec<String> {
    names.split('\0').filter(|name| neutral(name).is_some()).map(str::to_owned).collect()
}

/// Sub-commands that write a repository's configuration, such as the remote or the upstream branch.
const CONFIGURING: &[&str] = &[
    "branch",
    "checkout",
    "clone",
    "config",
    "fetch",
    "init",
    "pull",
    "push",
    "remote",
    "sparse-checkout",
    "submodule",
    "switch",
    "worktree",
];

/// Whether git usually runs hooks for this command.
pub(crate) fn at_hooks(args: &[String]) -> bool {
    const AT_HOOKS: &[&str] =
        &["am", "cherry-pick", "commit", "merge", "pull", "push", "rebase", "revert"];
    subcommand(args).is_some_and(|(at, _)| AT_HOOKS.contains(&args[at].as_str()))
}

/// Whether the command may write a repository's configuration.
pub(crate) fn configures(args: &[String]) -> bool {
    subcommand(args).is_some_and(|(at, _)| CONFIGURING.contains(&args[at].as_str()))
}

/// The folder in which git runs, after its `-C` options.
pub(crate) fn folder(cwd: &Path, args: &[String]) -> PathBuf {
    let mut folder = cwd.to_owned();
    folder.extend(place(args).iter().skip(1).step_by(2));
    folder
}

/// The leading `-C dir` options, which select the repository.
pub(super) fn place(args: &[String]) -> Vec<String> {
    let (mut place, mut at) = (Vec::new(), 0);
    while let Some(arg) = args.get(at).filter(|arg| arg.starts_with('-')) {
        at += 1;
        match (arg.as_str(), args.get(at)) {
            ("-C", Some(dir)) => {
                place.extend([arg.clone(), dir.clone()]);
                at += 1;
            }
            ("--attr-source", Some(_)) => at += 1,
            _ => {}
        }
    }
    place
}

/// Adds `--no-ext-diff --no-textconv` to the subcommands that support them. A setting cannot
/// switch these off: an empty `diff.external` would be run as an empty command.
pub(super) fn arguments(args: &[String]) -> Vec<String> {
    let mut args = args.to_vec();
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        match arg.as_str() {
            "-C" | "--attr-source" => at += 2,
            option if option.starts_with('-') => at += 1,
            "diff" | "log" | "show" | "whatchanged" | "format-patch" | "stash" => {
                // `stash` accepts the options only after these subcommands.
                if arg == "stash" {
                    at += 1;
                    if args.get(at).is_none_or(|sub| sub != "show" && sub != "list") {
                        break;
                    }
                }
                args.insert(at + 1, "--no-textconv".to_owned());
                args.insert(at + 1, "--no-ext-diff".to_owned());
                leave_submodules(&mut args, at + 1);
                break;
            }
            "status" => {
                leave_submodules(&mut args, at + 1);
                break;
            }
            // git-blame has only this option, and git-grep uses textconv only on request.
            "blame" | "annotate" => {
                args.insert(at + 1, "--no-textconv".to_owned());
                break;
            }
            _ => break,
        }
    }
    args
}

/// `.gitmodules` can make git examine submodules, which starts another git there. Only an option
/// overrides it.
fn leave_submodules(args: &mut Vec<String>, at: usize) {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let mut all = false;
    let mut index = 0;
    args.retain(|arg| {
        index += 1;
        let asks = index > at && index <= end && arg.starts_with("--ignore-su");
        all |= asks && (arg.ends_with("=all") || !arg.contains('='));
        !asks
    });
    args.insert(at, format!("--ignore-submodules={}", if all { "all" } else { "dirty" }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAVE: &str = "--ignore-submodules=dirty";

    fn with(args: &[&str]) -> Vec<String> {
        arguments(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_go_behind_the_subcommand() {
        assert_eq!(
            with(&["diff", "--", "a"]),
            ["diff", LEAVE, "--no-ext-diff", "--no-textconv", "--", "a"]
        );
        assert_eq!(
            with(&["-C", "src", "--no-pager", "log"])[3..],
            ["log", LEAVE, "--no-ext-diff", "--no-textconv"]
        );
        assert_eq!(
            with(&["stash", "show"]),
            ["stash", "show", LEAVE, "--no-ext-diff", "--no-textconv"]
        );
        assert_eq!(with(&["stash", "pop"]), ["stash", "pop"]);
        assert_eq!(with(&["status"]), ["status", LEAVE]);
        assert_eq!(with(&["status", "--ignore-submodules=none", "-s"]), ["status", LEAVE, "-s"]);
        assert_eq!(with(&["status", "--ignore-submodules"]), ["status", "--ignore-submodules=all"]);
        assert_eq!(place(&["-P", "-C", "a", "status", "-C"].map(str::to_owned)), ["-C", "a"]);
        assert_eq!(with(&[]), [""; 0]);
    }

    #[test]
    fn filters_of_a_repository_are_found() {
        let names = "core.bare\0filter.lfs.clean\0filter.a.b.Process\0filter.x.required\0diff.filter.command\0";
        assert_eq!(helpers(names), ["filter.lfs.clean", "filter.a.b.Process", "filter.x.required"]);
        let names = "merge.ff\0merge.x.driver\0merge.x.name\0tar.tgz.command\0submodule.s.ignore\0";
        assert_eq!(helpers(names), ["merge.x.driver", "tar.tgz.command", "submodule.s.ignore"]);
        let names = "diff.x.textconv\0remote.o.url\0remote.o.uploadPack\0trailer.a.b.cmd\0http.https://a.b/.sslVerify\0";
        assert_eq!(
            helpers(names),
            [
                "diff.x.textconv",
                "remote.o.uploadPack",
                "trailer.a.b.cmd",
                "http.https://a.b/.sslVerify"
            ]
        );
    }
}
