//! Recognises tool calls in a user's message.

use super::forms::{COMMAND, FORMS, Form, QUOTED, Script, compiled};
use regex::{Captures, Regex};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// One recognised request: a tool call, and the words that asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Intent {
    pub(super) words: String,
    pub(super) tool: &'static str,
    pub(super) arguments: Value,
    /// Whether the message asks to do this after the previous request ("then").
    pub(super) afterwards: bool,
    /// Whether what the call does in its layer is landed afterwards.
    pub(super) lands: bool,
    /// Whether it ends in text to be written, to which the following words may belong.
    ends_in_content: bool,
}

impl Intent {
    /// The calls that do what was asked for, in order.
    pub(super) fn calls(&self) -> Vec<(&'static str, Value)> {
        let mut calls = vec![(self.tool, self.arguments.clone())];
        calls.extend(self.lands.then(|| ("land", json!({}))));
        calls
    }
}

/// A possible boundary between two requests. It counts only if a request follows.
static SEPARATOR: LazyLock<Regex> = LazyLock::new(|| {
    compiled(&format!(
        r"(?i)(?<quoted>{QUOTED})|[.,;!?]?\s+(?<then>(?:and\s+)?(?:then|after that)|(?:а\s+)?(?:затем|потом))\s+|(?<line>[.;]?\s*\n+\s*)|[.,;!?]?\s+(?:and|и)\s+|[.,;!?]\s+|[、。]\s*(?<ja>それから|次に|その後|そして)?、?\s*"
    ))
});

/// A possible boundary between two requests.
struct Separator {
    /// From the end of the words before it to the start of the words after it.
    at: std::ops::Range<usize>,
    /// Whether it says "then", so that the next request waits for the previous one.
    then: bool,
    /// Whether it also ends text to be written, which may contain all other separators.
    ends_content: bool,
}

/// Limits the work for long messages, which are no simple requests anyway.
const MAX_SEPARATORS: usize = 64;

fn separators(message: &str) -> Vec<Separator> {
    let found = SEPARATOR.captures_iter(message).filter(|found| found.name("quoted").is_none());
    found
        .map(|found| {
            let then = found.name("then").is_some() || found.name("ja").is_some();
            let ends_content = then || found.name("line").is_some();
            Separator { at: found.get_match().range(), then, ends_content }
        })
        .take(MAX_SEPARATORS)
        .collect()
}

/// The requests in a message, in order. Empty if none is recognised.
pub(super) fn intents(message: &str) -> Vec<Intent> {
    let separators = separators(message);
    // A form may match only without the words that follow, so the next few boundaries are tried
    // too.
    let begins_at = |start: usize, later: &[Separator]| {
        let ends = later.iter().take(3).map(|next| next.at.start).rev();
        let mut ends = ends.chain([message.len()]);
        ends.find_map(|end| parse_intent(&message[start..end], false))
    };
    let mut starts: Vec<(usize, Option<&Separator>)> = Vec::new();
    let mut writing = false;
    if let Some(first) = begins_at(0, &separators) {
        starts.push((0, None));
        writing = first.ends_in_content;
    }
    for (at, here) in separators.iter().enumerate() {
        if writing && !here.ends_content {
            continue;
        }
        if let Some(next) = begins_at(here.at.end, &separators[at + 1..]) {
            starts.push((here.at.end, Some(here)));
            writing = next.ends_in_content;
        }
    }
    if starts.is_empty() {
        return parse_form(&COMMAND, message, false).into_iter().collect();
    }
    // A request ends where the separator before the next one begins.
    let ends = starts.iter().skip(1).filter_map(|(_, before)| before.map(|before| before.at.start));
    let clauses = starts.iter().zip(ends.chain([message.len()]));
    clauses
        .filter_map(|(&(start, before), end)| {
            parse_intent(&message[start..end], before.is_some_and(|before| before.then))
        })
        .collect()
}

fn parse_intent(text: &str, afterwards: bool) -> Option<Intent> {
    FORMS.iter().find_map(|form| parse_form(form, text, afterwards))
}

fn parse_form(form: &Form, text: &str, afterwards: bool) -> Option<Intent> {
    let found = form.regex.captures(text)?;
    let arguments = arguments(form, &found)?;
    let ends_in_content = found.name("content").is_some_and(|content| {
        content.end() == text.len() && quoted(content.as_str()) == content.as_str().trim()
    });
    Some(Intent {
        words: text.trim().to_owned(),
        tool: form.tool,
        arguments,
        afterwards,
        lands: form.script == Some(Script::ReplaceEverywhere),
        ends_in_content,
    })
}

fn arguments(form: &Form, found: &Captures<'_>) -> Option<Value> {
    let group = |name: &str| found.name(name).map(|group| unquoted_word(group.as_str()));
    let mut arguments = Map::new();
    match form.tool {
        "shell" => {
            let script = match form.script? {
                Script::Tests => TESTS.to_owned(),
                Script::ReplaceEverywhere => replace_everywhere(group("old")?, group("new")?)?,
            };
            arguments.insert("script".into(), script.into());
        }
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

/// Runs the tests of the project in the folder.
const TESTS: &str = "\
if [ -f run_tests.sh ]; then bash run_tests.sh
elif [ -f Cargo.toml ]; then cargo test
elif [ -f go.mod ]; then go test ./...
elif [ -f package.json ]; then npm test
elif [ -f Makefile ] && grep -q '^test:' Makefile; then make test
elif [ -d tests ] || compgen -G 'test_*.py' >/dev/null; then python3 -m unittest
else echo 'There are no tests that I know how to run.' >&2; exit 1
fi
";

/// A script that replaces a text in all files of the folder; `None` if it has several lines.
fn replace_everywhere(old: &str, new: &str) -> Option<String> {
    let escaped = |text: &str, special: &str| {
        let mut escaped = String::new();
        for c in text.chars() {
            escaped.extend(special.contains(c).then_some('\\'));
            escaped.push(c);
        }
        escaped
    };
    if [old, new].iter().any(|text| text.contains(char::is_control)) {
        return None;
    }
    let replacement = format!("s/{}/{}/g", escaped(old, r"\/.*[]^$"), escaped(new, r"\/&"));
    Some(format!(
        "grep -rlIF --null --exclude-dir=.git -e {} . | xargs -0 -r sed -i -e {}\n",
        shlex::try_quote(old).ok()?,
        shlex::try_quote(&replacement).ok()?,
    ))
}

/// Removes surrounding quotation marks.
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

/// Removes surrounding quotation marks or the final punctuation of the sentence.
fn unquoted_word(text: &str) -> &str {
    let bare = quoted(text);
    if bare.len() < text.trim().len() {
        return bare;
    }
    match bare.strip_suffix(['.', ',', '!', '?', '。', '、', ':', ';']) {
        // The dots in `list .` and `ls ..` are paths.
        Some(shorter) if shorter.ends_with(|last: char| last.is_alphanumeric()) => shorter,
        _ => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(message: &str) -> Vec<(&'static str, Value)> {
        intents(message).into_iter().map(|intent| (intent.tool, intent.arguments)).collect()
    }

    #[test]
    fn simple_requests_become_calls() {
        for (message, tool, arguments) in [
            ("read README.md", "read_file", json!({"path": "README.md"})),
            ("Please read the file README.md.", "read_file", json!({"path": "README.md"})),
            ("Hello! Could you show me docs/a b", "read_file", json!({"path": "docs/a"})),
            (
                "write notes.txt: hello",
                "write_file",
                json!({"path": "notes.txt", "content": "hello"}),
            ),
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
            (
                "выполни git status",
                "execute_command",
                json!({"command": "git", "args": ["status"]}),
            ),
            (
                "запиши в notes.txt: привет",
                "write_file",
                json!({"path": "notes.txt", "content": "привет"}),
            ),
            ("README.mdを読んでください", "read_file", json!({"path": "README.md"})),
            (
                "notes.txtに「こんにちは」と書いて",
                "write_file",
                json!({"path": "notes.txt", "content": "こんにちは"}),
            ),
            ("what's in README.md?", "read_file", json!({"path": "README.md"})),
            ("git status", "execute_command", json!({"command": "git", "args": ["status"]})),
            ("$ rm -rf /", "execute_command", json!({"command": "rm", "args": ["-rf", "/"]})),
            (
                "create a file called hello.txt with the text Hello, world!",
                "write_file",
                json!({"path": "hello.txt", "content": "Hello, world!"}),
            ),
            (
                "write hello world into notes.txt",
                "write_file",
                json!({"path": "notes.txt", "content": "hello world"}),
            ),
            (
                "append bye to notes.txt",
                "write_file",
                json!({"path": "notes.txt", "content": "bye", "mode": "append"}),
            ),
            (
                "создай файл notes.txt с текстом привет",
                "write_file",
                json!({"path": "notes.txt", "content": "привет"}),
            ),
            ("README.mdの内容を教えて", "read_file", json!({"path": "README.md"})),
            (
                "rename a.txt to b.txt",
                "move_file",
                json!({"source": "a.txt", "destination": "b.txt"}),
            ),
        ] {
            assert_eq!(calls(message), [(tool, arguments)], "{message}");
        }
    }

    #[test]
    fn a_shell_tries_before_anything_is_landed() {
        let calls = |message: &str| -> Vec<(&'static str, Value)> {
            intents(message).iter().flat_map(Intent::calls).collect()
        };
        let script = "grep -rlIF --null --exclude-dir=.git -e 'a/b' . | \
            xargs -0 -r sed -i -e 's/a\\/b/it\\&s/g'\n";
        for message in ["Rename a/b to it&s in all files.", "переименуй a/b в it&s во всех файлах"]
        {
            let calls = calls(message);
            assert_eq!((calls[0].0, &calls[1]), ("shell", &("land", json!({}))), "{message}");
            // How words are quoted does not matter.
            let words = |script: &str| shlex::split(script).expect("whole quotes");
            let Some(Value::String(found)) = calls[0].1.get("script") else {
                panic!("no script: {message}")
            };
            assert_eq!(words(found), words(script), "{message}");
        }
        for message in ["run the tests", "Run all tests!", "запусти тесты", "テストを実行して"]
        {
            assert_eq!(calls(message), [("shell", json!({"script": TESTS}))], "{message}");
        }
        assert_eq!(calls("run tests/all.sh")[0].0, "execute_command");
        assert_eq!(calls("rename a.txt to b.txt")[0].0, "move_file");
    }

    #[test]
    fn several_requests_become_several_calls() {
        let tools = |message: &str| -> Vec<(&'static str, bool)> {
            intents(message).into_iter().map(|intent| (intent.tool, intent.afterwards)).collect()
        };
        for (message, expected) in [
            ("read a.txt then write b.txt: x", [("read_file", false), ("write_file", true)]),
            ("read a.txt and list src", [("read_file", false), ("list_directory", false)]),
            (
                "write hello into b.txt and read b.txt",
                [("write_file", false), ("read_file", false)],
            ),
            (
                "write \"hello\" to b.txt and read b.txt",
                [("write_file", false), ("read_file", false)],
            ),
            ("write b.txt: x\nrun git status", [("write_file", false), ("execute_command", false)]),
            (
                "1. read a.txt\n2. run git status",
                [("read_file", false), ("execute_command", false)],
            ),
            (
                "прочитай a.txt, затем выполни git status",
                [("read_file", false), ("execute_command", true)],
            ),
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
    fn a_request_may_follow_other_words() {
        for (message, tool) in [
            ("I have a question, read README.md", "read_file"),
            ("Nice weather today! Run git status", "execute_command"),
        ] {
            let found = calls(message);
            assert!(found.iter().any(|(found, _)| *found == tool), "{message}: {found:?}");
        }
    }

    proptest::proptest! {
        /// No combination of words makes the parser panic.
        #[test]
        fn any_words_are_parsed_without_panicking(
            words in proptest::collection::vec(proptest::sample::select(vec![
                "read a.txt", "run git status", "write b.txt: x", "ls", "hello", "the person \
                    asked:", "\"quoted",
                "прочитай a.txt", "a.txtを読んで", "and", "then", ", ", ". ", "! \
                    ", "\n", "、", "。それから", " и ", "é",
            ]), 0..12)
        ) {
            intents(&words.concat());
            intents(&words.join(" "));
        }
    }

    #[test]
    fn text_to_write_is_not_split() {
        for content in [
            "first this then that",
            "salt and pepper",
            "a; b. c",
            "\"read a.txt then run x\"",
            "buy milk and list everything",
            "Hello. Read me first, run later",
        ] {
            let message = format!("write notes.txt: {content}");
            let expected = json!({"path": "notes.txt", "content": content.trim_matches('"')});
            assert_eq!(calls(&message), [("write_file", expected)], "{message}");
        }
    }

    #[test]
    fn other_words_become_no_calls() {
        for message in [
            "add a /health route and its test",
            "why is the sky blue?",
            "",
            "спасибо",
            "ありがとう",
        ] {
            assert_eq!(calls(message), [], "{message}");
        }
    }
}
