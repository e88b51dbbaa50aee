//! Puts parameters and results of tool calls into words, for memories.

use super::CONTENT;
use serde_json::Value;

/// Fields that are clear without their name.
const PLAIN: [&str; 13] = [
    "path", "command", "args", "pattern", "query", "url", "content", "stdout", "stderr", "output",
    "diff", "text", "message",
];
/// Fields that only programs use.
const TECHNICAL: [&str; 16] = [
    "success",
    "checksum",
    "base_checksum",
    "sha256",
    "digest",
    "etag",
    "encoding",
    "size",
    "bytes",
    "mode",
    "permissions",
    "modified",
    "modified_at",
    "timestamp",
    "isolation",
    "duration_ms",
];

/// The parameters of a call on one line: `git status`, `src/main.rs, limit: 10`.
pub(super) fn parameters(params: &Value) -> String {
    words(params, ", ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The content that a call wrote to a file, as an addition to its outcome.
pub(super) fn content(params: &Value) -> String {
    let Value::Object(fields) = params else { return String::new() };
    let contents = CONTENT.iter().filter_map(|name| Some((name, fields.get(*name)?)));
    contents.map(|(name, value)| format!("\n{name}: {}", words(value, "\n"))).collect()
}

/// The result of a call, without checksums and the like.
pub(super) fn result(value: &Value) -> String {
    match words(value, "\n").trim() {
        "" => "done".to_owned(),
        text => text.to_owned(),
    }
}

fn words(value: &Value, between: &str) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.trim_end().to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(|item| words(item, ", ")).collect();
            // Arguments of a command read like the command, and records like lines.
            let records = items.iter().any(Value::is_object);
            parts.join(if records { "\n" } else { " " })
        }
        Value::Object(fields) => {
            let is_told = |(name, value): &(&String, &Value)| {
                !TECHNICAL.contains(&name.as_str())
                    && !matches!(value, Value::Null | Value::Bool(false))
            };
            let mut listed: Vec<_> = fields.iter().filter(is_told).collect();
            // The most informative field comes first, and a command before its arguments.
            let rank = |name: &str| PLAIN.iter().position(|plain| *plain == name);
            listed.sort_by_key(|(name, _)| rank(name).unwrap_or(PLAIN.len()));
            let mut text = String::new();
            for (name, value) in listed {
                let part = match words(value, ", ") {
                    part if part.is_empty() => continue,
                    part if PLAIN.contains(&name.as_str()) => part,
                    part => format!("{name}: {part}"),
                };
                let follows = name == "args" && fields.contains_key("command");
                if !text.is_empty() {
                    text.push_str(if follows { " " } else { between });
                }
                text.push_str(&part);
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_read_like_sentences_and_not_like_records() {
        assert_eq!(parameters(&json!({"path": "src/main.rs"})), "src/main.rs");
        let command = json!({"command": "git", "args": ["log", "-3"], "timeout": 30});
        assert_eq!(parameters(&command), "git log -3, timeout: 30");
        let read = json!({
            "success": true, "content": "fn main() {}\n", "checksum": "abc", "encoding": "utf-8",
            "size": 13, "truncated": false,
        });
        assert_eq!(result(&read), "fn main() {}");
        let listed = json!({"entries": [{"name": "a.txt", "size": 3}, {"name": "b", "size": 4}]});
        assert_eq!(result(&listed), "entries: name: a.txt\nname: b");
        assert_eq!(result(&json!({"success": true})), "done");
        let written = json!({"path": "notes.md", "content": "Call Ann"});
        assert_eq!(content(&written), "\ncontent: Call Ann");
    }
}
