//! What a person sees before a landing: everything that lands, byte for byte, or the landing is
//! refused.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;

use atelier_executor::Preview;
use common::Fixture;
use serde_json::{Value, json};

/// Runs a script that must succeed.
fn shell(f: &Fixture, script: &str) {
    let answer = f.call("shell", json!({ "script": script, "timeout": 60 })).to_value();
    assert_eq!(answer["success"], json!(true), "{script}: {answer:#}");
}

/// What a person sees before the call, or why nobody is asked.
fn card(f: &Fixture, tool: &str, params: Value) -> Result<String, String> {
    match f.tools().preview(&common::parse(f, tool, params)) {
        Ok(Some(Preview::Landing { diff, .. })) => Ok(diff),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

/// LY-60: a byte that is in no text hides nothing of a file that runs all the same.
#[test]
fn a_file_that_is_not_text_is_shown_byte_for_byte() {
    let f = Fixture::new();
    shell(&f, r#"printf '// \x00\nconsole.log("EVIL")\n' > app.js"#);
    let shown = card(&f, "land", json!({})).unwrap();
    assert_eq!(
        shown,
        "diff --git a/app.js b/app.js\n\
         Not text: bytes are shown as \\xNN, a carriage return as \\r, and a backslash as \\\\\n\
         --- a/app.js\n+++ b/app.js\n@@ -1,1 +1,2 @@\n-console.log(1)\n+// \\x00\n\
         +console.log(\"EVIL\")\n"
    );
    assert_eq!(f.call("land", json!({})).to_value()["success"], json!(true));
    // What comes back is shown as well, also if it is what is not text.
    let undo = card(&f, "undo", json!({})).unwrap();
    assert!(undo.contains("25 bytes that is not shown: it is not text\n"), "{undo}");
    assert!(undo.ends_with("@@ -0,0 +1,1 @@\n+console.log(1)\n"), "{undo}");
    let undone = f.call("undo", json!({})).to_value();
    let again = card(&f, "undo", json!({ "tool_id": undone["tool_id"] })).unwrap();
    assert!(again.ends_with("-console.log(1)\n+// \\x00\n+console.log(\"EVIL\")\n"), "{again}");
    // Other bytes that are in no text, in a file of no known encoding, and a lone carriage return.
    for (bytes, shown) in [
        (r"# \x01 \xff\xfe\nEVIL\n", "+# \\x01 \\xff\\xfe\n+EVIL\n"),
        (r"# \\\x00 \\\\x00\nEVIL\n", "+# \\\\\\x00 \\\\\\\\x00\n+EVIL\n"),
        (r"# \x00 a\rEVIL\n", "+# \\x00 a\\rEVIL\n"),
        (r"a\rEVIL\n", "+a\rEVIL\n"),
        (r"GIF89a=1;\x00EVIL()", "+GIF89a=1;\\x00EVIL()\n\\ No newline"),
    ] {
        shell(&f, &format!("printf '{bytes}' > s.py"));
        let card = card(&f, "land", json!({})).unwrap();
        assert!(card.contains(shown), "{bytes}: {card}");
    }
}

/// LY-60: a file is shown whole, however long it is padded and whatever is sorted before it.
#[test]
fn nothing_lands_that_was_too_long_to_be_shown() {
    let f = Fixture::new();
    shell(&f, "python3 -c \"print('EVIL'); print('# pad pad\\n' * 200000)\" > s.py");
    let shown = card(&f, "land", json!({})).unwrap();
    assert!(shown.contains("\n+EVIL\n") && shown.lines().count() > 200_000, "{}", shown.len());
    // Together with others it is too much, and nobody is asked to approve what is left out.
    shell(&f, "for i in 1 2; do cp s.py a$i.py; done; echo EVIL > zz.py");
    let refused = card(&f, "land", json!({})).unwrap_err();
    assert!(refused.contains("on. Land it in parts"), "{refused}");
    let part = card(&f, "land", json!({ "paths": ["zz.py"] })).unwrap();
    assert!(part.ends_with("@@ -0,0 +1,1 @@\n+EVIL\n"), "{part}");
    let diff = f.call("diff", json!({})).to_value();
    assert_eq!((&diff["success"], &diff["truncated"]), (&json!(true), &json!(true)));
    // A file that is too long by itself does not land.
    f.call("discard", json!({}));
    shell(&f, "head -c 5000000 /dev/urandom > big.bin; echo small > small.txt");
    let refused = card(&f, "land", json!({})).unwrap_err();
    assert!(refused.contains("big.bin has 5000000 bytes"), "{refused}");
    assert!(card(&f, "land", json!({ "paths": ["small.txt"] })).is_ok());
}

/// LY-60: what an agent writes into a file that usually holds secrets is no secret of the person.
#[test]
fn new_content_of_a_secret_file_is_shown_and_the_old_is_not() {
    let f = Fixture::new();
    shell(
        &f,
        "mkdir -p .config/pip .ssh; echo 'yarnPath: ./EVIL.cjs' > .yarnrc.yml; \
         echo EVIL > .npmrc; echo EVIL > .config/pip/pip.conf; echo EVIL > .ssh/config; \
         echo EVIL > .env",
    );
    // The person makes one of them meanwhile.
    f.put(".env", "KEY=SECRET-42\n");
    let landed = json!({ "paths": [".yarnrc.yml", ".npmrc", ".config", ".ssh"] });
    let shown = card(&f, "land", landed).unwrap();
    assert_eq!(shown.matches("EVIL").count(), 4, "{shown}");
    let both = card(&f, "land", json!({ "paths": [".env"], "replace": true })).unwrap();
    assert!(both.contains("Was a file of 14 bytes that is not shown: it may hold secrets"));
    assert!(both.contains("\n+EVIL\n") && !both.contains("SECRET-"), "{both}");
    let diff = f.call("diff", json!({})).to_value().to_string();
    assert!(diff.contains("EVIL") && !diff.contains("SECRET-"), "{diff}");
}

/// LY-60: pictures and the like land as comfortably as texts, deleted files and empty ones.
#[test]
fn ordinary_landings_are_shown_as_they_are() {
    let f = Fixture::new();
    f.put("old.dat", b"\0\x01");
    f.put("big.dat", vec![1; 5 << 20]);
    shell(
        &f,
        r"printf '\x89PNG\r\n\x1a\n\x00\x01' > logo.png; head -c 5000000 /dev/zero >> logo.png; \
        printf '' > empty; rm old.dat notes.txt; printf 'caf\xc3\xa9\r\n' > crlf.txt; \
        mkdir kept; mv big.dat kept/moved.dat",
    );
    let shown = card(&f, "land", json!({})).unwrap();
    let has = |section: &str| assert!(shown.contains(section), "{section}\n{shown}");
    has("diff --git a/logo.png b/logo.png\nPNG picture: 0 -> 5000010 bytes, SHA-256 ");
    has("diff --git a/empty b/empty\nBecomes an empty file\ndiff");
    has("+++ /dev/null\n@@ -1,1 +0,0 @@\n-notes\n");
    has("diff --git a/old.dat b/old.dat\nDeleted: a file of 2 bytes that is not text\n");
    has("+++ b/crlf.txt\n@@ -0,0 +1,1 @@\n+café\r\n");
    has("b/kept/moved.dat\nBecomes what big.dat is now: 0 -> 5242880 bytes, SHA-256 ");
    let landed = f.call("land", json!({})).to_value();
    assert_eq!(landed["success"], json!(true), "{landed:#}");
    assert_eq!(fs::read(f.path("kept/moved.dat")).unwrap().len(), 5 << 20);
    // A picture that can be started, or that only says so, is shown byte for byte.
    shell(&f, r"printf 'GIF89a\x00' > run.gif; chmod +x run.gif; printf 'GIF8\x00' > x.js");
    let shown = card(&f, "land", json!({})).unwrap();
    assert!(shown.contains("+GIF89a\\x00\n") && shown.contains("+GIF8\\x00\n"), "{shown}");
    // An undo shows what it can, and is possible in any case.
    assert!(card(&f, "undo", json!({})).is_ok());
    assert_eq!(f.call("undo", json!({})).to_value()["success"], json!(true));
}

/// LY-65: what a file looks like in one encoding hides nothing of what its bytes are.
#[test]
fn other_encodings_are_named_and_hide_no_bytes() {
    let f = Fixture::new();
    f.put("letter.txt", b"\xcf\xf0\xe8\xe2\xe5\xf2, \xea\xe0\xea \xe4\xe5\xeb\xe0?\n".repeat(20));
    shell(
        &f,
        r#"python3 - <<'X'
text = '# 这个文件描述项目的构建步骤，请不要修改，除非您知道自己在做什么。\n# 下面的步骤检查签名，然后再安装\n'
made = text.encode('gbk') * 3 + b'install:\n# \x81\x5c\n\t./check || exit 1\n'
open('rules.inc', 'wb').write(made)
open('run.sh', 'wb').write(b'\xff\xfe\necho EVIL\n')
old = open('letter.txt', 'rb').read()
open('letter.txt', 'wb').write(old + 'Пока\n'.encode('cp1251'))
X"#,
    );
    let shown = card(&f, "land", json!({})).unwrap();
    let has = |section: &str| assert!(shown.contains(section), "{section}\n{shown}");
    // A backslash at the end of a line makes the next line part of the comment.
    has("diff --git a/rules.inc b/rules.inc\nEncoding: gbk, by guess\n");
    has("\u{27e8}81 5c\u{27e9}\n+\t./check || exit 1\n");
    has("diff --git a/run.sh b/run.sh\nEncoding: utf-16le, by guess\n");
    has("\u{27e8}0a 65\u{27e9}");
    // Ordinary letters are shown as they are.
    has("diff --git a/letter.txt b/letter.txt\nEncoding: windows-1251, by guess\n");
    has("\n+Пока\n");
}
