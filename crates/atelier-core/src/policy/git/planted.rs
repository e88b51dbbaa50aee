//! Decides whether a repository that a command has made or copied could run anything when a person
//! uses git there.
//!
//! Git's configuration can name programs for nearly everything that git does, and new names come
//! with new versions. So only settings that are known to run nothing are accepted.

use crate::policy::command::HARMLESS_KEYS;

/// The facts that the machine found in a new repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewRepository {
    /// Names and values of all settings, as git lists them.
    pub settings: Vec<(String, String)>,
    /// Names in the folders of hooks.
    pub hooks: Vec<String>,
    /// Whether it has attributes of its own, which choose programs for files.
    pub has_attributes: bool,
    /// Whether it takes its configuration from another folder, or is a link.
    pub is_elsewhere: bool,
    /// Whether its working tree is outside the workspace, so that a person's git would write there.
    pub works_outside: bool,
    /// Whether a rebase or a similar operation is under way. When it continues, it runs commands
    /// from its files.
    pub is_under_way: bool,
    /// Whether a part of it could not be read.
    pub is_unread: bool,
    /// Whether git itself made it. A script that calls git could have changed it since.
    pub is_made_by_git: bool,
}

impl NewRepository {
    /// The reason why the repository must not stay, if there is one.
    pub fn fault(&self) -> Option<String> {
        if self.is_elsewhere {
            return Some("its configuration lies elsewhere".to_owned());
        }
        if self.is_unread {
            return Some("its configuration cannot be read".to_owned());
        }
        if self.works_outside {
            return Some("its working tree lies outside the workspace".to_owned());
        }
        if self.is_under_way {
            return Some("a rebase is under way in it, which can run programs".to_owned());
        }
        if !self.is_made_by_git
            && let Some(address) = self.missing_objects_from()
        {
            return Some(format!("git would fetch missing objects from {address} at once"));
        }
        let runs = self.settings.iter().find(|(name, value)| !is_harmless(name, value));
        if let Some((name, _)) = runs {
            return Some(format!("its setting {name} could run a program"));
        }
        if let Some(hook) = self.hooks.iter().find(|name| !name.ends_with(".sample")) {
            return Some(format!("it has the hook {hook}"));
        }
        self.has_attributes.then(|| "it has attributes, which can choose programs".to_owned())
    }

    /// The address from which every command gets objects that are missing, if a person's keys may
    /// be used for it. Packages are often cloned in this way, over HTTPS.
    fn missing_objects_from(&self) -> Option<&str> {
        let is = |name: &str, section: &str, key: &str| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix(section).is_some_and(|rest| rest.ends_with(key))
        };
        let fetches = |name: &str| {
            is(name, "remote.", ".promisor") || is(name, "extensions.", "partialclone")
        };
        let mut settings = self.settings.iter();
        settings.any(|(name, _)| fetches(name)).then_some(())?;
        let mut addresses = self.settings.iter().filter(|(name, _)| is(name, "remote.", "url"));
        let other = addresses.find(|(_, address)| !address.starts_with("https://"))?;
        Some(&other.1)
    }
}

const CORE: [&str; 27] = [
    "abbrev",
    "bare",
    "bigfilethreshold",
    "checkstat",
    "commitgraph",
    "compression",
    "filemode",
    "hidedotfiles",
    "ignorecase",
    "logallrefupdates",
    "longpaths",
    "loosecompression",
    "multipackindex",
    "precomposeunicode",
    "preloadindex",
    "protecthfs",
    "protectntfs",
    "repositoryformatversion",
    "safecrlf",
    "sharedrepository",
    "sparsecheckout",
    "sparsecheckoutcone",
    "symlinks",
    "trustctime",
    "untrackedcache",
    "whitespace",
    "worktree",
];

const REMOTE: [&str; 11] = [
    "fetch",
    "gh-resolved",
    "mirror",
    "partialclonefilter",
    "promisor",
    "prune",
    "prunetags",
    "push",
    "pushurl",
    "tagopt",
    "url",
];

const BRANCH: [&str; 7] = [
    "description",
    "gh-merge-base",
    "merge",
    "pushremote",
    "rebase",
    "remote",
    "vscode-merge-base",
];

const SUBMODULE: [&str; 7] =
    ["active", "branch", "fetchrecursesubmodules", "ignore", "path", "shallow", "url"];

const EXTENSIONS: [&str; 9] = [
    "compatobjectformat",
    "noop",
    "objectformat",
    "partialclone",
    "preciousobjects",
    "refstorage",
    "relativeworktrees",
    "submodulepathconfig",
    "worktreeconfig",
];

const OTHER: [&str; 12] = [
    "feature.manyfiles",
    "gc.auto",
    "index.skiphash",
    "index.sparse",
    "index.threads",
    "index.version",
    "lfs.repositoryformatversion",
    "maintenance.auto",
    "pack.threads",
    "receive.denycurrentbranch",
    "rerere.enabled",
    "submodule.active",
];

/// Whether a setting is known to run nothing.
fn is_harmless(name: &str, value: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let Some((section, rest)) = name.split_once('.') else { return false };
    let (subsection, key) =
        rest.rsplit_once('.').map_or((None, rest), |(sub, key)| (Some(sub), key));
    // `ext::sh -c x` is an address too, and `-x` would be an option of the command that gets it.
    let is_address = matches!(key, "url" | "pushurl" | "remote" | "pushremote");
    if is_address && (value.contains("::") || value.starts_with('-')) {
        return false;
    }
    match (section, subsection) {
        ("core", None) => CORE.contains(&key) || HARMLESS_KEYS.contains(&name.as_str()),
        ("remote", Some(_)) => REMOTE.contains(&key),
        ("branch", Some(_)) => BRANCH.contains(&key),
        ("submodule", Some(_)) if key == "update" => !value.starts_with('!'),
        ("submodule", Some(_)) => SUBMODULE.contains(&key),
        ("extensions", None) => EXTENSIONS.contains(&key),
        ("color" | "advice", _) => true,
        ("lfs", Some(_)) => key == "access",
        (_, None) => OTHER.contains(&name.as_str()) || HARMLESS_KEYS.contains(&name.as_str()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> NewRepository {
        let settings = vec![
            ("core.repositoryformatversion".to_owned(), "0".to_owned()),
            (name.to_owned(), value.to_owned()),
        ];
        NewRepository { settings, ..Default::default() }
    }

    #[test]
    fn only_settings_that_run_nothing_pass() {
        for (name, value) in [
            ("core.bare", "false"),
            ("core.worktree", "../../lib"),
            ("core.autocrlf", "input"),
            ("remote.origin.url", "https://example.invalid/x.git"),
            ("remote.origin.url", "git@example.invalid:x.git"),
            ("remote.a.b.fetch", "+refs/heads/*:refs/remotes/a.b/*"),
            ("branch.main.remote", "origin"),
            ("branch.feature/x.y.merge", "refs/heads/x"),
            ("submodule.lib.url", "../lib"),
            ("submodule.lib.update", "rebase"),
            ("extensions.worktreeConfig", "true"),
            ("user.name", "Ada"),
            ("color.ui", "auto"),
            ("lfs.https://example.invalid/x.access", "basic"),
        ] {
            assert_eq!(with(name, value).fault(), None, "{name}={value}");
        }
        for (name, value) in [
            ("core.fsmonitor", "./evil"),
            ("core.hooksPath", "hooks"),
            ("core.pager", "evil"),
            ("core.sshCommand", "evil"),
            ("core.attributesFile", "x"),
            ("core.x.filemode", "x"),
            ("filter.lfs.clean", "evil"),
            ("diff.x.textconv", "evil"),
            ("diff.external", "evil"),
            ("merge.x.driver", "evil"),
            ("credential.helper", "!evil"),
            ("alias.st", "!evil"),
            ("include.path", "../evil"),
            ("includeIf.gitdir:x.path", "../evil"),
            ("remote.origin.uploadpack", "evil"),
            ("remote.origin.vcs", "evil"),
            ("remote.origin.url", "ext::sh -c evil"),
            ("branch.main.remote", "ext::evil"),
            ("remote.origin.url", "--upload-pack=evil"),
            ("submodule.lib.update", "!evil"),
            ("url.x.insteadOf", "y"),
            ("gpg.program", "evil"),
            ("pager.log", "evil"),
            ("sequence.editor", "evil"),
            ("something.new", "x"),
            ("core", "x"),
        ] {
            assert!(
                with(name, value).fault().is_some_and(|why| why.contains(name)),
                "{name}={value}"
            );
        }
    }

    #[test]
    fn hooks_attributes_and_what_lies_elsewhere_do_not_pass() {
        let new = NewRepository::default;
        let samples = vec!["pre-push.sample".to_owned()];
        let hooks = vec!["pre-push.sample".to_owned(), "pre-push".to_owned()];
        assert_eq!(NewRepository { hooks: samples, ..new() }.fault(), None);
        assert!(
            NewRepository { hooks, ..new() }.fault().is_some_and(|why| why.contains("pre-push"))
        );
        assert!(NewRepository { has_attributes: true, ..new() }.fault().is_some());
        assert!(NewRepository { is_elsewhere: true, ..new() }.fault().is_some());
        assert!(NewRepository { is_unread: true, ..new() }.fault().is_some());
        assert!(NewRepository { works_outside: true, ..new() }.fault().is_some());
        assert!(NewRepository { is_under_way: true, ..new() }.fault().is_some());
    }

    #[test]
    fn only_git_itself_makes_repositories_that_fetch_with_keys() {
        let partial = |name: &str, address: &str, is_made_by_git: bool| {
            let mut new = with(name, "true");
            new.settings.push(("remote.origin.url".to_owned(), address.to_owned()));
            NewRepository { is_made_by_git, ..new }.fault()
        };
        for name in ["remote.origin.promisor", "remote.a.b.Promisor", "extensions.partialClone"] {
            assert_eq!(partial(name, "https://example.invalid/x.git", false), None, "{name}");
            assert_eq!(partial(name, "git@example.invalid:x.git", true), None, "{name}");
            for address in ["git@attacker.invalid:x.git", "ssh://attacker.invalid/x", "../x"] {
                let fault = partial(name, address, false);
                assert!(fault.is_some_and(|fault| fault.contains(address)), "{name} {address}");
            }
        }
        assert_eq!(partial("core.bare", "git@example.invalid:x.git", false), None);
    }
}
