//! Every boundary of the threat model, and every invariant of the architecture that a test checks,
//! names its tests, and these tests exist.

use super::{repository, source::collect};
use regex::Regex;
use std::collections::BTreeSet;

/// The names of all tests in Rust.
fn tests() -> BTreeSet<String> {
    let function = Regex::new(r"^\s*(?:pub )?(?:async )?fn ([a-z0-9_]+)").expect("a pattern");
    let mut tests = BTreeSet::new();
    collect(&repository().join("crates"), "rs", &mut |_, text| {
        let mut is_test = false;
        for line in text.lines() {
            let code = line.trim_start();
            if code.starts_with("#[") {
                // `apply` makes a test of a template of rstest.
                is_test |= ["test]", "test(", "#[apply("].iter().any(|mark| code.contains(mark));
            } else if let Some(found) = function.captures(line)
                && std::mem::take(&mut is_test)
            {
                tests.insert(found[1].to_owned());
            }
        }
    });
    tests
}

/// The names of all tests of the console.
fn console_tests() -> BTreeSet<String> {
    let title = Regex::new(r#"(?m)^\s*test\(\s*"([^"]+)""#).expect("a pattern");
    let mut tests = BTreeSet::new();
    collect(&repository().join("web/tests"), "ts", &mut |_, text| {
        tests.extend(title.captures_iter(&text).map(|found| found[1].to_owned()));
    });
    tests
}

#[test]
fn every_boundary_is_held_by_tests_that_exist() {
    let path = repository().join("docs/security.md");
    let text = std::fs::read_to_string(path).expect("docs/security.md");
    let tests: BTreeSet<String> = tests().into_iter().chain(console_tests()).collect();
    let name = Regex::new("[`\"]([^`\"]+)[`\"]").expect("a pattern");
    let (mut in_table, mut lines, mut faults) = (false, 0, Vec::new());
    for line in text.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")) else {
            in_table = false;
            continue;
        };
        let last = row.rsplit(" | ").next().unwrap_or(row);
        if last == "held by" {
            in_table = true;
        } else if in_table && !last.starts_with("---") {
            lines += 1;
            let named: Vec<&str> = name
                .captures_iter(last)
                .filter_map(|found| found.get(1))
                .map(|m| m.as_str())
                .collect();
            let missing = named.iter().filter(|test| !tests.contains(**test));
            faults.extend(missing.map(|test| format!("there is no test {test}: {row}")));
            if named.is_empty() {
                faults.push(format!("no test is named: {row}"));
            }
        }
    }
    assert!(lines > 30, "the tables of docs/security.md are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_tested_invariant_names_tests_that_exist() {
    let path = repository().join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
    let tests = tests();
    let check = Regex::new(r"\[((?:[a-z]+, )*test\b[^\]]*)\]").expect("a pattern");
    let name = Regex::new("`([a-z0-9_]+)`").expect("a pattern");
    let (mut checks, mut faults) = (0, Vec::new());
    for found in check.captures_iter(&text) {
        checks += 1;
        let named: Vec<&str> = name
            .captures_iter(&found[1])
            .filter_map(|found| found.get(1))
            .map(|found| found.as_str())
            .collect();
        if named.is_empty() {
            faults.push(format!("no test is named in [{}]", &found[1]));
        }
        let missing = named.iter().filter(|test| !tests.contains(**test));
        faults.extend(missing.map(|test| format!("there is no test {test}")));
    }
    assert!(checks > 20, "the invariants of ARCHITECTURE.md are found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
