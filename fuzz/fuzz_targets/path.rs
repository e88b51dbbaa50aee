//! Whatever the text: parsing a path does not panic, and what it gives is inside the workspace and
//! stays itself.
#![no_main]

use atelier_core::path::{MAX_DEPTH, MAX_NAME_BYTES, Roots, WorkspacePath};
use libfuzzer_sys::fuzz_target;
use std::path::{Component, Path};

fuzz_target!(|text: &str| {
    let roots = Roots::announced("/base/ws").also("/workspace");
    let Ok(path) = WorkspacePath::parse(text, &roots) else { return };
    let parsed = path.as_str();
    if parsed != "." {
        assert!(Path::new(parsed).components().all(|part| matches!(part, Component::Normal(_))), "{text:?}");
    }
    assert!(path.depth() <= MAX_DEPTH && path.components().all(|name| name.len() <= MAX_NAME_BYTES), "{text:?}");
    assert!(!parsed.chars().any(char::is_control), "{text:?}");
    let again = WorkspacePath::parse(parsed, &Roots::relative_only());
    assert_eq!(again.as_ref().map(WorkspacePath::as_str), Ok(parsed), "{text:?}");
});
