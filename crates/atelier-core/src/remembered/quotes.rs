//! Collects secrets that were read in a conversation, so that they can be masked when an agent's
//! answer quotes them.

use super::{is_withheld, withheld_calls};
use crate::{
    gate::{GatedCall, ToolOutcome},
    task::Step,
};
use regex::Regex;
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeSet};

/// How much of one result is searched for values, in bytes.
const MAX_SCANNED: usize = 256 * 1024;
/// How many bytes all values may have together. A regular expression of that size can be compiled.
const MAX_BYTES: usize = 64 * 1024;
/// A shorter word would be found in ordinary texts.
const MIN_VALUE: usize = 4;
/// A shorter word counts only as the value of a name.
const MIN_WORD: usize = 8;
/// Values that a file of settings has beside its secrets.
const ORDINARY: [&str; 16] = [
    "true",
    "false",
    "null",
    "none",
    "localhost",
    "production",
    "development",
    "staging",
    "test",
    "debug",
    "info",
    "warn",
    "error",
    "postgres",
    "utf-8",
    "default",
];

/// The values of the secret files that calls have read or written.
#[derive(Debug, Clone, Default)]
pub struct KnownSecrets {
    values: Option<Regex>,
}

impl KnownSecrets {
    /// Collects the values that withheld calls have shown. Other calls are left out.
    pub fn shown_by<'c>(calls: impl IntoIterator<Item = &'c GatedCall>) -> Self {
        Self::shown_in(calls, &[])
    }

    /// Collects the values that withheld calls have shown: calls at the gate, and calls on a
    /// conversation's own files in the steps of agents.
    pub fn shown_in<'c>(calls: impl IntoIterator<Item = &'c GatedCall>, steps: &[Step]) -> Self {
        let gated = calls.into_iter().filter(|call| is_withheld(call)).map(|call| {
            (call.tool_params.clone(), call.result.as_ref().map(ToolOutcome::to_value))
        });
        let own = steps.iter().flat_map(withheld_calls).map(|(params, result)| {
            let text = || Value::String(result.content.clone());
            (params, Some(serde_json::from_str(&result.content).unwrap_or_else(|_| text())))
        });
        let mut values = BTreeSet::new();
        for (params, result) in gated.chain(own) {
            result.iter().chain([&params]).for_each(|shown| collect(shown, &mut values));
            // The path of the file is not a secret.
            let mut named = BTreeSet::new();
            collect(&super::without_content(&params), &mut named);
            values.retain(|value| !named.contains(value));
        }
        let mut values: Vec<String> = values.into_iter().collect();
        // Of two values that begin alike, the longer one is masked.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let mut bytes = 0;
        values.retain(|value| {
            bytes += value.len();
            bytes <= MAX_BYTES
        });
        let any = values.iter().map(|value| regex::escape(value)).collect::<Vec<_>>().join("|");
        Self { values: Regex::new(&any).ok().filter(|_| !values.is_empty()) }
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_none()
    }

    /// The text without the values.
    pub fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match &self.values {
            Some(values) => values.replace_all(text, "[masked: secret]"),
            None => Cow::Borrowed(text),
        }
    }
}

/// Collects the values in the texts of a JSON value.
fn collect(value: &Value, values: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            collect_lines(&text[..text.floor_char_boundary(MAX_SCANNED)], values);
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, values)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, values)),
        _ => {}
    }
}

fn collect_lines(text: &str, values: &mut BTreeSet<String>) {
    for line in text.lines() {
        // A search puts the name of the file and the number of the line first.
        for (at, _) in line.match_indices(['=', ':']).take(8) {
            let value = trimmed(&line[at + 1..]);
            if value.len() >= MIN_VALUE && is_special(value, false) {
                values.insert(value.to_owned());
            }
        }
        for word in line.split_whitespace().map(trimmed) {
            if word.len() >= MIN_WORD && is_special(word, true) {
                values.insert(word.to_owned());
            }
        }
    }
}

fn trimmed(value: &str) -> &str {
    value.trim_matches(|c: char| c.is_whitespace() || "\"'`,;()[]{}<>".contains(c))
}

/// Whether a value is more than an ordinary word, number or setting. As the value of a name, a word
/// can be a password.
fn is_special(value: &str, alone: bool) -> bool {
    let has = |is: fn(char) -> bool| value.chars().any(is);
    let number = !has(|c| !c.is_ascii_digit()) && value.len() < 6;
    let word = !has(|c| !c.is_alphabetic() && !matches!(c, '-' | '_' | '.'));
    !(number || (alone && word) || ORDINARY.contains(&value.to_lowercase().as_str()))
}
