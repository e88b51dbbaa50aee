//! The attack corpora against the policy alone. Cases that only a real file system can decide are
//! listed with the reason and left to the tests of the executor. Benign cases among them must not
//! be refused here.

use atelier_core::{
    path::Roots,
    policy::{
        Policy,
        verdict::{Judgement, Verdict},
    },
};
use serde_json::{Map, Value, json};

fn roots() -> Roots {
    Roots::announced("/base/ws")
}

fn judge(tool: &str, params: Value) -> Judgement {
    Policy::builtin().judge_request(tool, params, &roots()).1
}

/// Cases that are decided by what is at the path, not by its text.
const ONLY_ON_DISK: [(&str, &str); 32] = [
    ("C015", "the argument is a link to the outside"),
    ("C029", "the argument is a link to the outside"),
    ("C036", "the argument is a FIFO"),
    ("C048", "the argument is a link to the outside"),
    ("P034", "a parent is a link to the outside"),
    ("P037", "a chain of links"),
    ("P041", "a parent is a link to the outside"),
    ("P042", "a link to the outside"),
    ("P045", "a parent is a link to the outside"),
    ("P054", "a link to /proc"),
    ("P059", "a link to a device"),
    ("P060", "a device"),
    ("P061", "a FIFO"),
    ("P067", "a file as a parent"),
    ("P068", "it exists as a file"),
    ("P071", "a race"),
    ("P103", "C:secret.txt is a fine name on Unix, and is not there"),
    ("P126", "the size of a file"),
    ("P127", "the size of a file"),
    ("P129", "the content of a file"),
    ("P148", "NOTES.TXT is a fine name, and is not there"),
    // The text is allowed. The tests of the executor check the invariant.
    ("P069", "a hard link is replaced, not written through"),
    ("P141", "hidden names are left out of the answer"),
    // The verdicts are checked here. Some checks need a run and are left out.
    ("C034", "standard input is empty"),
    ("C035", "a FIFO in the tree"),
    ("C056", "an endless output is cut"),
    ("C099", "zip follows links that the sandbox does not let out"),
    ("C130", "git runs with configuration that cannot start helpers"),
    ("C131", "git runs with configuration that cannot start helpers"),
    ("C133", "hooks run in the sandbox"),
    ("C229", "programs come from a fixed PATH"),
    ("C231", "the environment is clean"),
];

fn left_to_the_executor(id: &str) -> bool {
    ONLY_ON_DISK.iter().any(|(case, _)| *case == id)
}

/// An argument `{"repeat": c, "times": n}` stands for n times c.
fn argument(arg: &Value) -> String {
    match arg {
        Value::String(text) => text.clone(),
        arg => arg["repeat"]
            .as_str()
            .unwrap_or_default()
            .repeat(arg["times"].as_u64().unwrap_or(0) as usize),
    }
}

#[test]
fn commands() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("data/command_attacks.json")).unwrap();
    let (mut wrong, mut passed, mut left) = (Vec::new(), 0, 0);
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let mut params = Map::from_iter([
            ("command".to_owned(), case["command"].clone()),
            (
                "args".to_owned(),
                json!(case["args"].as_array().unwrap().iter().map(argument).collect::<Vec<_>>()),
            ),
        ]);
        if let Some(more) = case["params"].as_object() {
            params.extend(more.clone());
        }
        let judged = judge("execute_command", Value::Object(params));
        let expected: Verdict = case["expect"].as_str().unwrap().parse().unwrap();
        let fine = match case["kind"].as_str().unwrap() {
            "attack" => judged.verdict >= expected,
            "benign" => judged.verdict <= expected,
            other => panic!("{id}: a new kind of case: {other}"),
        };
        match (fine, left_to_the_executor(id)) {
            (true, _) => passed += 1,
            (false, true) => left += 1,
            (false, false) => wrong.push(format!(
                "{id} {} {:?}: expected {expected}, is {} by {}: {}",
                case["command"], case["args"], judged.verdict, judged.rule, judged.reason
            )),
        }
    }
    println!(
        "{passed} of {} command cases pass on text alone, {left} need a file system",
        cases.len()
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((passed, left), (136, 4));
}

/// Command lines with which somebody has got past the rules. If a repository or a patch decides
/// about one, the expected verdict is that of the text alone, and the executor's tests check the
/// rest.
#[test]
fn demonstrated_commands() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("data/demonstrated_commands.json")).unwrap();
    for case in &cases {
        let params = json!({ "command": case["command"], "args": case["args"] });
        let judged = judge("execute_command", params);
        let expected: Verdict = case["expect"].as_str().unwrap().parse().unwrap();
        assert_eq!(judged.verdict, expected, "{case}: {} by {}", judged.reason, judged.rule);
    }
}

#[test]
fn paths() {
    // A lone surrogate cannot be in a Rust string, so JSON that contains one is refused before any
    // tool gets it.
    let text = include_str!("data/path_attacks.json");
    assert!(serde_json::from_str::<Value>(text).is_err());
    let cases: Vec<Value> = serde_json::from_str(&text.replace("\\ud800", "\\u202e")).unwrap();
    let (mut wrong, mut passed, mut left) = (Vec::new(), 0, 0);
    for case in &cases {
        let id = case["id"].as_str().unwrap();
        let raw = case["path"].as_str().unwrap();
        let path = match case["class"].as_str() {
            Some("literal") => raw.to_owned(),
            _ => [("$WS2", "/base/ws2"), ("$WS", "/base/ws"), ("$OUT", "/base/out")]
                .iter()
                .find_map(|(name, place)| Some(format!("{place}{}", raw.strip_prefix(name)?)))
                .unwrap_or_else(|| raw.to_owned()),
        };
        let (tool, params) = match case["op"].as_str().unwrap() {
            "read" => ("read_file", json!({"path": path})),
            "write" => ("write_file", json!({"path": path, "content": case["content"]})),
            "list" => ("list_directory", json!({"path": path, "pattern": case["pattern"]})),
            "search" => ("search_files", json!({"path": path, "pattern": case["pattern"]})),
            "create_dir" => ("create_directory", json!({"path": path})),
            "info" => ("get_file_info", json!({"path": path})),
            other => panic!("{id}: a new operation: {other}"),
        };
        let judged = judge(tool, params);
        let allowed = judged.verdict < Verdict::Deny;
        let fine = allowed == (case["expect"] == "allow");
        match (fine, left_to_the_executor(id)) {
            (true, _) => passed += 1,
            // A path that only the file system can refuse is allowed here. The opposite never
            // happens.
            (false, true) if allowed => left += 1,
            _ => {
                wrong.push(format!(
                    "{id} {path:?}: {} by {}: {}",
                    judged.verdict, judged.rule, judged.reason
                ));
            }
        }
    }
    println!(
        "{passed} of {} path cases pass on text alone, {left} need a file system",
        cases.len()
    );
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((passed, left), (73, 17));
}
