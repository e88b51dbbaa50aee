//! Globs: `*`, `**`, `?`, `[abc]`, `{a,b}`, matched name by name while walking down a tree.
//!
//! A pattern is a small automaton over path components. So a walk can skip whole directories that
//! cannot match, and matching takes linear time. A pattern cannot climb: `..` is refused when the
//! pattern is parsed, and only names that a directory really contains are compared.

use crate::error::{Error, Result};

/// The most alternatives that the braces of a glob may expand to.
const MAX_ALTERNATIVES: usize = 256;
/// The longest glob pattern, in bytes.
const MAX_LENGTH: usize = 4096;

#[derive(Debug, Clone)]
pub struct Glob {
    /// All alternatives one after the other. Each ends with `End`.
    parts: Vec<Part>,
    starts: Vec<u16>,
    hidden: bool,
}

#[derive(Debug, Clone)]
enum Part {
    /// `**`: any number of directories.
    AnyDepth,
    Name(NamePattern),
    End,
}

/// The positions in the pattern that a directory has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct States(Vec<u16>);

impl Glob {
    /// Parses a pattern. Names that start with a dot match only if the pattern has the dot.
    pub fn parse(pattern: &str) -> Result<Self> {
        let refuse = |why: &str| Error::Pattern { why: why.to_owned() };
        if pattern.len() > MAX_LENGTH {
            return Err(refuse("it is too long"));
        }
        if pattern.is_empty() {
            return Err(refuse("it is empty"));
        }
        let mut glob = Self { parts: Vec::new(), starts: Vec::new(), hidden: false };
        for alternative in
            expand(pattern).ok_or_else(|| refuse("its braces expand to too many patterns"))?
        {
            if alternative.starts_with('/') {
                return Err(refuse("it must be relative"));
            }
            let at = |length: usize| u16::try_from(length).map_err(|_| refuse("it is too long"));
            glob.starts.push(at(glob.parts.len())?);
            for name in alternative.split('/').filter(|name| !name.is_empty() && *name != ".") {
                match name {
                    ".." => return Err(refuse("'..' leaves the directory")),
                    "**" => glob.parts.push(Part::AnyDepth),
                    name => glob.parts.push(Part::Name(NamePattern::parse(name))),
                }
            }
            if let Some(Part::AnyDepth) = glob.parts.last() {
                glob.parts.push(Part::Name(NamePattern::parse("*")));
            }
            glob.parts.push(Part::End);
            at(glob.parts.len())?;
        }
        Ok(glob)
    }

    /// Parses a pattern. If `any_depth` is set, a pattern without `/` matches names at any depth.
    pub fn parse_for_names(pattern: &str, any_depth: bool) -> Result<Self> {
        // Parsed once without changes, so that `any_depth` has no effect on which patterns are
        // refused.
        let plain = Self::parse(pattern)?;
        if any_depth && !pattern.contains('/') {
            Self::parse(&format!("**/{pattern}"))
        } else {
            Ok(plain)
        }
    }

    /// Makes hidden names match like other names.
    #[must_use]
    pub fn with_hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub(crate) fn start(&self) -> States {
        self.close(self.starts.clone())
    }

    /// Advances by one `name`. Returns whether it matches, and the states for the entries below it.
    pub(crate) fn step(&self, states: &States, name: &[u8]) -> (bool, States) {
        let mut next = Vec::new();
        for &state in &states.0 {
            match &self.parts[usize::from(state)] {
                Part::AnyDepth if self.hidden || !name.starts_with(b".") => next.push(state),
                Part::Name(pattern) if pattern.matches(name, self.hidden) => next.push(state + 1),
                _ => {}
            }
        }
        if next.is_empty() {
            return (false, States(next));
        }
        let next = self.close(next);
        let matched =
            next.0.iter().any(|state| matches!(self.parts[usize::from(*state)], Part::End));
        (matched, next)
    }

    /// Whether anything below a directory with these states can still match.
    pub(crate) fn goes_on(&self, states: &States) -> bool {
        states.0.iter().any(|state| !matches!(self.parts[usize::from(*state)], Part::End))
    }

    /// Adds the states after each `**`, which may match no directory at all.
    fn close(&self, mut states: Vec<u16>) -> States {
        let mut at = 0;
        while at < states.len() {
            if matches!(self.parts[usize::from(states[at])], Part::AnyDepth) {
                states.push(states[at] + 1);
            }
            at += 1;
        }
        states.sort_unstable();
        states.dedup();
        States(states)
    }

    /// Whether the glob matches a whole relative path. Walks use `step` instead.
    pub fn matches(&self, path: &str) -> bool {
        let mut states = self.start();
        let mut matched = false;
        for name in path.split('/') {
            (matched, states) = self.step(&states, name.as_bytes());
        }
        matched
    }
}

/// Expands the braces; `None` if there are too many alternatives.
fn expand(pattern: &str) -> Option<Vec<String>> {
    let mut todo = vec![pattern.to_owned()];
    let mut done = Vec::new();
    while let Some(text) = todo.pop() {
        let Some((before, choices, after)) = first_braces(&text) else {
            done.push(text);
            continue;
        };
        todo.extend(choices.iter().map(|choice| format!("{before}{choice}{after}")));
        if todo.len() + done.len() > MAX_ALTERNATIVES {
            return None;
        }
    }
    Some(done)
}

/// The first balanced `{…}`, split at its own commas. An unbalanced brace is an ordinary
/// character.
fn first_braces(text: &str) -> Option<(&str, Vec<&str>, &str)> {
    let bytes = text.as_bytes();
    let (mut open, mut depth, mut skip) = (None, 0usize, false);
    let mut commas = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            _ if skip => skip = false,
            b'\\' => skip = true,
            b'{' => {
                depth += 1;
                open = open.or(Some(at));
            }
            b',' if depth == 1 => commas.push(at),
            b'}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    let open = open?;
                    let mut from = open + 1;
                    let mut choices = Vec::new();
                    for end in commas.into_iter().chain([at]) {
                        choices.push(&text[from..end]);
                        from = end + 1;
                    }
                    return Some((&text[..open], choices, &text[at + 1..]));
                }
            }
            _ => {}
        }
    }
    None
}

#[derive(Debug, Clone)]
struct NamePattern {
    tokens: Vec<Token>,
    shape: Shape,
    dotted: bool,
}

#[derive(Debug, Clone)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Many,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// Most patterns have one of the simple shapes, and a walk compares every name.
#[derive(Debug, Clone)]
enum Shape {
    Anything,
    Exactly(Vec<u8>),
    EndsWith(Vec<u8>),
    StartsWith(Vec<u8>),
    General,
}

impl NamePattern {
    fn parse(text: &str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '*' if matches!(tokens.last(), Some(Token::Many)) => {}
                '*' => tokens.push(Token::Many),
                '?' => tokens.push(Token::One),
                '[' => match class(rest.as_str()) {
                    Some((token, after)) => {
                        tokens.push(token);
                        rest = after.chars();
                    }
                    None => tokens.push(Token::Byte(b'[')),
                },
                '\\' => push_bytes(&mut tokens, rest.next().unwrap_or('\\')),
                c => push_bytes(&mut tokens, c),
            }
        }
        let dotted = matches!(tokens.first(), Some(Token::Byte(b'.')));
        let shape = shape(&tokens);
        Self { tokens, shape, dotted }
    }

    fn matches(&self, name: &[u8], hidden: bool) -> bool {
        if name.starts_with(b".") && !self.dotted && !hidden {
            return false;
        }
        match &self.shape {
            Shape::Anything => true,
            Shape::Exactly(text) => name == text,
            Shape::EndsWith(text) => name.ends_with(text),
            Shape::StartsWith(text) => name.starts_with(text),
            Shape::General => self.general(name),
        }
    }

    /// After a mismatch, only the last `*` takes one more character. That is sufficient and never
    /// exponential.
    fn general(&self, name: &[u8]) -> bool {
        let (mut at, mut token) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        loop {
            let stepped = match self.tokens.get(token) {
                Some(Token::Many) => {
                    star = Some((at, token));
                    token += 1;
                    continue;
                }
                Some(Token::Byte(byte)) => (name.get(at) == Some(byte)).then_some(1),
                Some(Token::One) => character(&name[at..]).map(|(_, length)| length),
                Some(Token::Class { negated, ranges }) => {
                    character(&name[at..]).and_then(|(c, length)| {
                        let within = c.is_some_and(|c| {
                            ranges.iter().any(|(low, high)| (*low..=*high).contains(&c))
                        });
                        (within != *negated).then_some(length)
                    })
                }
                None if at == name.len() => return true,
                None => None,
            };
            match (stepped, &mut star) {
                (Some(length), _) => {
                    at += length;
                    token += 1;
                }
                (None, Some((from, star_token))) if *from < name.len() => {
                    *from += 1;
                    at = *from;
                    token = *star_token + 1;
                }
                (None, _) => return false,
            }
        }
    }
}

fn push_bytes(tokens: &mut Vec<Token>, c: char) {
    tokens.extend(c.encode_utf8(&mut [0; 4]).bytes().map(Token::Byte));
}

/// The next character and its length. Each byte that is not valid UTF-8 counts as one character.
fn character(bytes: &[u8]) -> Option<(Option<char>, usize)> {
    let chunk = bytes.utf8_chunks().next()?;
    Some(match chunk.valid().chars().next() {
        Some(c) => (Some(c), c.len_utf8()),
        None => (None, 1),
    })
}

fn class(text: &str) -> Option<(Token, &str)> {
    let negated = text.starts_with(['!', '^']);
    let body = if negated { &text[1..] } else { text };
    // A closing bracket at the beginning is a member of the set.
    let end = body.char_indices().skip(1).find(|(_, c)| *c == ']')?.0;
    let members: Vec<char> = body[..end].chars().collect();
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < members.len() {
        if at + 2 < members.len() && members[at + 1] == '-' {
            ranges.push((members[at], members[at + 2]));
            at += 3;
        } else {
            ranges.push((members[at], members[at]));
            at += 1;
        }
    }
    Some((Token::Class { negated, ranges }, &body[end + 1..]))
}

fn shape(tokens: &[Token]) -> Shape {
    let literal = |tokens: &[Token]| -> Option<Vec<u8>> {
        tokens
            .iter()
            .map(|token| if let Token::Byte(byte) = token { Some(*byte) } else { None })
            .collect()
    };
    match tokens {
        [Token::Many] => Shape::Anything,
        [Token::Many, rest @ ..] => literal(rest).map_or(Shape::General, Shape::EndsWith),
        [rest @ .., Token::Many] => literal(rest).map_or(Shape::General, Shape::StartsWith),
        all => literal(all).map_or(Shape::General, Shape::Exactly),
    }
}

#[cfg(test)]
mod tests;
