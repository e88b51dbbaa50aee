//! From a person's words to tool calls.

use super::forms::{FORMS, Form, QUOTED};
use regex::{Captures, Regex};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// One thing to do: a tool call, and the words that asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wish {
    pub(super) words: String,
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
    /// It was said to come after the one before ("then").
    pub(super) afterwards: bool,
}

/// Where one request may end and the next begin. It does only if what follows is a request.
static BREAK: LazyLock<Regex> = LazyLock::new(|| {
    compiled(&format!(
        r"(?i)(?<quoted>{QUOTED})|[.,;!?]?\s+(?<then>(?:and\s+)?(?:then|after that)|(?:а\s+)?(?:затем|потом))\s+|[.,;!?]?\s+(?:and|и)\s+|[.,;!?]\s+|[.;]?\s*\n+\s*|[、。]\s*(?<ja>それから|次に|その後|そして)?、?\s*"
    ))
});

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|invalid| unreachable!("a pattern of ours is valid: {invalid}"))
}

/// What a message asks for, in its order. Empty when nothing in it is understood.
pub(super) fn wishes(message: &str) -> Vec<Wish> {
    // Where a request begins, where what comes before it ends, and whether it waits for that.
    let mut starts = Vec::new();
    if wish(message, false).is_some() {
        starts.push((0, 0, false));
    }
    for found in BREAK.captures_iter(message) {
        let whole = found.get_match();
        if found.name("quoted").is_none() && wish(&message[whole.end()..], false).is_some() {
            let afterwards = found.name("then").is_some() || found.name("ja").is_some();
            starts.push((whole.start(), whole.end(), afterwards));
        }
    }
    let ends = starts.iter().skip(1).map(|start| start.0).chain([message.len()]);
    let clauses = starts.iter().zip(ends);
    clauses.filter_map(|(&(_, start, afterwards), end)| wish(&message[start..end], afterwards)).collect()
}

fn wish(text: &str, afterwards: bool) -> Option<Wish> {
    FORMS.iter().find_map(|form| {
        let found = form.regex.captures(text)?;
        let arguments = arguments(form, &found)?;
        Some(Wish { words: text.trim().to_owned(), tool: form.tool, arguments, afterwards })
    })
}

fn arguments(form: &Form, found: &Captures<'_>) -> Option<Value> {
    let group = |name: &str| found.name(name).map(|group| plain(group.as_str()));
    let mut arguments = Map::new();
    match form.tool {
        "execute_command" => {
            let mut words = shlex::split(group("command")?)?.into_iter();
            arguments.insert("command".into(), words.next()?.into());
            arguments.insert("args".into(), words.collect());
        }
        "edit_file" => {
            let edit = json!({"old_text": group("old")?, "new_text": group("new")?});
            arguments.insert("path".into(), group("path")?.into());
            arguments.insert("edits".into(), json!([edit]));
        }
        "grep" => {
            arguments.insert("pattern".into(), group("pattern")?.into());
            arguments.insert("literal".into(), true.into());
            arguments.extend(group("path").map(|path| ("path".into(), path.into())));
        }
        "list_directory" => {
            let everything = ["here", "everything", "all", "files", "."];
            let path = group("path").filter(|path| !everything.contains(path)).unwrap_or(".");
            arguments.insert("path".into(), path.into());
        }
        "write_file" => {
            let path = group("path")?;
            arguments.insert("path".into(), path.into());
            arguments.insert("content".into(), quoted(found.name("content")?.as_str()).into());
            if form.append {
                arguments.insert("mode".into(), "append".into());
            }
            if path.contains('/') {
                arguments.insert("create_dirs".into(), true.into());
            }
        }
        _ => {
            for name in form.regex.capture_names().flatten() {
                arguments.insert(name.to_owned(), group(name)?.into());
            }
        }
    }
    Some(Value::Object(arguments))
}

/// Without the quotes around it, if there are any.
fn quoted(text: &str) -> &str {
    static WHOLE: LazyLock<Regex> = LazyLock::new(|| compiled(&format!("^(?:{QUOTED})$")));
    let text = text.trim();
    if WHOLE.is_match(text) {
        let mut inside = text.chars();
        inside.next();
        inside.next_back();
        return inside.as_str();
    }
    text
}

/// A word as it was meant: no quotes, and not the full stop of the sentence.
fn plain(text: &str) -> &str {
    let bare = quoted(text);
    if bare.len() < text.trim().len() {
        return bare;
    }
    match bare.strip_suffix(['.', ',', '!', '?', '。', '、', ':', ';']) {
        // `list .` and `ls ..` mean what they say.
        Some(shorter) if shorter.ends_with(|last: char| last.is_alphanumeric()) => shorter,
        _ => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(message: &str) -> Vec<(&'static str, Value)> {
        wishes(message).into_iter().map(|wish| (wish.tool, wish.arguments)).collect()
    }

    #[test]
    fn simple_requests_become_calls() {
        for (message, tool, arguments) in [
            ("read README.md", "read_file", json!({"path": "README.md"})),
            ("Please read the file README.md.", "read_file", json!({"path": "README.md"})),
            ("Hello! Could you show me docs/a b", "read_file", json!({"path": "docs/a"})),
            ("write notes.txt: hello", "write_file", json!({"path": "notes.txt", "content": "hello"})),
            (
                "write src/x.md: one\ntwo and three",
                "write_file",
                json!({"path": "src/x.md", "content": "one\ntwo and three", "create_dirs": true}),
            ),
            ("run git status", "execute_command", json!({"command": "git", "args": ["status"]})),
            (
                "run npm install express",
                "execute_command",
                json!({"command": "npm", "args": ["install", "express"]}),
            ),
            ("run rm -rf /", "execute_command", json!({"command": "rm", "args": ["-rf", "/"]})),
            (
                "run `git commit -m \"a b\"`",
                "execute_command",
                json!({"command": "git", "args": ["commit", "-m", "a b"]}),
            ),
            ("search for main", "grep", json!({"pattern": "main", "literal": true})),
            (
                "search for \"fn main\" in src",
                "grep",
                json!({"pattern": "fn main", "literal": true, "path": "src"}),
            ),
            ("find files *.rs", "search_files", json!({"pattern": "*.rs"})),
            ("list src", "list_directory", json!({"path": "src"})),
            ("list files", "list_directory", json!({"path": "."})),
            ("ls", "list_directory", json!({"path": "."})),
            ("прочитай README.md", "read_file", json!({"path": "README.md"})),
            ("выполни git status", "execute_command", json!({"command": "git", "args": ["status"]})),
            ("запиши в notes.txt: привет", "write_file", json!({"path": "notes.txt", "content": "привет"})),
            ("README.mdを読んでください", "read_file", json!({"path": "README.md"})),
            (
                "notes.txtに「こんにちは」と書いて",
                "write_file",
                json!({"path": "notes.txt", "content": "こんにちは"}),
            ),
            ("rename a.txt to b.txt", "move_file", json!({"source": "a.txt", "destination": "b.txt"})),
        ] {
            assert_eq!(calls(message), [(tool, arguments)], "{message}");
        }
    }

    #[test]
    fn several_requests_become_several_calls() {
        let tools = |message: &str| -> Vec<(&'static str, bool)> {
            wishes(message).into_iter().map(|wish| (wish.tool, wish.afterwards)).collect()
        };
        for (message, expected) in [
            ("read a.txt then write b.txt: x", [("read_file", false), ("write_file", true)]),
            ("read a.txt and list src", [("read_file", false), ("list_directory", false)]),
            ("1. read a.txt\n2. run git status", [("read_file", false), ("execute_command", false)]),
            ("прочитай a.txt, затем выполни git status", [("read_file", false), ("execute_command", true)]),
            (
                "a.txtを読んで、それから「git status」を実行して",
                [("read_file", false), ("execute_command", true)],
            ),
        ] {
            assert_eq!(tools(message), expected, "{message}");
        }
        let first = calls("read a.txt then write b.txt: x");
        assert_eq!(first[1].1, json!({"path": "b.txt", "content": "x"}));
    }

    #[test]
    fn text_to_write_is_not_taken_apart() {
        for content in ["first this then that", "salt and pepper", "a; b. c", "\"read a.txt then run x\""] {
            let message = format!("write notes.txt: {content}");
            let expected = json!({"path": "notes.txt", "content": content.trim_matches('"')});
            assert_eq!(calls(&message), [("write_file", expected)], "{message}");
        }
    }

    #[test]
    fn other_words_ask_for_nothing() {
        for message in
            ["add a /health route and its test", "why is the sky blue?", "", "спасибо", "ありがとう"]
        {
            assert_eq!(calls(message), [], "{message}");
        }
    }
}
