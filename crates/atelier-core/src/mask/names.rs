//! Values that are secrets because of the name before them.

use super::Found;
use regex::Regex;
use serde::Deserialize;

/// How long a name can be, in bytes.
const MAX_NAME: usize = 64;
/// How far behind a name its value can begin, in characters.
const MAX_BETWEEN: usize = 16;
/// A value that is longer than this is masked without a closer look.
const MAX_LOOK: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NameData {
    password: Vec<String>,
    secret: Vec<String>,
    token: Vec<String>,
    key: Vec<String>,
    keys_of: Vec<String>,
    words: Vec<String>,
    #[serde(rename = "match")]
    #[cfg_attr(not(test), expect(dead_code, reason = "a test checks the examples"))]
    pub(super) matching: Vec<String>,
    #[cfg_attr(not(test), expect(dead_code, reason = "a test checks the examples"))]
    pub(super) other: Vec<String>,
}

pub(super) struct Names {
    data: NameData,
    /// Finds the words of all names, wherever they are.
    word: Regex,
}

/// The kind of value that a name announces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameKind {
    /// Any value is a secret, even a word.
    Password,
    Secret,
    Token,
    /// The name of an API key or a similar secret.
    Key,
    /// The name of another key. Its value is a secret if it looks random.
    OtherKey,
}

/// The separator between a name and its value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    /// `=`, or the argument of an option.
    Assigned,
    /// `:`, `|`, `>` or a similar sign.
    Listed,
    /// “is”, or a dash.
    Prose,
}

/// A name in a text, and where its value begins.
struct Named<'t> {
    name: &'t str,
    kind: NameKind,
    link: Link,
    start: usize,
    quote: Option<char>,
}

impl NameKind {
    fn as_str(self) -> &'static str {
        match self {
            NameKind::Password => "password",
            NameKind::Secret => "secret",
            NameKind::Token => "token",
            NameKind::Key | NameKind::OtherKey => "key",
        }
    }
}

impl Names {
    pub(super) fn new(data: NameData) -> Result<Self, String> {
        let words = [&data.password, &data.secret, &data.token, &data.key];
        let words: Vec<String> =
            words.into_iter().flatten().map(|word| regex::escape(word)).collect();
        let word =
            Regex::new(&format!("(?i){}", words.join("|"))).map_err(|error| error.to_string())?;
        Ok(Self { data, word })
    }

    /// Finds the values behind names.
    pub(super) fn find<'r>(&'r self, text: &str, found: &mut Vec<Found<'r>>) {
        let mut end = 0;
        for word in self.word.find_iter(text) {
            if word.start() < end {
                continue;
            }
            let (name_start, name_end) = name_around(text, word.start(), word.end());
            let Some(named) = self.named(text, name_start, name_end) else {
                end = name_end;
                continue;
            };
            let rest = &text[named.start..];
            let value = value_at(rest, named.kind, named.quote);
            end = named.start;
            if self.is_secret(&named, value, &rest[value.len()..]) {
                // Only a value that is masked is read to its end, so nothing is read again and
                // again.
                let long = value.len() > MAX_LOOK;
                let length =
                    if long { bare_length(rest, named.kind, usize::MAX) } else { value.len() };
                end += length;
                found.push(Found { range: named.start..end, kind: named.kind.as_str() });
            }
        }
    }

    /// The kind of secret that the field of an object holds; `None` if its value is no secret.
    pub(super) fn kind_of_field(&self, name: &str, value: &str) -> Option<&'static str> {
        self.kind_of(name, value, Link::Listed)
    }

    /// The kind of secret that the argument of an option is; `None` if it is no secret.
    pub(super) fn kind_of_argument(&self, option: &str, value: &str) -> Option<&'static str> {
        self.kind_of(option, value, Link::Assigned)
    }

    fn kind_of(&self, name: &str, value: &str, link: Link) -> Option<&'static str> {
        let kind = self.kind(name)?;
        let named = Named { name, kind, link, start: 0, quote: Some('"') };
        self.is_secret(&named, value, "").then(|| kind.as_str())
    }

    /// Whether the value only stands for another one: a variable, a blank to fill in, or an earlier
    /// mask.
    pub(super) fn is_placeholder(&self, value: &str) -> bool {
        let same = |c: char| matches!(c, '*' | 'x' | 'X' | '.' | '…' | '•' | '-' | '_' | '?' | '#');
        let identifier = |text: &str| {
            let rest = text.strip_prefix(|c: char| c.is_ascii_alphabetic() || c == '_');
            rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        };
        let between =
            |start, end| value.strip_prefix(start).and_then(|value: &str| value.strip_suffix(end));
        value.starts_with("${")
            || value.starts_with("{{")
            || value.starts_with("$(")
            || value.starts_with("[masked")
            || value.strip_prefix('$').is_some_and(identifier)
            || between('%', '%').is_some_and(identifier)
            || value.starts_with('<')
            || between('{', '}').is_some_and(identifier)
            || value.chars().all(same)
            || self.data.words.contains(&value.to_lowercase())
    }

    fn named<'t>(&self, text: &'t str, start: usize, end: usize) -> Option<Named<'t>> {
        let name = &text[start..end];
        let kind = self.kind(name)?;
        let is_option = name.starts_with("--");
        // `<password>` as the value of something else is a blank to fill in.
        let is_tag =
            text[..start].strip_suffix('<').is_some_and(|before| !before.ends_with([':', '=']));
        let (mut link, mut quote, mut at) = (None, None, end);
        let mut rest = text[end..].chars().take(MAX_BETWEEN).peekable();
        while let Some(c) = rest.next() {
            match c {
                '=' => link = Some(Link::Assigned),
                ':' | '：' | '|' | '→' => link = link.or(Some(Link::Listed)),
                '>' if link.is_some() || is_tag => link = link.or(Some(Link::Listed)),
                '-' | '—' | '–' if text[..at].ends_with(' ') && link.is_none() => {
                    link = Some(Link::Prose);
                }
                '>' if text[..at].ends_with('-') => link = Some(Link::Listed),
                '"' | '\'' | '`' => quote = Some(c),
                // The quote of a text that is itself quoted.
                '\\' if matches!(rest.peek(), Some('"' | '\'')) => {}
                ',' if is_option && quote.is_some() => link = Some(Link::Assigned),
                ' ' | '\t' | '*' => {
                    if is_option && link.is_none() && c != '*' {
                        link = Some(Link::Assigned);
                    }
                    // A quote that was closed before the value.
                    if c == ' ' && link.is_some() {
                        quote = None;
                    }
                    let word = ["is ", "was ", "is: ", "это ", "は "];
                    let behind = &text[at + c.len_utf8()..];
                    if let (None, Some(word)) =
                        (link, word.iter().find(|word| behind.starts_with(**word)))
                    {
                        link = Some(Link::Prose);
                        at += c.len_utf8() + word.len();
                        rest = text[at..].chars().take(MAX_BETWEEN).peekable();
                        continue;
                    }
                }
                'は' if link.is_none() => link = Some(Link::Prose),
                _ => {
                    let link = link?;
                    return Some(Named {
                        name,
                        kind,
                        link,
                        start: at,
                        quote: quote_before(text, at),
                    });
                }
            }
            at += c.len_utf8();
        }
        None
    }

    fn kind(&self, name: &str) -> Option<NameKind> {
        let parts = parts(name);
        let last = parts.last()?;
        let ends = |words: &[String]| words.iter().any(|word| last.ends_with(word.as_str()));
        let is = |words: &[String]| words.iter().any(|word| last == word);
        if ends(&self.data.password) {
            Some(NameKind::Password)
        } else if is(&self.data.secret)
            || last.ends_with("secret")
            || parts.join("_").ends_with("secret_key_base")
        {
            Some(NameKind::Secret)
        } else if ends(&self.data.token) {
            Some(NameKind::Token)
        } else if is(&self.data.key) {
            let before = parts.len().checked_sub(2).and_then(|at| parts.get(at));
            let of_service = before.is_some_and(|before| self.data.keys_of.contains(before));
            Some(if of_service || last == "apikey" { NameKind::Key } else { NameKind::OtherKey })
        } else {
            None
        }
    }

    fn is_secret(&self, named: &Named<'_>, value: &str, behind: &str) -> bool {
        let Named { name, kind, link, quote, .. } = *named;
        let bare = value.trim_end_matches(['.', ',', ';', ':', ')', ']', '}', '*']);
        if bare.chars().count() < 3 || self.is_placeholder(bare) || self.is_placeholder(value) {
            return false;
        }
        if value.len() > MAX_LOOK {
            return kind != NameKind::OtherKey || looks_random(value);
        }
        let letters = bare.chars().any(char::is_alphabetic);
        let digits = bare.chars().any(|c| c.is_ascii_digit());
        let word = bare.chars().all(|c| c.is_alphabetic() || c == '-' || c == '\'');
        // `DB_PASSWORD=…` is a variable of an environment, whose value is data and not code.
        let variable = link == Link::Assigned
            && (name.starts_with("--") || !name.chars().any(char::is_lowercase))
            && name.is_ascii();
        if quote.is_none() && !variable && is_code(name, bare, behind) {
            return false;
        }
        if bare.starts_with(['/', '~']) || bare.contains("://") {
            return kind == NameKind::Password && !name.to_lowercase().ends_with("pwd");
        }
        match (kind, link) {
            (NameKind::OtherKey, _) => looks_random(bare),
            (NameKind::Password, Link::Assigned) => true,
            (NameKind::Password, Link::Listed) => {
                quote.is_some() || !word || (bare.is_ascii() && ends_line(behind))
            }
            (NameKind::Password, Link::Prose) => {
                (quote.is_some() && !bare.contains(' ')) || (digits && letters) || has_symbol(bare)
            }
            (_, Link::Assigned) if variable => letters || bare.len() >= 16,
            (_, Link::Prose) => digits && letters && bare.len() >= 8,
            _ => {
                let spaces = bare.contains(' ');
                !spaces && letters && ((digits && bare.len() >= 6) || (!word && bare.len() >= 20))
            }
        }
    }
}

/// The bounds of the name around a word.
fn name_around(text: &str, start: usize, end: usize) -> (usize, usize) {
    let belongs =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | 'а'..='я' | 'А'..='Я');
    let first = text.ceil_char_boundary(start.saturating_sub(MAX_NAME));
    let before = text[first..start].char_indices().rev().take_while(|(_, c)| belongs(*c)).last();
    let last = text.floor_char_boundary((end + MAX_NAME).min(text.len()));
    let after = text[end..last].char_indices().find(|(_, c)| !belongs(*c));
    let end = after.map_or(last, |(at, _)| end + at);
    let start = before.map_or(start, |(at, _)| first + at);
    // A sentence may end with the word.
    (start, start + text[start..end].trim_end_matches(['.', '-']).len())
}

/// The words of a name in lower case: `dbPassword`, `DB_PASSWORD` and `db-password` are `db`,
/// `password`.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let (mut begins, mut lower) = (true, false);
    for c in name.chars() {
        if !c.is_alphanumeric() {
            begins = true;
            continue;
        }
        if begins || (lower && c.is_uppercase()) {
            parts.push(String::new());
        }
        (begins, lower) = (false, c.is_lowercase());
        if let Some(part) = parts.last_mut() {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

fn quote_before(text: &str, at: usize) -> Option<char> {
    text[..at].chars().next_back().filter(|c| matches!(c, '"' | '\'' | '`'))
}

/// The part of a text that a closer look is limited to.
fn window(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_LOOK)]
}

/// The value at the beginning of a text: up to its closing quote, or up to where a bare value ends.
fn value_at(text: &str, kind: NameKind, quote: Option<char>) -> &str {
    let look = window(text);
    let line = &look[..look.find(['\n', '\r']).unwrap_or(look.len())];
    if let Some(quote) = quote
        && let Some(end) = line.find(quote)
    {
        return line[..end].trim_end_matches('\\');
    }
    &text[..bare_length(text, kind, MAX_LOOK)]
}

/// How long a value without quotes is, or a number above `limit` if it is longer than that.
fn bare_length(text: &str, kind: NameKind, limit: usize) -> usize {
    let loose = kind == NameKind::Password;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        // A line break of a text that is quoted in JSON.
        let escape = c == '\\' && matches!(chars.peek(), Some((_, 'n' | 'r' | 't' | '"' | '\'')));
        let ends = c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '|') || escape;
        if at > limit || ends || (!loose && matches!(c, ',' | ';' | '&' | ')' | ']' | '}' | '>')) {
            return at;
        }
    }
    text.len()
}

/// Whether the value is an expression of a program: a call, an index, or something with the same
/// name.
fn is_code(name: &str, value: &str, behind: &str) -> bool {
    let identifier = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '&' | '!');
    let value_of_code = value.split(['(', '[', '<', '{']).next().unwrap_or(value);
    if !value_of_code.chars().all(identifier) {
        return false;
    }
    let generic = behind.starts_with('<') && !behind.starts_with("</");
    if value_of_code.len() < value.len() || generic || behind.starts_with(['(', '[', '{']) {
        return true;
    }
    let name = parts(name).pop().unwrap_or_default();
    let lower = value.to_lowercase();
    (lower.contains(&name) && !value.chars().any(|c| c.is_ascii_digit()))
        && (lower == name || value.contains(['_', '.']) || value.starts_with(char::is_uppercase))
}

/// Whether nothing but punctuation follows on the line.
fn ends_line(behind: &str) -> bool {
    let look = window(behind);
    let line = look.split(['\n', '\r']).next().unwrap_or(look);
    let line = line.split("\\n").next().unwrap_or(line);
    !line.chars().any(char::is_alphanumeric)
}

fn has_symbol(value: &str) -> bool {
    value.chars().any(|c| matches!(c, '!' | '@' | '#' | '$' | '%' | '^' | '&' | '+' | '='))
}

/// Whether a value has the length, the characters and the variety of a random key.
fn looks_random(value: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'_' | b'-');
    let (mut counts, bytes) = ([0u32; 256], &value.as_bytes()[..value.len().min(MAX_LOOK)]);
    if bytes.len() < 16 || !bytes.iter().all(|byte| plain(*byte)) {
        return false;
    }
    let kinds = [u8::is_ascii_digit, u8::is_ascii_alphabetic].map(|is| bytes.iter().any(is));
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let total = bytes.len() as f64;
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / total)
        .map(|share| -share * share.log2())
        .sum();
    kinds == [true, true] && entropy >= 3.0
}
