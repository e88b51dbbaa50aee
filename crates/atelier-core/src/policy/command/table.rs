//! Rules for commands: the data in `rules/*.toml`, and the tables that the data is compiled into.

use super::kind::Kind;
use crate::policy::verdict::Verdict;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// A fault in the data of rules. The built-in rules are tested, so only the rules of a server can
/// have one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("the rules are not valid TOML: {0}")]
    Toml(String),
    #[error("rule {rule}: {line:?} is not an option: {why}")]
    Option { rule: String, line: String, why: String },
    #[error("rule {rule}: there is no group {group:?}")]
    Group { rule: String, group: String },
    #[error("allow: {0:?} is none of the commands that can be allowed by name: {1}")]
    Optional(String, String),
    #[error("{0:?} is neither a tool nor a command with a rule")]
    Restriction(String),
    /// A rule for a subcommand has no rule for its command.
    #[error("rule {0}: there is no rule for its command")]
    Orphan(String),
    #[error("rule {rule}: the example {example:?} is {found}")]
    Example { rule: String, example: String, found: String },
}

/// One file of rules.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Named groups of options that several commands share.
    #[serde(default)]
    pub(crate) group: BTreeMap<String, Group>,
    #[serde(default)]
    pub(crate) command: Vec<CommandData>,
    /// Commands that are refused for a stated reason. Other commands without a rule are refused as
    /// unknown.
    #[serde(default)]
    pub(crate) refused: BTreeMap<String, String>,
}

/// Options that several commands share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    #[serde(default)]
    pub(crate) flags: String,
    #[serde(default)]
    pub(crate) options: String,
}

/// The rule for a command or a subcommand (`name = "git push"`), as written in the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandData {
    pub(crate) name: String,
    /// Other names of the same command.
    #[serde(default)]
    aliases: Vec<String>,
    /// Other subcommands of the same command that have the same rule. Each is a class of its own.
    #[serde(default)]
    also: Vec<String>,
    /// The verdict of the command if no argument makes it stricter.
    pub(crate) verdict: Verdict,
    /// The reason for the verdict, in one sentence.
    says: String,
    #[serde(default)]
    grammar: Grammar,
    /// The kinds of the operands, in order. A kind with `*` stands for any number of operands.
    #[serde(default)]
    operands: String,
    /// The kind of the operands after `--`, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// The kind of everything after the first operand, if nothing there is an option of this
    /// command any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    rest: Option<String>,
    /// Groups whose options this command has.
    #[serde(default)]
    include: Vec<String>,
    /// Options without a value, separated by spaces. The names of one option are joined by commas:
    /// `-i,--ignore-case`.
    #[serde(default)]
    flags: String,
    /// Options, one on each line: `-f,--file =read !high ^ # reason`.
    #[serde(default)]
    options: String,
    /// The verdict of an unknown subcommand, or `operand` if it is an ordinary operand.
    #[serde(default)]
    otherwise: Otherwise,
    /// Whether the options of the command are also allowed after a subcommand.
    #[serde(default)]
    anywhere: bool,
    /// Whether a number may be an option, such as `-5`.
    #[serde(default)]
    digits: bool,
    /// Whether the command runs a program or script and passes options on to it. Unlisted options
    /// after the fixed operands then belong to that program.
    #[serde(default)]
    passes: bool,
    /// Whether the command needs the network.
    #[serde(default)]
    network: bool,
    /// Whether this git command stays in the working tree and the local history. If it is MEDIUM, a
    /// permission for all local git commands covers it.
    #[serde(default)]
    local: bool,
    /// Whether the command gets the long default timeout.
    #[serde(default)]
    slow: bool,
    /// Examples of the form `verdict: command line`, one on each line.
    #[serde(default)]
    pub(crate) examples: String,
}

/// How a program parses its options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grammar {
    /// The program parses options like getopt_long: bundles of letters (`-la`), values glued to the
    /// option (`-n5`), abbreviated names, and options after operands.
    #[default]
    Gnu,
    /// Like `Gnu`, and `--no-x` undoes `--x`.
    Git,
    /// Like `Gnu`, and `_` in a long name is the same as `-`.
    Node,
    /// Like `Gnu`, but a long name may have a single dash, and a flag may have a value
    /// (`--flag=true`), as in npm.
    Nopt,
    /// Like `Gnu`, but a first argument without a dash is a bundle of letters too.
    Tar,
    /// Long names with a single dash, and the value in the next argument, as in find.
    Single,
    /// Like `Single`, and the value may also follow `=`, as in go.
    Equals,
    /// Like `Single`, and the value may also be glued to the name, as in gcc.
    Glued,
    /// Nothing is an option, as in echo.
    Plain,
}

/// The treatment of an unknown word in the place of a subcommand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Otherwise {
    #[default]
    Deny,
    High,
    Medium,
    /// The word is an ordinary operand.
    Operand,
}

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    Flag,
    Required,
    /// The option may have a value, but only glued to it: `--color=auto`, `-i.bak`.
    Optional,
}

/// A compiled option.
#[derive(Debug, Clone)]
pub(crate) struct Opt {
    pub(crate) name: Box<str>,
    pub(crate) arity: Arity,
    pub(crate) kind: Kind,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) reason: Box<str>,
    /// Whether the value takes the place of a fixed operand: `grep -e x` has no pattern among its
    /// operands.
    pub(crate) fills: bool,
    /// Whether the option makes the command write its operands, as `sed -i` does.
    pub(crate) writes: bool,
    /// Whether everything that follows belongs to the program that is run, as in `python -m x …`.
    pub(crate) ends: bool,
}

/// The kinds of the operands of a command, by their position.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operands {
    /// The kinds of the first operands.
    pub(crate) first: Vec<Kind>,
    /// The kind of any number of operands between the first and the last.
    pub(crate) many: Option<Kind>,
    /// The kinds of the last operands.
    pub(crate) last: Vec<Kind>,
}

/// The compiled rule for a command or a subcommand. The fields mean the same as in [`CommandData`].
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) verdict: Verdict,
    pub(crate) says: Box<str>,
    pub(crate) grammar: Grammar,
    pub(crate) operands: Operands,
    pub(crate) after: Option<Kind>,
    pub(crate) rest: Option<Kind>,
    pub(crate) otherwise: Otherwise,
    pub(crate) anywhere: bool,
    pub(crate) digits: bool,
    pub(crate) passes: bool,
    pub(crate) network: bool,
    pub(crate) local: bool,
    pub(crate) slow: bool,
    pub(crate) table: Table,
    /// The rules for subcommands.
    pub(crate) children: HashMap<Box<str>, Rule>,
}

/// The options of a command, indexed by letter, by name and by the beginning of a name.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) opts: Vec<Opt>,
    /// For each letter, one more than the position of its option, or 0 if there is none.
    letter: [u16; 128],
    /// Options of two letters after a single dash, which only zip has.
    pair: HashMap<Box<str>, usize>,
    /// Long names, sorted, so that all names with the same beginning are next to each other.
    long: Vec<(Box<str>, usize)>,
    /// Beginnings of names, which have `*` at the end in the data, longest first.
    starts: Vec<(Box<str>, usize)>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            opts: Vec::new(),
            letter: [0; 128],
            pair: HashMap::new(),
            long: Vec::new(),
            starts: Vec::new(),
        }
    }
}

impl Table {
    /// The option at the beginning of a bundle of letters, and how many letters it has.
    pub(crate) fn short(&self, bundle: &str) -> Option<(&Opt, usize)> {
        if !self.pair.is_empty()
            && let Some(at) = bundle.get(..2).and_then(|pair| self.pair.get(pair))
        {
            return Some((&self.opts[*at], 2));
        }
        let letter = *bundle.as_bytes().first()?;
        let at = usize::from(*self.letter.get(usize::from(letter))?).checked_sub(1)?;
        Some((&self.opts[at], 1))
    }

    pub(crate) fn long(&self, name: &str) -> Option<&Opt> {
        let found = self.long.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.opts[self.long[found].1])
    }

    /// Every option that the name could be an abbreviation of.
    pub(crate) fn abbreviated<'t, 'n>(
        &'t self,
        name: &'n str,
    ) -> impl Iterator<Item = &'t Opt> + use<'t, 'n> {
        let from = self.long.partition_point(|(known, _)| **known < *name);
        self.long[from..]
            .iter()
            .take_while(move |(known, _)| known.starts_with(name))
            .map(|(_, at)| &self.opts[*at])
    }

    /// The option with the longest name that the argument begins with, and the rest of the
    /// argument.
    pub(crate) fn glued<'t, 'a>(&'t self, arg: &'a str) -> Option<(&'t Opt, &'a str)> {
        self.starts
            .iter()
            .find_map(|(start, at)| Some((&self.opts[*at], arg.strip_prefix(&**start)?)))
    }

    fn add(&mut self, names: &str, opt: Opt, grammar: Grammar) {
        let at = self.opts.len();
        for name in names.split(',') {
            if let Some(start) = name.strip_suffix('*') {
                self.starts.push((start.into(), at));
                continue;
            }
            let glued = grammar == Grammar::Glued && opt.arity == Arity::Required;
            if glued {
                self.starts.push((name.into(), at));
            }
            match (grammar, name.strip_prefix("--")) {
                (Grammar::Single | Grammar::Equals | Grammar::Glued, _) => self.set_long(name, at),
                (_, Some(long)) => self.set_long(long, at),
                (_, None) => {
                    let letters = &name[1..];
                    match letters.as_bytes() {
                        // A name of a single byte is ASCII.
                        [letter] => self.letter[usize::from(*letter)] = at as u16 + 1,
                        _ => {
                            self.pair.insert(letters.into(), at);
                        }
                    }
                }
            }
        }
        self.opts.push(opt);
        self.starts.sort_by_key(|(start, _)| std::cmp::Reverse(start.len()));
    }

    fn set_long(&mut self, name: &str, at: usize) {
        // The later line wins, so that a server can redefine a built-in option.
        match self.long.binary_search_by(|(known, _)| (**known).cmp(name)) {
            Ok(found) => self.long[found].1 = at,
            Err(place) => self.long.insert(place, (name.into(), at)),
        }
    }
}

/// Compiles the rules of all files, by the names of their commands.
pub(crate) fn compile(files: &[RuleFile]) -> Result<HashMap<Box<str>, Rule>, RuleError> {
    let groups: HashMap<&str, &Group> = files
        .iter()
        .flat_map(|file| &file.group)
        .map(|(name, group)| (name.as_str(), group))
        .collect();
    let mut commands: Vec<&CommandData> = files.iter().flat_map(|file| &file.command).collect();
    // Commands come before their subcommands. Of two rules with the same name, the later one wins.
    commands.sort_by_key(|data| data.name.matches(' ').count());
    let mut top: HashMap<Box<str>, Rule> = HashMap::new();
    for data in commands {
        let rule = data.compile(&groups)?;
        let (parents, name) = data.name.rsplit_once(' ').unwrap_or(("", &data.name));
        let mut place = &mut top;
        for parent in parents.split(' ').filter(|parent| !parent.is_empty()) {
            let parent =
                place.get_mut(parent).ok_or_else(|| RuleError::Orphan(data.name.clone()))?;
            place = &mut parent.children;
        }
        for alias in &data.aliases {
            place.insert(alias.as_str().into(), rule.clone());
        }
        for other in &data.also {
            let id = format!("{parents} {other}").trim_start().replace(' ', ".").into();
            place.insert(other.as_str().into(), Rule { id, ..rule.clone() });
        }
        place.insert(name.into(), rule);
    }
    // An alias of a command was copied above before the command had its subcommands, so copy it
    // again.
    for data in files.iter().flat_map(|file| &file.command).filter(|data| !data.name.contains(' '))
    {
        for alias in &data.aliases {
            if let Some(rule) = top.get(data.name.as_str()).cloned() {
                top.insert(alias.as_str().into(), rule);
            }
        }
    }
    Ok(top)
}

impl CommandData {
    fn compile(&self, groups: &HashMap<&str, &Group>) -> Result<Rule, RuleError> {
        let mut table = Table::default();
        for name in &self.include {
            let group = groups
                .get(name.as_str())
                .ok_or_else(|| RuleError::Group { rule: self.name.clone(), group: name.clone() })?;
            self.fill(&mut table, &group.flags, &group.options)?;
        }
        self.fill(&mut table, &self.flags, &self.options)?;
        let kind = |text: &String| Kind::parse(text).map_err(|why| self.fault(text, why));
        Ok(Rule {
            id: self.name.replace(' ', ".").into(),
            verdict: self.verdict,
            says: self.says.as_str().into(),
            grammar: self.grammar,
            operands: self.operand_kinds()?,
            after: self.after.as_ref().map(kind).transpose()?,
            rest: self.rest.as_ref().map(kind).transpose()?,
            otherwise: self.otherwise,
            anywhere: self.anywhere,
            digits: self.digits,
            passes: self.passes,
            network: self.network,
            local: self.local,
            slow: self.slow,
            table,
            children: HashMap::new(),
        })
    }

    fn fault(&self, line: &str, why: impl Into<String>) -> RuleError {
        RuleError::Option { rule: self.name.clone(), line: line.to_owned(), why: why.into() }
    }

    fn operand_kinds(&self) -> Result<Operands, RuleError> {
        let mut operands = Operands::default();
        for word in self.operands.split_whitespace() {
            let (name, many) = word.strip_suffix('*').map_or((word, false), |name| (name, true));
            let kind = Kind::parse(name).map_err(|why| self.fault(word, why))?;
            match (many, operands.many.is_some()) {
                (true, _) => operands.many = Some(kind),
                (false, false) => operands.first.push(kind),
                (false, true) => operands.last.push(kind),
            }
        }
        Ok(operands)
    }

    fn fill(&self, table: &mut Table, flags: &str, options: &str) -> Result<(), RuleError> {
        for names in flags.split_whitespace() {
            let opt = self.option(names, names)?;
            table.add(names, opt, self.grammar);
        }
        for line in options
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("# "))
        {
            let names = line.split_whitespace().next().unwrap_or_default();
            let opt = self.option(names, line)?;
            table.add(names, opt, self.grammar);
        }
        Ok(())
    }

    /// Parses a line of the form `NAMES [=kind|?kind] [!verdict] [^] [+write] [$] [# reason]`.
    /// `rules/look.toml` explains the signs.
    fn option(&self, names: &str, line: &str) -> Result<Opt, RuleError> {
        let (spec, reason) = line.split_once(" # ").unwrap_or((line, ""));
        let mut opt = Opt {
            name: names.split(',').next_back().unwrap_or(names).trim_end_matches('*').into(),
            arity: Arity::Flag,
            kind: Kind::Data,
            verdict: None,
            reason: reason.trim().into(),
            fills: false,
            writes: false,
            ends: false,
        };
        if !names.split(',').all(|name| name.len() > 1 && name.starts_with('-')) {
            return Err(self.fault(line, "an option's name begins with a dash"));
        }
        for word in spec.split_whitespace().skip(1) {
            let fault = |why: String| self.fault(line, why);
            match word.split_at(1) {
                ("=", kind) => {
                    (opt.arity, opt.kind) = (Arity::Required, Kind::parse(kind).map_err(fault)?);
                }
                ("?", kind) => {
                    (opt.arity, opt.kind) = (Arity::Optional, Kind::parse(kind).map_err(fault)?);
                }
                ("!", verdict) => {
                    opt.verdict = Some(verdict.parse().map_err(|_| fault(verdict.to_owned()))?);
                }
                ("^", "") => opt.fills = true,
                ("+", "write") => opt.writes = true,
                ("$", "") => opt.ends = true,
                _ => return Err(self.fault(line, format!("{word:?} means nothing"))),
            }
        }
        if opt.verdict.is_some() && opt.reason.is_empty() {
            return Err(self.fault(line, "a verdict needs its reason"));
        }
        Ok(opt)
    }
}
