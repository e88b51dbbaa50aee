//! Parses a command line as its program would: bundles, glued values, abbreviations and
//! subcommands.

use super::{
    Judge,
    kind::{Kind, listed},
    table::{Arity, Grammar, Opt, Otherwise, Rule},
    unlisted::{exactly, is_suspicious},
};
use crate::policy::verdict::Verdict;

/// The state after a part of the arguments has been read.
struct Seen<'p, 'c> {
    /// The rule of the command, which also has the rules of modules that the command can run.
    root: &'p Rule,
    /// The rule that applies, last, and before it the rules of its parents whose options still
    /// apply.
    rules: Vec<&'p Rule>,
    /// The operands, and whether each came after `--`.
    operands: Vec<(&'c str, bool)>,
    /// Whether the value of an option has taken the place of a fixed operand.
    filled: bool,
    /// Whether an option makes the command write its operands.
    written: bool,
    /// Whether the place of the subcommand is taken by a word that is not a known subcommand.
    chosen: bool,
}

/// How the arguments after an option are read.
pub(super) enum Next<'p> {
    /// More options and operands of the same command.
    Options,
    /// Arguments of the program that is run, which may have a rule of its own.
    Arguments(Option<&'p Rule>),
}

impl<'p, 'c> Judge<'p, 'c> {
    /// Reads the arguments, rates them, and returns the rule that they fall under: the rule of the
    /// command, or of a subcommand.
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
            let option =
                !dashes && arg.len() > 1 && arg.starts_with('-') && leaf.grammar != Grammar::Plain;
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
                // The children named `-m` are for modules, which are found through that option.
                if let Some(child) =
                    leaf.children.get(arg.as_str()).filter(|_| !arg.starts_with('-'))
                {
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
                format!("{} has no subcommand {name:?} that a rule knows.", leaf.id).into(),
            )
        });
    }

    fn option(
        &mut self,
        seen: &mut Seen<'p, 'c>,
        arg: &'c str,
        rest: &mut &'c [String],
    ) -> Next<'p> {
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
                // The program accepts every unambiguous abbreviation, so the rules do too.
                let mut short_for =
                    seen.rules.iter().rev().flat_map(|rule| rule.table.abbreviated(name));
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
            // npm also accepts `true` or `false` as the next argument.
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

    fn bundle(
        &mut self,
        seen: &mut Seen<'p, 'c>,
        arg: &'c str,
        rest: &mut &'c [String],
    ) -> Next<'p> {
        let mut letters = &arg[1..];
        while let Some(letter) = letters.chars().next() {
            let Some((opt, taken)) = seen.find(|rule| rule.table.short(letters)) else {
                if letter.is_ascii_digit() && seen.leaf().digits {
                    letters = &letters[1..];
                    continue;
                }
                // The rest of the bundle may be the value of the letter.
                self.argument(&letters[letter.len_utf8()..]);
                return self.passed(seen, arg);
            };
            letters = &letters[taken..];
            let value = match opt.arity {
                Arity::Flag => None,
                Arity::Optional => {
                    Some(std::mem::take(&mut letters)).filter(|value| !value.is_empty())
                }
                Arity::Required if letters.is_empty() => match rest.split_first() {
                    Some((next, tail)) => {
                        *rest = tail;
                        Some(next.as_str())
                    }
                    None => return self.valueless(opt),
                },
                // In `-f=x`, getopt reads the value `=x`; other parsers drop the sign. Both paths
                // have the same risk.
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

    fn single(
        &mut self,
        seen: &mut Seen<'p, 'c>,
        arg: &'c str,
        rest: &mut &'c [String],
    ) -> Next<'p> {
        let grammar = seen.leaf().grammar;
        let (name, value) = match (grammar, arg.split_once('=')) {
            (Grammar::Equals, Some((name, value))) => (name, Some(value)),
            _ => (arg, None),
        };
        let name =
            if grammar == Grammar::Equals && name.starts_with("--") { &name[1..] } else { name };
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
                // For `-newerXY` of find, the next argument is a path, unless Y is `t`: then it is
                // a time.
                if grammar == Grammar::Single && opt.arity == Arity::Required {
                    let Some((next, tail)) = rest.split_first() else { return self.valueless(opt) };
                    *rest = tail;
                    return if glued.ends_with('t') {
                        Next::Options
                    } else {
                        self.found(seen, opt, Some(next))
                    };
                }
                // In `-test.outputdir=x`, the rest of the name may be a value, and `x` is a value.
                if let Some(value) = value {
                    self.value(&opt.kind, value);
                }
                let glued = glued.strip_prefix('=').unwrap_or(glued);
                self.found(seen, opt, Some(glued).filter(|glued| !glued.is_empty()))
            }
            None => self.unlisted(arg),
        }
    }

    /// Reads a first argument without a dash, as in `tar xfC a.tar dir`: letters, and then a value
    /// for each letter that needs one.
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

    /// Rates an option that a rule lists, and its value.
    fn found(&mut self, seen: &mut Seen<'p, 'c>, opt: &'p Opt, value: Option<&'c str>) -> Next<'p> {
        seen.filled |= opt.fills;
        seen.written |= opt.writes;
        if let (Kind::In(_), None, Arity::Optional) = (&opt.kind, value, opt.arity) {
            // Without a value, the option means one of the listed values.
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
        // `python -m pytest …` falls under the rule `python -m pytest`, even if another module runs
        // pytest.
        Next::Arguments(
            value.and_then(|value| seen.root.children.get(&*opt.name)?.children.get(value)),
        )
    }

    /// Rates an option that no rule of the command lists. If the command has named the program that
    /// it runs, the option is passed on to that program.
    fn passed(&mut self, seen: &Seen<'p, 'c>, arg: &'c str) -> Next<'p> {
        let leaf = seen.leaf();
        let named = seen.operands.len() >= leaf.operands.first.len();
        if !leaf.passes || !named || is_suspicious(arg) {
            return self.unlisted(arg);
        }
        self.argument(arg.split_once('=').map_or(arg, |(_, value)| value));
        Next::Options
    }

    /// Rates an option that needs a value but is the last argument.
    fn valueless(&mut self, opt: &Opt) -> Next<'p> {
        self.unlisted = true;
        self.raise(opt.verdict.unwrap_or(Verdict::High).max(Verdict::High), || {
            (
                format!("option.valueless {}", opt.name).into(),
                format!("The option {} lacks its value.", opt.name).into(),
            )
        });
        Next::Options
    }

    /// Denies an abbreviation that several options have.
    fn ambiguous(&mut self, arg: &str) -> Next<'p> {
        self.unlisted = true;
        self.raise(Verdict::Deny, || {
            let arg: String = arg.chars().take(40).collect();
            (
                "option.ambiguous".into(),
                format!("--{arg} could be short for several options.").into(),
            )
        });
        Next::Options
    }

    /// Rates the operands. The kind of an operand depends on its position and on how many operands
    /// there are, so this is done at the end.
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
                _ if at >= count.saturating_sub(last.len()) => {
                    Some(&last[last.len() - (count - at)])
                }
                _ => leaf.operands.many.as_ref(),
            };
            match kind {
                // git shows a key that has no value, and does not set it.
                Some(Kind::LoneKey) if count == 1 => {}
                Some(kind) => self.value(kind, text),
                None if leaf.children.is_empty() => {
                    self.argument(text);
                    self.raise(Verdict::High, || {
                        let about = format!("operand.unlisted {}", exactly(text));
                        (about.into(), "It has more arguments than its rule knows.".into())
                    });
                }
                None => self.argument(text),
            }
            if seen.written && kind != Some(&Kind::Sed) {
                self.value(&Kind::Write, text);
            }
        }
        if let Some(dest) = self.dest {
            self.rate_copies_into(dest, seen.operands.iter().map(|(text, _)| *text));
        }
        if let Some(suffix) = self.suffix {
            let script = usize::from(first.first() == Some(&Kind::Sed));
            self.suffixed(suffix, seen.operands.iter().skip(script).map(|(text, _)| *text));
        }
        seen.operands.clear();
    }
}

impl<'p, 'c> Seen<'p, 'c> {
    /// The rule that applies.
    fn leaf(&self) -> &'p Rule {
        self.rules[self.rules.len() - 1]
    }

    /// Whether the command parses its options like npm.
    fn nopt(&self) -> bool {
        self.rules.iter().any(|rule| rule.grammar == Grammar::Nopt)
    }

    /// Whether npm would read `-name` as `--name`.
    fn is_long(&self, arg: &str) -> bool {
        let name = arg.split('=').next().unwrap_or(arg);
        name.len() > 3
            && self.rules.iter().any(|rule| rule.table.abbreviated(name).next().is_some())
    }

    /// The answer of the innermost rule that knows an option.
    fn find<T>(&self, known: impl FnMut(&'p Rule) -> Option<T>) -> Option<T> {
        self.rules.iter().rev().copied().find_map(known)
    }
}

/// Whether `--no-x` undoes a listed option `--x`.
fn takes_back(seen: &Seen<'_, '_>, name: &str) -> bool {
    let Some(positive) = name.strip_prefix("no-") else { return false };
    seen.find(|rule| rule.table.long(positive)).is_some()
}
