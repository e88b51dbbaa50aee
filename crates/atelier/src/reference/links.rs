//! Links between documents, and source files that the architecture names: each leads somewhere.

use super::{repository, source::collect};
use regex::Regex;
use std::path::Path;

#[test]
fn links_between_documents_lead_somewhere() {
    let root = repository();
    let mut documents = Vec::new();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        let path = root.join(name);
        documents.push((path.clone(), std::fs::read_to_string(path).expect("a document")));
    }
    collect(&root.join("docs"), "md", &mut |path, text| documents.push((path, text)));
    let link = Regex::new(r"\]\(([^)\s]+)\)").expect("a pattern");
    let mut broken = Vec::new();
    for (path, text) in &documents {
        let targets = link.captures_iter(text).map(|found| found[1].to_owned());
        for target in targets.filter(|target| !target.contains("://")) {
            if !leads_somewhere(path, &target) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
}

#[test]
fn source_files_in_the_architecture_exist() {
    let root = repository();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let file = Regex::new(r"`(?:crates/)?(atelier[a-z-]*/[A-Za-z0-9_/.-]+)`").expect("a pattern");
    let missing: Vec<&str> = file
        .captures_iter(&text)
        .filter_map(|found| found.get(1))
        .map(|path| path.as_str())
        .filter(|path| !root.join("crates").join(path).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}

fn leads_somewhere(from: &Path, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => from.to_owned(),
        file => from.parent().expect("a document is in a folder").join(file),
    };
    match anchor {
        "" => path.exists(),
        anchor => {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines()
                .filter_map(|line| line.strip_prefix('#'))
                .any(|title| slug(title) == anchor)
        }
    }
}

/// The anchor that GitHub gives a heading.
fn slug(title: &str) -> String {
    let title = title.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
