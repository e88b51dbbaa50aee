//! Masks values that look like keys and passwords, so that they are not remembered, embedded,
//! logged or exported.
//!
//! A value is masked by its shape (`mask/rules.toml` lists the shapes of well-known keys) or by the
//! name before it (`mask/names.rs`). Every text is scanned a fixed number of times, and each match
//! looks at a bounded part of the text, so the time grows only linearly with the length of the
//! text. Masking a masked text again changes nothing.

mod names;

use names::Names;
use regex::{Regex, RegexSet};
use serde::Deserialize;
use serde_json::Value;
use std::{borrow::Cow, ops::Range, sync::LazyLock};

/// How many bytes at each end of a long text are scanned beyond what is kept of it. No key is
/// longer, so none is cut in half before it is recognised.
const MARGIN: usize = 16 * 1024;

#[derive(Deserialize)]
struct RuleFile {
    shape: Vec<ShapeData>,
    names: names::NameData,
}

/// One shape of keys, as the data describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapeData {
    kind: String,
    pattern: String,
    #[serde(default)]
    digit: bool,
    #[serde(rename = "match")]
    #[cfg_attr(not(test), expect(dead_code, reason = "a test checks the examples"))]
    matching: Vec<String>,
    #[cfg_attr(not(test), expect(dead_code, reason = "a test checks the examples"))]
    other: Vec<String>,
}

struct Rules {
    /// All shapes at once: most texts match none of them.
    any: RegexSet,
    shapes: Vec<Shape>,
    names: Names,
}

struct Shape {
    kind: String,
    regex: Regex,
    digit: bool,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| match Rules::load() {
    Ok(rules) => rules,
    // The data is part of this crate and the same on every machine, and every test reads it.
    Err(error) => panic!("the built-in masks: {error}"),
});

/// A part of a text that has to be masked, and the kind of secret.
struct Found<'r> {
    range: Range<usize>,
    kind: &'r str,
}

impl Rules {
    fn load() -> Result<Self, String> {
        let file = data()?;
        let any = RegexSet::new(file.shape.iter().map(|shape| &shape.pattern));
        let compile = |shape: ShapeData| {
            let regex = Regex::new(&shape.pattern).map_err(|error| error.to_string())?;
            Ok(Shape { kind: shape.kind, regex, digit: shape.digit })
        };
        Ok(Self {
            any: any.map_err(|error| error.to_string())?,
            shapes: file.shape.into_iter().map(compile).collect::<Result<_, String>>()?,
            names: Names::new(file.names)?,
        })
    }

    fn find(&self, text: &str) -> Vec<Found<'_>> {
        let mut found = Vec::new();
        for shape in self.any.matches(text).into_iter().map(|at| &self.shapes[at]) {
            for captures in shape.regex.captures_iter(text) {
                let Some(value) = captures.name("value").or_else(|| captures.get(0)) else {
                    continue;
                };
                let has_digit = || value.as_str().bytes().any(|byte| byte.is_ascii_digit());
                if (!shape.digit || has_digit()) && !self.names.is_placeholder(value.as_str()) {
                    found.push(Found { range: value.range(), kind: &shape.kind });
                }
            }
        }
        self.names.find(text, &mut found);
        found.sort_by_key(|found| (found.range.start, std::cmp::Reverse(found.range.end)));
        found
    }
}

fn data() -> Result<RuleFile, String> {
    toml::from_str(include_str!("mask/rules.toml")).map_err(|error| error.to_string())
}

fn mask(kind: &str) -> String {
    format!("[masked: {kind}]")
}

/// The text with `[masked: kind]` for every value that looks like a key or a password.
pub fn masked(text: &str) -> Cow<'_, str> {
    let found = RULES.find(text);
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut result, mut end) = (String::with_capacity(text.len()), 0);
    for Found { range, kind } in found {
        if range.start >= end {
            result.push_str(&text[end..range.start]);
            result.push_str(&mask(kind));
        }
        end = end.max(range.end);
    }
    result.push_str(&text[end..]);
    Cow::Owned(result)
}

/// Like [`masked`], for a text of which only `max_chars` are kept: the beginning and the end. A
/// long text is not scanned whole.
pub fn masked_excerpt(text: &str, max_chars: usize) -> String {
    // A character has at most four bytes.
    let window = max_chars * 4 + MARGIN;
    if text.len() <= 2 * window {
        return crate::memory::shortened(&masked(text), max_chars);
    }
    let begin = &text[..text.floor_char_boundary(window)];
    let end = &text[text.ceil_char_boundary(text.len() - window)..];
    let left_out = text.len() - begin.len() - end.len();
    let (begin, end) = (masked(begin), masked(end));
    let (head, tail) = (max_chars * 2 / 3, max_chars / 3);
    let kept = end.chars().count().saturating_sub(tail);
    let begin: String = begin.chars().take(head).collect();
    let end: String = end.chars().skip(kept).collect();
    format!("{begin}\n[… about {left_out} characters …]\n{end}")
}

/// Masks the texts of a JSON value, each by its own shape and by the key that it has in an object.
/// Texts are shortened to `max_chars`.
pub fn masked_json(value: &Value, max_chars: usize) -> Value {
    match value {
        Value::String(text) => masked_excerpt(text, max_chars).into(),
        Value::Array(items) => {
            // `["--password", "hunter2"]`: the item before is the name.
            let names = [None].into_iter().chain(items.iter().map(Value::as_str));
            let item = |(name, item): (Option<&str>, &Value)| {
                let name = name.filter(|name| name.starts_with("--"));
                let kind = name.and_then(|name| RULES.names.kind_of_argument(name, item.as_str()?));
                kind.map_or_else(|| masked_json(item, max_chars), |kind| mask(kind).into())
            };
            names.zip(items).map(item).collect()
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let kind = value.as_str().and_then(|text| RULES.names.kind_of_field(name, text));
                (
                    name.clone(),
                    kind.map_or_else(|| masked_json(value, max_chars), |kind| mask(kind).into()),
                )
            })
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
