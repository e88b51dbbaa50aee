//! Tests of programs that only read, in folders whose files are not named one by one.
#![allow(clippy::unwrap_used, reason = "a test that fails says so")]

mod common;

use atelier_executor::{Approval, detect_isolation};
use common::{Fixture, approved};
use serde_json::json;

fn unasked(f: &Fixture, args: &[&str]) -> String {
    let call = json!({ "command": args[0], "args": args[1..] });
    let result = approved(f, "execute_command", call, &Approval::none());
    let reported = json!(result).to_string();
    assert!(!reported.contains("approval_required"), "{args:?}: {reported}");
    reported
}

/// A link in a folder may lead to a file that nobody may see, or out of the project.
#[test]
fn comparing_folders_follows_no_links() {
    let f = Fixture::new();
    f.put("one/x.txt", "1\n");
    f.put("two/x.txt", "2\n");
    assert!(f.bash(
        "ln -s /etc/passwd one/link && ln -s ../notes.txt one/inside && touch two/link two/inside"
    ));
    for args in [
        &["diff", "-r", "one", "two"][..],
        &["diff", "-ru", "one", "two"],
        &["diff", "--recursive", "one", "two"],
        &["diff", "--recurs", "-u", "one", "two"],
        &["diff", "-Nur", "one", "two"],
    ] {
        let reported = unasked(&f, args);
        assert!(
            !reported.contains("root:") && !reported.contains("notes\\n"),
            "{args:?}: {reported}"
        );
        assert!(reported.contains("x.txt"), "{args:?}: {reported}");
    }
    // A link that is named is compared by what it leads to.
    assert!(unasked(&f, &["diff", "one/inside", "two/inside"]).contains("notes"));
}

/// Packages hold files with the names of secrets as well.
#[test]
fn searching_passes_by_secrets_in_packages() {
    if !detect_isolation().mounts {
        return;
    }
    let f = Fixture::new();
    f.put("node_modules/a/.env", "TOKEN=SECRET-42\n");
    f.put("node_modules/a/index.js", "const TOKEN = 1\n");
    f.put("sub/node_modules/b/node_modules/c/id_rsa", "SECRET-42\n");
    for args in [
        &["grep", "-r", "TOKEN", "."][..],
        &["grep", "-rn", "-e", "TOKEN", "-e", "SECRET", "node_modules", "sub"],
        &["grep", "-R", "SECRET", "sub"],
        &["diff", "-r", "node_modules", "sub/node_modules"],
        &["git", "diff", "--no-index", "node_modules", "sub"],
    ] {
        let reported = unasked(&f, args);
        assert!(!reported.contains("SECRET-42"), "{args:?}: {reported}");
    }
    assert!(unasked(&f, &["grep", "-r", "TOKEN", "."]).contains("index.js"));
}
