//! The policy: how dangerous a tool call is, decided from its text alone.
//!
//! Every rule that matches a call gives a verdict, and the strictest verdict wins. The rules are
//! data (`policy/rules/*.toml`), each with examples that a test checks. The verdict only decides
//! whether a person is asked. The sandbox of the operating system decides what a process can reach,
//! and the executor finds out where a path leads and judges the call again after links are
//! resolved.

pub mod call;
pub mod class;
mod command;
mod config;
mod examples;
mod files;
pub mod git;
pub mod hosts;
pub mod layered;
pub mod limits;
pub mod own_files;
pub mod pattern;
pub mod sandbox;
pub mod verdict;

pub use command::{
    PathUse,
    table::{CommandData, RuleError, RuleFile},
};
pub use config::{Extension, RestrictionSource, Restrictions, ShellMode};
pub use files::{Access, FileClass};

use crate::{
    failure::FailureCode,
    path::{Roots, WorkspacePath},
    tools::{Kind, Rating, Surface, ToolTable},
};
use call::{CallError, Command, ToolCall};
use command::{
    Judge, TOP_LEVEL,
    table::{Rule, compile},
};
use files::FileRules;
use limits::Limits;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
};
use verdict::{Judgement, Verdict};

const BUILTIN: [&str; 7] = [
    include_str!("policy/rules/look.toml"),
    include_str!("policy/rules/change.toml"),
    include_str!("policy/rules/git.toml"),
    include_str!("policy/rules/packages.toml"),
    include_str!("policy/rules/languages.toml"),
    include_str!("policy/rules/build.toml"),
    include_str!("policy/rules/refused.toml"),
];

/// The part of a rule that says that git may show files which people are asked about.
pub const HISTORY: &str = "history";

/// Rules that apply only if the owner of a server allows them by name.
const OPTIONAL: &str = include_str!("policy/rules/optional.toml");

/// All rules that apply: the built-in ones, and what a server, a project or a machine adds.
#[derive(Debug, Clone)]
pub struct Policy {
    files: FileRules,
    commands: HashMap<Box<str>, Rule>,
    /// Commands that people often ask for and that are never allowed, each with the reason.
    refused: BTreeMap<String, String>,
    limits: Limits,
    restrictions: Vec<(RestrictionSource, Restrictions)>,
    /// The verdict for changes of an ordinary file. The class of the file can make it stricter.
    change_verdict: Verdict,
    /// Whether these are the rules for a conversation's own files.
    own_files: bool,
    /// The tools that calls may name.
    tools: ToolTable,
    /// The data that `commands` was compiled from, so that a server can add to it.
    sources: Vec<RuleFile>,
}

#[derive(Deserialize)]
struct ClassFile {
    class: Vec<FileClass>,
}

impl Policy {
    /// The rules that come with Atelier.
    pub fn builtin() -> &'static Policy {
        static POLICY: LazyLock<Policy> = LazyLock::new(|| match Policy::load() {
            Ok(policy) => policy,
            // The rules are part of this crate and the same on every machine, so the tests find
            // this.
            Err(error) => panic!("the built-in rules: {error}"),
        });
        &POLICY
    }

    fn load() -> Result<Policy, RuleError> {
        let fault = |error: toml::de::Error| RuleError::Toml(error.to_string());
        let classes: ClassFile =
            toml::from_str(include_str!("policy/rules/files.toml")).map_err(fault)?;
        let sources = BUILTIN
            .iter()
            .map(|text| toml::from_str(text).map_err(fault))
            .collect::<Result<_, _>>()?;
        let classes = classes.class.into_iter().map(FileClass::into_builtin).collect();
        Policy::of(classes, sources, Limits::default())
    }

    fn of(
        classes: Vec<FileClass>,
        sources: Vec<RuleFile>,
        limits: Limits,
    ) -> Result<Policy, RuleError> {
        let refused: BTreeMap<String, String> =
            sources.iter().flat_map(|file| file.refused.clone()).collect();
        let commands = compile(&sources)?;
        Ok(Policy {
            files: FileRules::new(classes),
            commands,
            refused,
            limits,
            restrictions: Vec::new(),
            change_verdict: Verdict::Medium,
            own_files: false,
            tools: ToolTable::builtin().clone(),
            sources,
        })
    }

    /// The policy with a server's own rules added, after their examples were checked. A rule of the
    /// server replaces a rule for the command of the same name.
    pub fn extended(&self, extension: &Extension) -> Result<Policy, RuleError> {
        let mut sources = self.sources.clone();
        let optional = optional()?;
        for name in &extension.allow {
            let rule =
                optional.command.iter().find(|rule| rule.name == *name).ok_or_else(|| {
                    let names: Vec<&str> =
                        optional.command.iter().map(|rule| rule.name.as_str()).collect();
                    RuleError::Optional(name.clone(), names.join(", "))
                })?;
            sources.push(RuleFile { command: vec![rule.clone()], ..RuleFile::default() });
        }
        sources.push(extension.rules.clone());
        let classes = self.files.classes().iter().chain(&extension.files).cloned().collect();
        let limits = extension.limits.clone().unwrap_or_else(|| self.limits.clone());
        let policy = Policy::of(classes, sources, limits)?;
        policy.check_examples(&extension.rules, &extension.files)?;
        policy.check_restrictions(&extension.narrow)?;
        let own = (extension.narrow != Restrictions::default())
            .then(|| (RestrictionSource::Server, extension.narrow.clone()));
        let restrictions = self.restrictions.iter().cloned().chain(own).collect();
        Ok(Policy {
            restrictions,
            change_verdict: self.change_verdict,
            own_files: self.own_files,
            tools: self.tools.clone(),
            ..policy
        })
    }

    /// The policy with further restrictions. A restriction gives one more verdict, and the
    /// strictest verdict wins, so a restriction cannot allow what another rule denies.
    pub fn restricted(&self, source: RestrictionSource, restrictions: Restrictions) -> Policy {
        let mut policy = self.clone();
        policy.restrictions.push((source, restrictions));
        policy
    }

    /// Checks that every restriction names a tool or a command that exists.
    pub fn check_restrictions(&self, restrictions: &Restrictions) -> Result<(), RuleError> {
        fn ids<'r>(rule: &'r Rule, all: &mut Vec<&'r str>) {
            all.push(&rule.id);
            rule.children.values().for_each(|child| ids(child, all));
        }
        let optional = optional()?;
        let mut all: Vec<&str> = self.tools.gated().map(|tool| tool.name).collect();
        self.commands.values().for_each(|rule| ids(rule, &mut all));
        // A restriction may also name commands that are not allowed here anyway, to make sure that
        // they stay so.
        all.extend(optional.command.iter().map(|rule| rule.name.as_str()));
        all.extend(self.refused.keys().map(String::as_str));
        match restrictions.unused_key(&all) {
            Some(key) => Err(RuleError::Restriction(key.to_owned())),
            None => Ok(()),
        }
    }

    /// The policy for these tools.
    pub fn with_tools(&self, tools: ToolTable) -> Policy {
        Policy { tools, ..self.clone() }
    }

    pub fn tools(&self) -> &ToolTable {
        &self.tools
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Parses a call and judges it. A call that does not parse is denied with the code of the
    /// error.
    pub fn judge_request(
        &self,
        tool_name: &str,
        params: serde_json::Value,
        roots: &Roots,
    ) -> (Result<ToolCall, CallError>, Judgement) {
        let call =
            ToolCall::parse_on(Surface::Gate, &self.tools, tool_name, params, roots, &self.limits);
        let judgement = match &call {
            Ok(call) => self.judge(call, roots),
            Err(error) => Judgement::denied(error.code(), error.code().as_str(), error.to_string()),
        };
        (call, judgement)
    }

    /// Judges a call by its text.
    pub fn judge(&self, call: &ToolCall, roots: &Roots) -> Judgement {
        if self.own_files && (call.tool.runs_commands() || call.tool.is_layered()) {
            return own_files::no_commands();
        }
        if let Some(command) = call.command() {
            return self.judge_command(command, roots);
        }
        let verdict = match call.tool.rating {
            // Deleting a conversation's own file is a change like any other: restoring undoes it.
            Rating::Always(_) if self.own_files && !call.tool.only_reads() => self.change_verdict,
            Rating::Always(verdict) => verdict,
            Rating::Shell => return self.judge_shell(call),
            Rating::Landing => Verdict::Medium,
            Rating::Change | Rating::Command => self.change_verdict,
        };
        let mut judgement = Judgement::new(verdict, call.name(), call.tool.reason);
        for (param, path) in call.paths() {
            if let Some(access) = param.kind.access() {
                judgement = self.stricter_for_file(judgement, path, access);
            }
        }
        for (param, path) in call.paths() {
            if param.kind.access() == Some(Access::Remove) {
                judgement = self.protect_top_level(judgement, path, false);
            }
        }
        for (param, glob) in call.globs() {
            let Kind::Glob(Some(access)) = param.kind else { continue };
            if let Some(class) = self.files.class(glob.as_str(), access) {
                let found = class.judgement("the files searched").about(call.name());
                judgement = judgement.stricter(found);
            }
        }
        self.restrict(judgement, &[call.name()])
    }

    /// Makes a judgement stricter if the class of a file that the call uses demands it.
    fn stricter_for_file(
        &self,
        judgement: Judgement,
        path: &WorkspacePath,
        access: Access,
    ) -> Judgement {
        match self.files.class(path.relative(), access) {
            Some(class) => {
                let found = class.judgement(path.as_str()).about(judgement.subject());
                judgement.stricter(found)
            }
            None => judgement,
        }
    }

    fn judge_command(&self, call: &Command, roots: &Roots) -> Judgement {
        let Some(rule) = self.commands.get(call.command.as_str()) else {
            return self.unknown_command(&call.command);
        };
        let (judgement, leaf) = Judge::new(&self.files, roots, &call.cwd).judge(rule, call);
        let default =
            if leaf.slow { self.limits.timeout_slow } else { self.limits.timeout_default };
        let timeout = Some(call.timeout.unwrap_or(default));
        self.restrict(Judgement { timeout, ..judgement }, &["execute_command", &rule.id, &leaf.id])
    }

    /// The judgement of a command that has no rule.
    fn unknown_command(&self, command: &str) -> Judgement {
        let reason = match self.refused.get(command) {
            Some(why) => format!("Command not allowed: {why}"),
            None if has_arguments(command) => {
                "Command not allowed: it is not one simple command, and there is no shell here."
                    .to_owned()
            }
            None if command.contains(['/', '\\']) => {
                "Command not allowed: programs are called by their bare name, never by a path."
                    .to_owned()
            }
            None => "Command not allowed: it is not on the list of commands.".to_owned(),
        };
        let rule =
            if self.refused.contains_key(command) { "command.refused" } else { "command.unknown" };
        // A command without a rule can still be tried in a layer, where it changes nothing.
        let reason = match self.shell_is_off() {
            true => reason,
            false => format!("{reason} The `shell` tool runs any command in a layer."),
        };
        Judgement::denied(FailureCode::CommandNotAllowed, rule, reason)
    }

    /// Applies all restrictions to the judgement of a call. `rules` are the names that restrictions
    /// can use for the call: its tool, command and subcommand.
    fn restrict(&self, judgement: Judgement, rules: &[&str]) -> Judgement {
        self.restrictions.iter().fold(judgement, |judgement, (source, restrictions)| {
            restrictions.apply(*source, judgement, rules)
        })
    }

    /// The paths that a call names, for the executor to resolve. It is called only when a call
    /// runs, because it allocates and judging a call does not.
    pub fn paths(&self, call: &ToolCall, roots: &Roots) -> Vec<PathUse> {
        let Some(command) = call.command() else {
            let used = call.paths().filter_map(|(param, path)| {
                let access = param.kind.access()?;
                Some(PathUse { raw: path.as_str().to_owned(), path: path.clone(), access })
            });
            return used.collect();
        };
        let Some(rule) = self.commands.get(command.command.as_str()) else { return Vec::new() };
        let mut judge = Judge::new(&self.files, roots, &command.cwd);
        judge.paths = Some(Vec::new());
        judge.judge(rule, command);
        let mut paths = judge.paths.take().unwrap_or_default();
        if !command.cwd.is_root() {
            // The working directory of the command is resolved like any other path.
            paths.push(PathUse {
                raw: ".".to_owned(),
                path: command.cwd.clone(),
                access: Access::Read,
            });
        }
        paths
    }

    /// Patterns for the paths of files that need approval to be read. A search for such files is
    /// valid as long as these patterns stay the same.
    pub fn guarded_globs(&self) -> Vec<String> {
        self.files.guarded_globs()
    }

    /// Whether the path is of a kind that people are asked about before it is read.
    pub fn is_secret_file(&self, path: &str) -> bool {
        self.files.class(path, Access::Read).is_some_and(|class| class.verdict > Verdict::Low)
    }

    /// Whether the rule that rated a call says that it may show secrets: because of the kind of a
    /// file, or because git's history may hold such files. A kind that a server has added counts as
    /// well.
    pub fn is_about_secrets(&self, rule: &str) -> bool {
        rule.split_whitespace().any(|part| match part.strip_prefix("file.") {
            Some("read" | "write" | "remove") => false,
            Some(id) => self.files.guards(id).unwrap_or(true),
            None => part == HISTORY,
        })
    }

    /// Whether only git reads this entry of a repository's folder. The path starts in that folder,
    /// wherever it lies and whatever it is called.
    pub fn seals(&self, path: &str) -> bool {
        let inside = format!(".git/{path}");
        self.files.class(&inside, Access::Read).is_some_and(|class| class.verdict == Verdict::Deny)
    }

    /// Judges copying a folder, once its links are resolved. Some files are protected because of
    /// the folder that they are in, and in the copy nothing would recognise them.
    pub fn judge_copied(&self, folder: &WorkspacePath) -> Judgement {
        match self.files.leading_to(folder.relative()) {
            Some(class) => class.judgement(folder.as_str()),
            None => Judgement::new(Verdict::Low, "file.read", "The folder is only looked at."),
        }
    }

    /// Judges one path that a tool outside this catalog is about to use. The restrictions on that
    /// tool apply.
    pub fn judge_path(&self, tool: &str, path: &WorkspacePath, access: Access) -> Judgement {
        self.restrict(self.judge_resolved(path, access, false), &[tool])
    }

    /// Judges one path again after the executor has resolved its links and knows whether it is a
    /// directory.
    pub fn judge_resolved(
        &self,
        resolved: &WorkspacePath,
        access: Access,
        is_directory: bool,
    ) -> Judgement {
        let judgement = self.files.judge(resolved, access, self.change_verdict);
        if access == Access::Remove {
            self.protect_top_level(judgement, resolved, is_directory)
        } else {
            judgement
        }
    }

    /// Denies moving or deleting the root of the workspace and the directories directly beneath
    /// it. A conversation's own directories can be restored, so they are not protected.
    fn protect_top_level(
        &self,
        judgement: Judgement,
        path: &WorkspacePath,
        is_directory: bool,
    ) -> Judgement {
        let directory = is_directory || path.demands_directory();
        if path.is_root() || (path.depth() == 1 && directory && !self.own_files) {
            let denied = Judgement::denied(
                FailureCode::WriteNotAllowed,
                format!("{} top-level", judgement.rule),
                TOP_LEVEL,
            );
            return judgement.stricter(denied);
        }
        judgement
    }
}

/// Whether the text is the bare name of a program followed by arguments.
fn has_arguments(command: &str) -> bool {
    let program = command.trim().split_once(char::is_whitespace);
    program.is_some_and(|(program, _)| !program.contains(['/', '\\']))
}

fn optional() -> Result<RuleFile, RuleError> {
    toml::from_str(OPTIONAL).map_err(|error| RuleError::Toml(error.to_string()))
}

#[cfg(test)]
mod tests;
