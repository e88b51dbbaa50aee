//! The promises of `docs/scenarios.md`, each with the tests that carry its id.

use super::{repository, source::collect};
use regex::Regex;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::LazyLock,
};

static ID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b[A-Z]{2}-[0-9]+(?:\.[0-9]+)?\b").expect("a pattern"));

/// The document with the tests of each row filled in.
pub(super) fn document() -> String {
    let text =
        std::fs::read_to_string(repository().join("docs/scenarios.md")).expect("docs/scenarios.md");
    let row = Regex::new(r"^\| ([A-Z]{2}-[0-9.]+) \| ((?:[^|\\]|\\.)*) \|").expect("a pattern");
    let mut tests = tests();
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match row.captures(line) {
            Some(parts) => {
                let carriers = tests.remove(&parts[1]).unwrap_or_default();
                assert!(!carriers.is_empty(), "no test carries the id {}", &parts[1]);
                let carriers: Vec<String> = carriers.into_iter().collect();
                lines.push(format!("| {} | {} | {} |", &parts[1], &parts[2], carriers.join(", ")));
            }
            None => lines.push(line.to_owned()),
        }
    }
    assert!(tests.is_empty(), "tests carry ids that docs/scenarios.md does not define: {tests:?}");
    lines.join("\n") + "\n"
}

/// The tests by the ids that they carry.
fn tests() -> BTreeMap<String, BTreeSet<String>> {
    let mut tests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let root = repository().canonicalize().expect("the repository");
    let mut add = |path: &Path, carriers: Vec<(String, String)>| {
        let file = path.strip_prefix(&root).unwrap_or(path).with_extension("");
        let names = file.iter().filter_map(|name| name.to_str());
        let file: Vec<&str> =
            names.filter(|name| !["crates", "src", "tests"].contains(name)).collect();
        for (id, test) in carriers {
            tests.entry(id).or_default().insert(format!("`{}` {test}", file.join("/")));
        }
    };
    let rust = Regex::new(r"\bfn ([a-z0-9_]+)").expect("a pattern");
    let script =
        Regex::new(r#"^\s*(?:test|it)\(\s*(?:'([^']+)'|"([^"]+)"|`([^`]+)`)"#).expect("a pattern");
    collect(&root.join("crates"), "rs", &mut |path, text| add(&path, above(&text, &rust)));
    for extension in ["mjs", "js", "ts"] {
        collect(&root.join("web/tests"), extension, &mut |path, text| {
            add(&path, above(&text, &script));
        });
    }
    collect(&root.join("scripts"), "py", &mut |path, text| add(&path, inside(&text)));
    tests
}

/// Ids in doc comments (`/// WS-03.2`), each with the test that follows. Ids above a function that
/// is not a test refer to a promise but do not show it.
fn above(text: &str, test: &Regex) -> Vec<(String, String)> {
    let mut waiting: Vec<String> = Vec::new();
    let mut is_test = false;
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        if line.starts_with("///") {
            waiting.extend(ID.find_iter(line).map(|id| id.as_str().to_owned()));
        } else if line.starts_with("#[") {
            is_test |= ["test", "apply"].iter().any(|word| line.contains(word));
        } else if let Some(parts) = test.captures(line) {
            let name = parts.iter().skip(1).flatten().next().map_or("", |name| name.as_str());
            let ids = waiting.drain(..).map(|id| (id, name.to_owned()));
            found.extend(ids.filter(|_| is_test || !line.contains("fn ")));
            is_test = false;
        }
    }
    found
}

/// Ids in the documentation of Python tests, each with the test that it belongs to.
fn inside(text: &str) -> Vec<(String, String)> {
    let definition = Regex::new(r"^\s*(?:async )?(?:def|class) (\w+)").expect("a pattern");
    let mut test = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(parts) = definition.captures(line) {
            test = parts[1].to_owned();
        } else if line.trim_start().starts_with("\"\"\"") {
            found.extend(ID.find_iter(line).map(|id| (id.as_str().to_owned(), test.clone())));
        }
    }
    found
}
