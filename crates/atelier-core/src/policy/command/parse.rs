//! Taking a command line apart as its program would: bundles, glued values, abbreviations, sub-commands.

use super::{
    Judge,
    kind::{Kind, listed},
    table::{Arity, Grammar, Opt, Otherwise, Rule},
};
use crate::policy::verdict::Verdict;

/// What was seen while walking the arguments.
struct Seen<'p, 'c> {
    /// The command's own rule, which knows the modules that it runs.
    root: &'p Rule,
    /// The rule in force, and those above it whose options are still good.
    rules: Vec<&'p Rule>,
    operands: Vec<(&'c str, bool)>,
    filled: bool,
    written: bool,
    chosen: bool,
}

/// How the walk goes on after an option.
enum Next<'p> {
    Options,
    /// Everything that follows belongs to the program that is run, which may have a rule of its own.
    Arguments(Option<&'p Rule>),
}

/// Words in the name of an option nobody listed that say it runs something or reads its arguments elsewhere.
const TELLING: [&str; 22] = [
    "exec",
    "command",
    "cmd",
    "program",
    "plugin",
    "pager",
    "editor",
    "hook",
    "loader",
    "preload",
    "shell",
    "askpass",
    "from-file",
    "files-from",
    "files0",
    "wrapper",
    "script",
    "eval",
    "config",
    "upload-pack",
    "receive-pack",
    "proxy",
];

impl<'p, 'c> Judge<'p, 'c> {
    /// Walks the arguments and gives the rule they fall under: the command's, or its sub-command's.
    pub(super) fn walk(&mut self, rule: &'p Rule, args: &'c [String]) -> &'p Rule {
        let mut seen = Seen {
            root: rule,
            rules: vec![rule],
            operands: Vec::new(),
            filled: false,
            written: false,
            chosen: false,
        };
        let mut rest = args;
        if rule.grammar == Grammar::Tar {
            rest = self.old_bundle(&mut seen, rest);
        }
        let mut dashes = false;
        while let Some((arg, tail)) = rest.split_first() {
            rest = tail;
            let leaf = seen.leaf();
            let option = !dashes && arg.len() > 1 && arg.starts_with('-') && leaf.grammar != Grammar::Plain;
            if option && arg == "--" {
                dashes = true;
                continue;
            }
            if option {
                match self.option(&mut seen, arg, &mut rest) {
                    Next::Options => continue,
                    Next::Arguments(Some(program)) => {
                        seen.rules = vec![program];
                        continue;
                    }
                    Next::Arguments(None) => {
                        rest.iter().for_each(|arg| self.argument(arg));
                        break;
                    }
                }
            }
            if !leaf.children.is_empty() && !seen.chosen {
                // What `-m` runs is found through the option, not by its name.
                if let Some(child) = leaf.children.get(arg.as_str()).filter(|_| !arg.starts_with('-')) {
                    seen.rules.retain(|rule| rule.anywhere);
                    seen.rules.push(child);
                    continue;
                }
                seen.chosen = true;
                self.unknown_sub_command(leaf, arg);
            }
            seen.operands.push((arg, dashes));
            if let Some(kind) = &leaf.rest {
                self.operands(&mut seen);
                rest.iter().for_each(|arg| self.value(kind, arg));
                return leaf;
            }
        }
        self.operands(&mut seen);
        seen.leaf()
    }

    fn unknown_sub_command(&mut self, leaf: &'p Rule, name: &str) {
        let verdict = match leaf.otherwise {
            Otherwise::Deny => Verdict::Deny,
            Otherwise::High => Verdict::High,
            Otherwise::Medium => Verdict::Medium,
            Otherwise::Operand => return,
        };
        self.raise(verdict, || {
            let name: String = name.chars().take(40).collect();
            (
                format!("{name:?}").into(),
                format!("{} has no sub-command {name:?} that a rule knows.", leaf.id).into(),
            )
        });
    }

    fn option(&mut self, seen: &mut Seen<'p, 'c>, arg: &'c str, rest: &mut &'c [String]) -> Next<'p> {
        match seen.leaf().grammar {
            Grammar::Single | Grammar::Equals | Grammar::Glued => self.single(seen, arg, rest),
            _ => match arg.strip_prefix("--") {
                Some(long) => self.long(seen, long, rest),
                None if seen.nopt() && seen.is_long(&arg[1..]) => self.long(seen, &arg[1..], rest),
                None => self.bundle(seen, arg, rest),
            },
        }
    }

    fn long(&mut self, seen: &mut Seen<'p, 'c>, arg: &'c str, rest: &mut &'c [String]) -> Next<'p> {
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (arg, None),
        };
        let grammar = seen.leaf().grammar;
        let dashed;
        let name = if grammar == Grammar::Node && name.contains('_') {
            dashed = name.replace('_', "-");
            &dashed
        } else {
            name
        };
        let opt = match seen.find(|rule| rule.table.long(name)) {
            Some(opt) => Some(opt),
            None => {
                // The program would take any unambiguous abbreviation, and so do the rules.
                let mut short_for = seen.rules.iter().rev().flat_map(|rule| rule.table.abbreviated(name));
                let first = short_for.next();
                let same = |opt: &Opt| first.is_some_and(|first| std::ptr::eq(first, opt));
                if short_for.all(same) { first } else { return self.ambiguous(arg) }
            }
        };
        if opt.is_none() && grammar == Grammar::Git && takes_back(seen, name) {
            return Next::Options;
        }
        let Some(opt) = opt else { return self.passed(seen, arg) };
        match (opt.arity, value) {
            (Arity::Flag, Some("true" | "false")) if seen.nopt() => self.found(seen, opt, None),
            (Arity::Flag, Some(_)) => self.unlisted(arg),
            // npm takes `true` or `false` in the next argument as well.
            (Arity::Optional, None) if seen.nopt() => match rest.split_first() {
                Some((next, tail)) if next == "true" || next == "false" => {
                    *rest = tail;
                    self.found(seen, opt, Some(next))
                }
                _ => self.found(seen, opt, None),
            },
            (Arity::Required, None) => match rest.split_first() {
                Some((next, tail)) => {
                    *rest = tail;
                    self.found(seen, opt, Some(next))
                }
                None => self.valueless(opt),
            },
            (_, value) => self.found(seen, opt, value),
        }
    }

    fn bundle(&mut self, seen: &mut Seen<'p, 'c>, arg: &'c str, rest: &mut &'c [String]) -> Next<'p> {
        let mut letters = &arg[1..];
        while let Some(letter) = letters.chars().next() {
            let Some((opt, taken)) = seen.find(|rule| rule.table.short(letters)) else {
                if letter.is_ascii_digit() && seen.leaf().digits {
                    letters = &letters[1..];
                    continue;
                }
                // What follows the letter may be its value.
                self.argument(&letters[letter.len_utf8()..]);
                return self.passed(seen, arg);
            };
            letters = &letters[taken..];
            let value = match opt.arity {
                Arity::Flag => None,
                Arity::Optional => Some(std::mem::take(&mut letters)).filter(|value| !value.is_empty()),
                Arity::Required if letters.is_empty() => match rest.split_first() {
                    Some((next, tail)) => {
                        *rest = tail;
                        Some(next.as_str())
                    }
                    None => return self.valueless(opt),
                },
                // getopt takes `-f=x` as the value `=x`; other parsers drop the sign. The path is the same risk.
                Arity::Required => {
                    Some(std::mem::take(&mut letters)).map(|v| v.strip_prefix('=').unwrap_or(v))
                }
            };
            if let Next::Arguments(program) = self.found(seen, opt, value) {
                return Next::Arguments(program);
            }
        }
        Next::Options
    }

    fn single(&mut self, seen: &mut Seen<'p, 'c>, arg: &'c str, rest: &mut &'c [String]) -> Next<'p> {
        let grammar = seen.leaf().grammar;
        let (name, value) = match (grammar, arg.split_once('=')) {
            (Grammar::Equals, Some((name, value))) => (name, Some(value)),
            _ => (arg, None),
        };
        let name = if grammar == Grammar::Equals && name.starts_with("--") { &name[1..] } else { name };
        if let Some(opt) = seen.find(|rule| rule.table.long(name)) {
            return match (opt.arity, value, rest.split_first()) {
                (Arity::Required, None, Some((next, tail))) => {
                    *rest = tail;
                    self.found(seen, opt, Some(next))
                }
                (Arity::Required, None, None) => self.valueless(opt),
                (_, value, _) => self.found(seen, opt, value),
            };
        }
        match seen.find(|rule| rule.table.glued(name)) {
            Some((opt, glued)) => {
                // `-newerXY` of find takes a path in the next argument unless Y is t, a time.
                if grammar == Grammar::Single && opt.arity == Arity::Required {
                    let Some((next, tail)) = rest.split_first() else { return self.valueless(opt) };
                    *rest = tail;
                    return if glued.ends_with('t') {
                        Next::Options
                    } else {
                        self.found(seen, opt, Some(next))
                    };
                }
                // `-test.outputdir=x`: the rest of the name may be a value, and what follows `=` is one.
                if let Some(value) = value {
                    self.value(&opt.kind, value);
                }
                let glued = glued.strip_prefix('=').unwrap_or(glued);
                self.found(seen, opt, Some(glued).filter(|glued| !glued.is_empty()))
            }
            None => self.unlisted(arg),
        }
    }

    /// `tar xfC a.tar dir`: letters first, then a value for each that wants one.
    fn old_bundle(&mut self, seen: &mut Seen<'p, 'c>, args: &'c [String]) -> &'c [String] {
        let Some((first, mut rest)) = args.split_first() else { return args };
        if first.starts_with('-') || first.is_empty() {
            return args;
        }
        let mut letters = first.as_str();
        while let Some(letter) = letters.chars().next() {
            let found = seen.find(|rule| rule.table.short(letters));
            letters = &letters[letter.len_utf8()..];
            let Some((opt, _)) = found else {
                self.unlisted(first);
                continue;
            };
            let value = if opt.arity == Arity::Required { rest.split_first() } else { None };
            if let Some((_, tail)) = value {
                rest = tail;
            }
            self.found(seen, opt, value.map(|(value, _)| value.as_str()));
        }
        rest
    }

    fn found(&mut self, seen: &mut Seen<'p, 'c>, opt: &'p Opt, value: Option<&'c str>) -> Next<'p> {
        seen.filled |= opt.fills;
        seen.written |= opt.writes;
        if let (Kind::In(_), None, Arity::Optional) = (&opt.kind, value, opt.arity) {
            // What it means without a value is one of those.
        } else if let (Kind::In(list), Some(value)) = (&opt.kind, value) {
            let verdict = opt.verdict.unwrap_or(Verdict::Deny);
            if !listed(list, value) {
                self.raise(verdict, || ((&*opt.name).into(), (&*opt.reason).into()));
            }
        } else if let Some(verdict) = opt.verdict {
            self.raise(verdict, || ((&*opt.name).into(), (&*opt.reason).into()));
        }
        if let Some(value) = value {
            self.value(&opt.kind, value);
        }
        if !opt.ends {
            return Next::Options;
        }
        // `python -m pytest …` falls under the rule `python -m pytest`, whoever hands that module on.
        Next::Arguments(value.and_then(|value| seen.root.children.get(&*opt.name)?.children.get(value)))
    }

    /// An option that no rule of the command lists: for the script it runs, once that is named.
    fn passed(&mut self, seen: &Seen<'p, 'c>, arg: &'c str) -> Next<'p> {
        let leaf = seen.leaf();
        let named = seen.operands.len() >= leaf.operands.first.len();
        if !leaf.passes || !named || telling(arg) {
            return self.unlisted(arg);
        }
        self.argument(arg.split_once('=').map_or(arg, |(_, value)| value));
        Next::Options
    }

    fn unlisted(&mut self, arg: &str) -> Next<'p> {
        self.unlisted = true;
        let name = arg.split('=').next().unwrap_or(arg);
        let telling = telling(arg);
        let verdict = if telling { Verdict::Deny } else { Verdict::High };
        self.raise(verdict, || {
            let name: String = name.chars().take(40).collect();
            let says = if telling { ", and its name says that it may run or load something" } else { "" };
            ("option.unlisted".into(), format!("No rule knows the option {name:?}{says}.").into())
        });
        Next::Options
    }

    /// A known option at the end of the line, where its value should follow.
    fn valueless(&mut self, opt: &Opt) -> Next<'p> {
        self.unlisted = true;
        self.raise(opt.verdict.unwrap_or(Verdict::High).max(Verdict::High), || {
            ("option.valueless".into(), format!("The option {} lacks its value.", opt.name).into())
        });
        Next::Options
    }

    fn ambiguous(&mut self, arg: &str) -> Next<'p> {
        self.unlisted = true;
        self.raise(Verdict::Deny, || {
            let arg: String = arg.chars().take(40).collect();
            ("option.ambiguous".into(), format!("--{arg} could be short for several options.").into())
        });
        Next::Options
    }

    /// Gives every operand its kind, once it is known how many there are.
    fn operands(&mut self, seen: &mut Seen<'p, 'c>) {
        let leaf = seen.leaf();
        let (mut first, mut last) = (leaf.operands.first.as_slice(), leaf.operands.last.as_slice());
        if seen.filled {
            if let [_, others @ ..] = first {
                first = others;
            } else {
                last = &[];
            }
        }
        let count = seen.operands.len();
        for (at, (text, dashes)) in seen.operands.iter().enumerate() {
            let kind = match &leaf.after {
                Some(kind) if *dashes => Some(kind),
                _ if at < first.len() => Some(&first[at]),
                _ if at >= count.saturating_sub(last.len()) => Some(&last[last.len() - (count - at)]),
                _ => leaf.operands.many.as_ref(),
            };
            match kind {
                // A key alone is shown, not set.
                Some(Kind::LoneKey) if count == 1 => {}
                Some(kind) => self.value(kind, text),
                None if leaf.children.is_empty() => {
                    self.argument(text);
                    self.raise(Verdict::High, || {
                        ("operand.unlisted".into(), "It has more arguments than its rule knows.".into())
                    });
                }
                None => self.argument(text),
            }
            if seen.written && kind != Some(&Kind::Sed) {
                self.value(&Kind::Write, text);
            }
        }
        if let Some(dest) = self.dest {
            self.land_in(dest, seen.operands.iter().map(|(text, _)| *text));
        }
        if let Some(suffix) = self.suffix {
            let script = usize::from(first.first() == Some(&Kind::Sed));
            self.suffixed(suffix, seen.operands.iter().skip(script).map(|(text, _)| *text));
        }
        seen.operands.clear();
    }
}

impl<'p, 'c> Seen<'p, 'c> {
    fn leaf(&self) -> &'p Rule {
        self.rules[self.rules.len() - 1]
    }

    fn nopt(&self) -> bool {
        self.rules.iter().any(|rule| rule.grammar == Grammar::Nopt)
    }

    /// Whether npm would read `-name` as `--name`.
    fn is_long(&self, arg: &str) -> bool {
        let name = arg.split('=').next().unwrap_or(arg);
        name.len() > 3 && self.rules.iter().any(|rule| rule.table.abbreviated(name).next().is_some())
    }

    /// The innermost rule that knows.
    fn find<T>(&self, known: impl FnMut(&'p Rule) -> Option<T>) -> Option<T> {
        self.rules.iter().rev().copied().find_map(known)
    }
}

/// Whether an option's name says that it may run or load something. `--no-pager` says the opposite.
fn telling(arg: &str) -> bool {
    let name = arg.split('=').next().unwrap_or(arg).trim_start_matches('-');
    !name.starts_with("no-") && TELLING.iter().any(|word| name.contains(word))
}

fn takes_back(seen: &Seen<'_, '_>, name: &str) -> bool {
    let Some(positive) = name.strip_prefix("no-") else { return false };
    seen.find(|rule| rule.table.long(positive)).is_some()
}
