//! Rates the value of an argument by the argument's kind.

use super::{
    Judge, awk,
    kind::{Kind, listed},
    sed,
};
use crate::{
    path::{PathError, normalise},
    policy::{files::Access, verdict::Verdict},
};

/// An effect of a sed or awk script in an argument, besides computing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect<'a> {
    /// The script starts a program.
    Runs,
    Reads(&'a str),
    Writes(&'a str),
    /// The script uses a file whose name is only known when the script runs, or it does not parse.
    Unclear,
}

/// Keys of git's configuration that make git start no program.
pub(crate) const HARMLESS_KEYS: [&str; 16] = [
    "user.name",
    "user.email",
    "push.default",
    "push.autosetupremote",
    "pull.rebase",
    "pull.ff",
    "init.defaultbranch",
    "merge.ff",
    "merge.conflictstyle",
    "fetch.prune",
    "rebase.autostash",
    "core.autocrlf",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.quotepath",
];

/// Programs that start other programs, and programs that are refused because they take away rights
/// or files.
const STARTERS: [&str; 26] = [
    "ash", "bash", "busybox", "csh", "dash", "dd", "doas", "env", "fish", "ksh", "nice", "nohup",
    "pkexec", "pwsh", "rm", "script", "setsid", "sh", "ssh", "su", "sudo", "tcsh", "time",
    "timeout", "xargs", "zsh",
];

impl<'c> Judge<'_, 'c> {
    /// Rates a value of this kind.
    pub(super) fn value(&mut self, kind: &Kind, text: &'c str) {
        match kind {
            Kind::Data | Kind::Code => {}
            Kind::In(list) if listed(list, text) => {}
            Kind::In(_) => self.argument(text),
            Kind::Name => self.secret(text, text),
            Kind::Read => self.path(text, Access::Read),
            Kind::Script => {
                self.path(text, Access::Read);
                if text == "-" {
                    self.high(
                        "input",
                        "The code comes from its input, not from a file that can be reviewed.",
                    );
                }
            }
            Kind::Program => {
                self.argument(text);
                self.program(text);
            }
            Kind::Enter => {
                self.path(text, Access::Read);
                self.deny_entering_protected(text);
                if !self.entered.is_empty() && has_parent_path(text) {
                    self.deny("directory", "It goes up from a directory that it went to before.");
                }
                self.entered.push(text);
            }
            Kind::Source | Kind::Response if text.starts_with('@') => {
                self.deny("response-file", "It takes its arguments from a file.");
            }
            Kind::Source => self.path(text, Access::Read),
            Kind::Write => self.path(text, Access::Write),
            Kind::Output => self.path(text, Access::Output),
            Kind::Moved => {
                self.path(text, Access::Read);
                self.path(text, Access::Remove);
            }
            Kind::Dest => {
                self.path(text, Access::Write);
                self.dest = Some(text);
            }
            Kind::Arg | Kind::Response => self.argument(text),
            Kind::Sed => sed::effects(text, &mut |effect| self.effect(&effect)),
            Kind::Awk => awk::effects(text, &mut |effect| self.effect(&effect)),
            Kind::Suffix if text.contains('/') => {
                self.deny("suffix", "The suffix of its backups names a directory.");
            }
            Kind::Suffix => self.suffix = Some(text),
            Kind::Plus if text.starts_with('+') => {}
            Kind::Plus => self.deny("clock", "It would set the system's clock."),
            Kind::Archive => self.archive(text),
            Kind::Remote => self.remote(text, false),
            Kind::PushRemote => self.remote(text, true),
            Kind::Rev => self.revision(text),
            Kind::Lines => self.revision(text.rsplit(':').next().unwrap_or(text)),
            Kind::Checkout => {
                self.revision(text);
                if names_files(text) {
                    self.high("discards", "It discards uncommitted changes.");
                }
            }
            Kind::Discard => {
                self.path(text, Access::Write);
                self.high("discards", "It discards uncommitted changes.");
            }
            Kind::Refspec if text.starts_with('+') || text.starts_with(':') => {
                self.high("refspec", "It overwrites or deletes a branch that others may use.");
            }
            Kind::Refspec => {}
            Kind::Format if text.contains("%G") || text.contains("%(signature") => {
                self.high(
                    "signature",
                    "Showing signatures starts a program that the repository can choose.",
                );
            }
            Kind::Format => {}
            Kind::GitKey | Kind::LoneKey => self.git_key(text),
            Kind::Date if text.starts_with(['/', '.']) => self.path(text, Access::Read),
            Kind::Date => {}
            Kind::Versioned => {
                self.argument(text);
                if text.contains('@') {
                    self.high("package", "The program is loaded from elsewhere.");
                }
            }
            Kind::Spec => self.package(text),
            Kind::Registry => {
                self.connects_to(text);
                self.high(
                    "registry",
                    "It chooses where packages come from, and where credentials go.",
                );
            }
            Kind::List => self.package_list(text),
            Kind::Assign => self.assignment(text),
            Kind::Define => self.definition(text),
            Kind::Passed => self.passed_on(text),
            Kind::Flags
                if ["extld", "toolexec", "linker", "plugin"]
                    .iter()
                    .any(|word| text.contains(word)) =>
            {
                self.deny("flags", "The flags name a program to run.");
            }
            Kind::Flags => text.split_whitespace().for_each(|flag| self.argument(flag)),
        }
    }

    /// A program that another one starts is refused like one that is called, if it can start
    /// anything.
    fn program(&mut self, text: &str) {
        let name = text.rsplit('/').next().unwrap_or(text);
        if STARTERS.contains(&name) {
            self.deny("program", "It starts a program that runs anything.");
        } else if ["exec", "dlx", "x", "node"].contains(&name) {
            self.high("program", "It runs a program that it is given by name.");
        }
    }

    pub(super) fn deny(&mut self, about: &'static str, reason: &'static str) {
        self.raise(Verdict::Deny, || (about.into(), reason.into()));
    }

    pub(super) fn high(&mut self, about: &'static str, reason: &'static str) {
        self.raise(Verdict::High, || (about.into(), reason.into()));
    }

    /// Denies a change into a protected directory, because the arguments do not show what the
    /// program does there.
    fn deny_entering_protected(&mut self, text: &str) {
        let Ok(normal) = normalise(text, self.cwd.relative(), self.roots) else { return };
        if let Some(class) = self
            .files
            .class(&normal.relative, Access::Output)
            .filter(|class| class.verdict == Verdict::Deny)
        {
            self.raise_coded(class.verdict, class.code(), || {
                (format!("file.{}", class.id).into(), format!("{text}: {}", class.reason).into())
            });
        }
    }

    /// Rates an argument whose meaning only the program knows. Every part of it that looks like a
    /// path must stay inside the workspace.
    pub(super) fn argument(&mut self, text: &str) {
        if text.contains("://") {
            self.connects_to(text);
        }
        let value = assigned(text);
        let glued =
            if text.starts_with('-') && !text.starts_with("--") { text.get(2..) } else { None };
        for candidate in [Some(text), value, glued].into_iter().flatten() {
            // Commas and colons separate paths too, as in `-Wl,-T,/etc/x` and `a:/etc/x`.
            self.maybe_path(candidate);
            for part in candidate.split([',', ':']) {
                if part != candidate {
                    self.maybe_path(part);
                }
                // There may be a second `=`, as in `--emit=link=../x`.
                if let Some(inner) = assigned(part).filter(|inner| Some(*inner) != value) {
                    self.maybe_path(inner);
                }
            }
        }
    }

    fn maybe_path(&mut self, text: &str) {
        let text = text.strip_prefix('@').unwrap_or(text);
        if text.is_empty() || text.starts_with('-') || text == "/dev/null" {
            return;
        }
        // A text that begins with `//` is an address without its scheme, not a path on this
        // machine.
        let address = text.starts_with("//") && !text.starts_with("///");
        match normalise(text, self.cwd.relative(), self.roots) {
            Err(error @ PathError::Outside { .. }) if !address && !text.contains("://") => {
                self.outside(&error);
            }
            // Our file tools do not open such a name, but a program does.
            Err(PathError::Unprintable(_)) => self.secret(text, &text.escape_debug().to_string()),
            Err(_) => {}
            Ok(normal) => {
                self.secret(&normal.relative, text);
                self.note(text, normal.into_path(), Access::Read);
            }
        }
    }

    /// Rates reading a file by its class.
    fn secret(&mut self, relative: &str, shown: &str) {
        if let Some(class) = self.files.class(relative, Access::Read) {
            self.raise_coded(class.verdict, class.code(), || {
                (format!("file.{}", class.id).into(), format!("{shown}: {}", class.reason).into())
            });
        }
    }

    /// Denies paths with `..` if the program changes to another directory first, because they are
    /// then relative to that directory.
    pub(super) fn deny_parent_paths_after_entering(&mut self, args: &[String]) {
        let Some(entered) = self.entered.last() else { return };
        if args.iter().any(|arg| has_parent_path(arg) && !arg.ends_with(entered)) {
            self.deny(
                "directory",
                "It changes directory, and then a path that goes up could lead outside.",
            );
        }
    }

    /// Rates an effect of a script.
    fn effect(&mut self, effect: &Effect<'_>) {
        match effect {
            Effect::Runs => self.deny("script.runs", "The script starts a program."),
            Effect::Unclear => {
                self.high(
                    "script.unclear",
                    "The script reads or writes files that it names itself.",
                );
            }
            Effect::Reads(path) if STANDARD.contains(path) => {}
            Effect::Writes(path) if STANDARD.contains(path) => {}
            Effect::Reads(path) => self.path(path, Access::Read),
            Effect::Writes(path) => self.path(path, Access::Write),
        }
    }

    fn archive(&mut self, text: &str) {
        let host = text.split('/').next().unwrap_or(text);
        if host.contains(':') {
            return self.deny(
                "archive",
                "An archive on another machine is reached through a remote shell.",
            );
        }
        self.path(text, Access::Output);
    }

    fn revision(&mut self, text: &str) {
        if text == "/dev/null" {
            return;
        }
        // `:(top,icase)x` is the path `x` with options for how git searches for it.
        let magic = text.strip_prefix(":(").and_then(|magic| magic.split_once(')'));
        let plain = magic.map_or(text, |(_, path)| path);
        // `HEAD:.env` shows a file of an earlier commit.
        for (at, part) in plain.split(':').enumerate().filter(|(_, part)| !part.is_empty()) {
            // After a colon, a leading slash means the top of the repository, not of the file
            // system.
            let part = if at > 0 { part.trim_start_matches('/') } else { part };
            match normalise(part, self.cwd.relative(), self.roots) {
                Err(error @ PathError::Outside { .. }) => self.outside(&error),
                Err(PathError::Unprintable(_)) => {
                    self.secret(part, &text.escape_debug().to_string());
                }
                Err(_) => {}
                Ok(normal) => {
                    self.secret(&normal.relative, text);
                    self.note(part, normal.into_path(), Access::Read);
                }
            }
        }
    }

    fn git_key(&mut self, text: &str) {
        let key = text.to_ascii_lowercase();
        let harmless = HARMLESS_KEYS.contains(&key.as_str())
            || key.starts_with("color.")
            || (key.starts_with("branch.") && key.ends_with(".merge"));
        if key.starts_with("branch.") && key.ends_with(".remote") {
            return self.high("key", "It decides where the branch's commits go.");
        }
        if !harmless {
            self.deny(
                "key",
                "Many keys of git's configuration name programs to run; only harmless ones are \
                 set.",
            );
        }
    }

    fn assignment(&mut self, text: &str) {
        if text.contains("$(") || text.contains("${") || text.contains('`') || text.contains("!=") {
            return self
                .deny("assignment", "make would expand this, and that can start a program.");
        }
        if text.starts_with("--ev") || text.starts_with("-E") {
            return self.deny("assignment", "It adds rules, and rules run programs.");
        }
        match text.split_once('=') {
            Some((name, value)) => {
                let name = name.trim_start().trim_end_matches(|c: char| {
                    c.is_whitespace() || matches!(c, ':' | '+' | '?' | '!')
                });
                let name = name.rsplit(|c: char| c.is_whitespace()).next().unwrap_or(name);
                if matches!(
                    name,
                    "SHELL" | ".SHELLFLAGS" | "MAKEFLAGS" | "GNUMAKEFLAGS" | "MAKEFILES" | "MAKE"
                ) {
                    self.deny("assignment", "The variable decides which program runs the recipes.");
                }
                value.split_whitespace().for_each(|word| self.argument(word));
            }
            None => self.argument(text),
        }
    }

    fn definition(&mut self, text: &str) {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let name = name.split(':').next().unwrap_or(name);
        let tells = [
            "COMPILER", "LAUNCHER", "LINKER", "_COMMAND", "PROGRAM", "EMULATOR", "_AR", "_RANLIB",
            "INCLUDE",
        ];
        // A bare name such as `gcc` is a program of the machine. A path could be a program of the
        // project.
        if tells.iter().any(|word| name.contains(word)) && value.contains('/') {
            self.deny("definition", "The variable names a program to run.");
        }
        value.split(';').for_each(|part| self.argument(part));
    }

    /// Rates options that are passed on to another program, as in `-Wl,-rpath,x`. Each part is an
    /// option of its own.
    fn passed_on(&mut self, text: &str) {
        let mut before = "";
        for part in text.split(',') {
            // `-rpath $ORIGIN/…` says where the product will look for libraries. Nothing is read
            // now.
            let beside = before.ends_with("-rpath") && part.starts_with("$ORIGIN");
            before = part;
            if beside {
                continue;
            }
            if part.starts_with('@') {
                self.deny("response-file", "It takes its arguments from a file.");
            }
            if ["plugin", "-load", "-wrapper", "-specs", "-fuse-ld"]
                .iter()
                .any(|word| part.contains(word))
            {
                self.deny("handed-on", "It hands on an option that loads or runs a program.");
            }
            self.argument(part);
        }
    }
}

/// The text after the first `=`, unless a path comes before it.
fn assigned(text: &str) -> Option<&str> {
    text.split_once('=').filter(|(name, _)| !name.contains('/')).map(|(_, value)| value)
}

/// Whether the text contains a path with `..`: at its beginning, after a separator, or glued to the
/// letter of an option.
fn has_parent_path(text: &str) -> bool {
    text.match_indices("..").any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + 2..].chars().next();
        let begins = text.starts_with('-') || matches!(before, None | Some('/' | '=' | ',' | ':'));
        begins && matches!(behind, None | Some('/' | ',' | ':'))
    })
}

/// Well-known files without an extension. Branches hardly ever have these names.
const WELL_KNOWN: [&str; 20] = [
    "LICENSE",
    "LICENCE",
    "COPYING",
    "NOTICE",
    "README",
    "CHANGELOG",
    "CHANGES",
    "HISTORY",
    "NEWS",
    "AUTHORS",
    "CONTRIBUTORS",
    "CONTRIBUTING",
    "MAINTAINERS",
    "CODEOWNERS",
    "INSTALL",
    "TODO",
    "VERSION",
    "makefile",
    "justfile",
    "gradlew",
];

/// Whether a word of `git checkout` obviously means a file and not a branch.
fn names_files(text: &str) -> bool {
    let name = text.rsplit('/').next().unwrap_or(text);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    text == "."
        || WELL_KNOWN.contains(&name)
        // Makefile, Dockerfile, Gemfile and similar names.
        || (name.ends_with("file") && name.starts_with(|c: char| c.is_ascii_uppercase()))
        || text.starts_with("./")
        || text.starts_with(':')
        || text.ends_with('/')
        || text.contains('*')
        || extension.is_some_and(|ext| !ext.is_empty() && ext.bytes().all(|byte| byte.is_ascii_alphabetic()))
}

const STANDARD: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/stdin", "-"];
