//! The tables in `docs/reference` and `docs/scenarios.md`, written from the code.
//!
//! `make docs` writes them; without it, the tests here compare and fail when a document is out of
//! date. All of this is compiled for tests only, so the program itself carries none of it.

mod cli;
mod events;
mod limits;
mod links;
mod markdown;
mod metrics;
mod problems;
mod risk;
mod scenarios;
mod security;
mod settings;
mod source;
mod tools;

use std::path::{Path, PathBuf};

const NOTE: &str = "<!-- Generated from the code by `make docs`. Do not edit. -->\n\n";

/// The top folder of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Fails when `document` differs from `expected`; writes it instead when `UPDATE_SNAPSHOTS` is set.
fn compare(document: &str, expected: &str) {
    let path = repository().join(document);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a document is in a folder"))
            .expect("a folder");
        std::fs::write(&path, expected).expect("the document can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let line = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    let line = line.unwrap_or_else(|| found.lines().count().min(expected.lines().count())) + 1;
    assert!(
        found == expected,
        "{document} does not match the code (line {line}). Run `make docs` and commit the result."
    );
}

#[test]
fn settings_are_documented() {
    compare("docs/reference/settings.md", &format!("{NOTE}{}", settings::document()));
}

#[test]
fn commands_are_documented() {
    compare("docs/reference/cli.md", &format!("{NOTE}{}", cli::document()));
}

#[test]
fn events_are_documented() {
    compare("docs/reference/events.md", &format!("{NOTE}{}", events::document()));
}

#[test]
fn problems_are_documented() {
    compare("docs/reference/problems.md", &format!("{NOTE}{}", problems::document()));
}

#[test]
fn metrics_are_documented() {
    compare("docs/reference/metrics.md", &format!("{NOTE}{}", metrics::document()));
}

#[test]
fn limits_are_documented() {
    compare("docs/reference/limits.md", &format!("{NOTE}{}", limits::document()));
}

#[test]
fn risks_are_documented() {
    compare("docs/reference/risk.md", &format!("{NOTE}{}", risk::document()));
}

#[test]
fn tools_are_documented() {
    compare("docs/mcp.md", &tools::document());
    compare("web/src/api/tools.json", &tools::for_console());
}

#[test]
fn scenarios_and_tests_name_each_other() {
    compare("docs/scenarios.md", &scenarios::document());
}
