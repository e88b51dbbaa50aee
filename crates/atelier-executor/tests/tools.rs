//! The tools of agents: JSON goes in, JSON comes out.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use atelier_core::gate::ToolOutcome;
use atelier_core::policy::verdict::Verdict;
use atelier_executor::{Approval, Described, Expect, Kind, Preview, checksum, detect_isolation};
use common::{Fixture, approved, parse};
use serde_json::{Value, json};

fn json_of(result: &ToolOutcome) -> Value {
    serde_json::to_value(result).unwrap()
}

#[test]
fn reading_answers_in_the_seeds_shape() {
    let f = Fixture::new();
    assert_eq!(
        json_of(&f.call("tool_read_file", json!({ "path": "notes.txt" }))),
        json!({ "success": true, "path": "notes.txt", "content": "notes\n", "encoding": "utf-8", "size": 6, "checksum": checksum(b"notes\n") })
    );
    f.put("pic.png", b"\x89PNG\r\n\x1a\n\0\0");
    let picture = f.call("read_file", json!({ "path": "pic.png" }));
    assert_eq!(
        (picture.fields["encoding"].as_str(), picture.fields["content"].as_str()),
        (Some("base64"), Some("iVBORw0KGgoAAA=="))
    );
    let missing = json_of(&f.call("read_file", json!({ "path": "nope" })));
    assert_eq!(
        missing,
        json!({ "success": false, "error": "Path nope does not exist", "code": "not_found" })
    );
    let both = f.call("read_file", json!({ "path": "notes.txt", "head": 1, "tail": 1 }));
    assert!(!both.success());
    f.put("lines", "1\n2\n3\n");
    assert_eq!(f.call("read_file", json!({ "path": "lines", "tail": 1 })).fields["content"], "3\n");
    assert_eq!(
        f.call("read_file", json!({ "path": "lines", "head": 0 })).fields["content"],
        "1\n2\n3\n"
    );
}

#[test]
fn writing_needs_its_approval_and_reports_what_is_on_disk() {
    let f = Fixture::new();
    let write = json!({ "path": "new.txt", "content": "one" });
    let refused = json_of(&approved(&f, "write_file", write.clone(), &Approval::none()));
    assert_eq!(
        (&refused["success"], &refused["code"], &refused["verdict"]),
        (&json!(false), &json!("approval_required"), &json!("MEDIUM"))
    );
    assert!(!f.path("new.txt").exists());
    let medium = Approval { up_to: Verdict::Medium, expect: Expect::Absent, ..Approval::none() };
    let written = json_of(&approved(&f, "write_file", write, &medium));
    assert_eq!(
        (&written["size"], &written["checksum"], &written["created"]),
        (&json!(3), &json!(checksum(b"one")), &json!(true))
    );
    let appended =
        f.call("write_file", json!({ "path": "new.txt", "content": "two", "mode": "append" }));
    assert_eq!(
        (&appended.fields["size"], fs::read_to_string(f.path("new.txt")).unwrap().as_str()),
        (&json!(6), "onetwo")
    );
    let deep = json!({ "path": "a/b/c.txt", "content": "x" });
    // Nobody is asked about a call that cannot succeed, and the error says what would help.
    let shown = f.tools().preview(&parse(&f, "write_file", deep.clone())).unwrap_err();
    let failed = f.call("write_file", deep.clone()).failure.unwrap();
    assert_eq!((failed.code.as_str(), &failed.detail), ("not_found", &shown.to_string()));
    assert!(failed.detail.contains("create_dirs"), "{}", failed.detail);
    let mut with_dirs = deep;
    with_dirs["create_dirs"] = json!(true);
    assert!(f.call("write_file", with_dirs).success());
}

#[test]
fn what_was_shown_is_what_is_written_or_it_is_stale() {
    let f = Fixture::new();
    let edit =
        json!({ "path": "notes.txt", "edits": [{ "old_text": "notes", "new_text": "ideas" }] });
    let call = parse(&f, "edit_file", edit.clone());
    let shown = f.tools().preview(&call).unwrap().unwrap();
    let expected = Preview::Write {
        base_checksum: Some(checksum(b"notes\n")),
        before: Some("notes\n".into()),
        after: "ideas\n".into(),
        unchanged: false,
    };
    assert_eq!(shown, expected);
    let expect = Expect::Checksum(shown.base_checksum().unwrap().to_owned());
    let approval = Approval { up_to: Verdict::Medium, expect, ..Approval::none() };
    f.put("notes.txt", "changed meanwhile: notes\n");
    assert_eq!(
        approved(&f, "edit_file", edit.clone(), &approval).failure.unwrap().code.as_str(),
        "stale"
    );
    assert_eq!(fs::read_to_string(f.path("notes.txt")).unwrap(), "changed meanwhile: notes\n");
    f.put("notes.txt", "notes\n");
    assert!(approved(&f, "edit_file", edit, &approval).success());
    assert_eq!(fs::read_to_string(f.path("notes.txt")).unwrap(), "ideas\n");
    let new = parse(&f, "write_file", json!({ "path": "x.txt", "content": "x" }));
    assert_eq!(
        f.tools().preview(&new).unwrap().unwrap(),
        Preview::Write { base_checksum: None, before: None, after: "x".into(), unchanged: false }
    );
}

#[test]
fn only_the_same_bytes_are_unchanged() {
    let f = Fixture::new();
    f.put("notes.txt", "notes\n");
    f.put("empty.txt", "");
    fs::write(f.path("old.txt"), b"\xcf\xf0\xe8\xe2\xe5\xf2, \xec\xe8\xf0!\r\n").unwrap();
    fs::write(f.path("image.bin"), b"\xff\xfe\x00\x01").unwrap();
    let write = |path: &str, content: &str| json!({ "path": path, "content": content });
    let append =
        |path: &str, content: &str| json!({ "path": path, "content": content, "mode": "append" });
    let edit = |old: &str, new: &str| json!({ "path": "notes.txt", "edits": [{ "old_text": old, "new_text": new }] });
    for (tool, params, unchanged) in [
        ("write_file", write("notes.txt", "notes\n"), true),
        ("write_file", write("notes.txt", "notes"), false),
        ("write_file", write("notes.txt", "notes\r\n"), false),
        ("write_file", write("old.txt", "Привет, мир!\r\n"), true),
        ("write_file", write("old.txt", "Привет, мир!\n"), false),
        ("write_file", write("empty.txt", ""), true),
        ("write_file", write("new.txt", ""), false),
        ("write_file", write("image.bin", ""), false),
        ("write_file", append("notes.txt", ""), true),
        ("write_file", append("notes.txt", " "), false),
        ("write_file", append("new.txt", ""), false),
        ("edit_file", edit("notes", "notes"), true),
        ("edit_file", edit("notes", "Notes"), false),
        ("delete_file", json!({ "path": "empty.txt" }), false),
        ("move_file", json!({ "source": "empty.txt", "destination": "other.txt" }), false),
    ] {
        let call = parse(&f, tool, params.clone());
        let shown = f.tools().preview(&call).unwrap().unwrap();
        assert_eq!(shown.is_unchanged(), unchanged, "{tool} {params}");
    }
}

#[test]
fn what_is_deleted_or_moved_is_what_was_shown() {
    let f = Fixture::new();
    f.put("src/a.txt", "one\ntwo\n");
    f.put("src/deep/b.txt", "b");
    f.put("src/.env", "KEY=SECRET-42");
    f.put("src/x.bin", "a\0b");
    symlink("a.txt", f.path("src/link")).unwrap();
    let shown = |tool: &str, params: Value| f.tools().preview(&parse(&f, tool, params));
    let entry = |tool: &str, params: Value| match shown(tool, params).unwrap().unwrap() {
        Preview::Entry(there) => there,
        other => panic!("{other:?}"),
    };
    let file = Described {
        kind: Kind::File,
        size: 8,
        text: Some("one\ntwo\n".into()),
        entries: Vec::new(),
        target: None,
        checksum: checksum(b"one\ntwo\n"),
    };
    let delete = json!({ "path": "src/a.txt" });
    let moved = json!({ "source": "src/a.txt", "destination": "src/c.txt" });
    assert_eq!(entry("delete_file", delete.clone()), file);
    assert_eq!(entry("move_file", moved.clone()), file);
    let folder = entry("move_file", json!({ "source": "src/deep", "destination": "src/wide" }));
    assert_eq!(
        (folder.kind, folder.size, folder.entries),
        (Kind::Directory, 1, vec!["b.txt".to_owned()])
    );
    let link = entry("delete_file", json!({ "path": "src/link" }));
    assert_eq!((link.kind, link.target.as_deref()), (Kind::Symlink, Some("a.txt")));
    // The content of a secret is not put into a preview, and what is not text is only described.
    for (path, size) in [("src/.env", 13), ("src/x.bin", 3)] {
        let there = entry("delete_file", json!({ "path": path }));
        assert_eq!((there.size, there.text), (size, None), "{path}");
    }
    // Nobody is asked about a call that cannot be done.
    for (tool, params, code) in [
        ("delete_file", json!({ "path": "src/none" }), "not_found"),
        ("delete_file", json!({ "path": "src/deep" }), "directory_not_empty"),
        (
            "move_file",
            json!({ "source": "src/a.txt", "destination": "src/x.bin" }),
            "already_exists",
        ),
        ("move_file", json!({ "source": "src/a.txt", "destination": "no/c.txt" }), "not_found"),
    ] {
        assert_eq!(
            shown(tool, params.clone()).unwrap_err().code().as_str(),
            code,
            "{tool} {params}"
        );
    }
    let approval = Approval {
        up_to: Verdict::High,
        expect: Expect::Checksum(file.checksum),
        ..Approval::none()
    };
    for (tool, params) in [("delete_file", &delete), ("move_file", &moved)] {
        f.put("src/a.txt", "changed meanwhile");
        let stale = approved(&f, tool, params.clone(), &approval);
        assert_eq!(stale.failure.unwrap().code.as_str(), "stale", "{tool}");
        assert_eq!(fs::read_to_string(f.path("src/a.txt")).unwrap(), "changed meanwhile");
        f.put("src/a.txt", "one\ntwo\n");
        assert!(approved(&f, tool, params.clone(), &approval).success(), "{tool}");
        assert!(!f.path("src/a.txt").exists());
    }
}

#[test]
fn a_harmless_name_does_not_stand_for_a_secret() {
    let f = Fixture::new();
    f.put(".env", "KEY=SECRET-42");
    symlink(".env", f.path("config.txt")).unwrap();
    for (tool, params) in [
        ("read_file", json!({ "path": "config.txt" })),
        ("execute_command", json!({ "command": "cat", "args": ["config.txt"] })),
    ] {
        assert_eq!(f.judge(tool, params.clone()).verdict, Verdict::High, "{tool}");
        let result = approved(&f, tool, params, &Approval::none());
        assert_eq!(result.failure.unwrap().code.as_str(), "approval_required");
    }
}

#[test]
fn commands_nobody_was_asked_about_see_no_secrets() {
    let f = Fixture::new();
    if !detect_isolation().mounts {
        return;
    }
    f.put(".env", "KEY=SECRET-42");
    f.put("deep/er/id_rsa", "SECRET-43");
    f.put("deep/seen", "SECRET-free");
    let low = approved(
        &f,
        "execute_command",
        json!({ "command": "grep", "args": ["-r", "SECRET", "."] }),
        &Approval::none(),
    );
    assert_eq!(low.fields["stdout"], "./deep/seen:SECRET-free\n");
    let grep = approved(&f, "grep", json!({ "pattern": "SECRET", "path": "." }), &Approval::none());
    assert_eq!(
        (&grep.fields["count"], &grep.fields["matches"][0]["path"]),
        (&json!(1), &json!("deep/seen"))
    );
}

#[test]
fn what_is_ignored_is_not_found_by_any_tool() {
    let f = Fixture::new();
    f.put("private/plan", "SECRET");
    f.put(".atelierignore", "private/\n");
    for (tool, params) in [
        ("read_file", json!({ "path": "private/plan" })),
        ("get_file_info", json!({ "path": "private" })),
        ("list_directory", json!({ "path": "private" })),
        ("execute_command", json!({ "command": "cat", "args": ["private/plan"] })),
    ] {
        let result = f.call(tool, params);
        assert_eq!(result.failure.as_ref().unwrap().code.as_str(), "not_found", "{tool}");
    }
    if detect_isolation().mounts {
        let python = json!({ "command": "python3", "args": ["look.py"] });
        f.put("look.py", "import os\nprint(os.listdir('private'))\n");
        assert_eq!(f.call("execute_command", python).fields["stdout"], "[]\n");
    }
}

#[test]
fn commands_answer_in_the_seeds_shape() {
    let f = Fixture::new();
    let done = json_of(&approved(
        &f,
        "execute_command",
        json!({ "command": "echo", "args": ["a", ";", "b"] }),
        &Approval::none(),
    ));
    assert_eq!(
        (&done["success"], &done["stdout"], &done["exit_code"], &done["access"], &done["network"]),
        (&json!(true), &json!("a ; b\n"), &json!(0), &json!("read_only"), &json!(false))
    );
    assert!(
        done["execution_time"].as_f64().unwrap() > 0.0 && done["isolation"]["landlock"].is_u64()
    );
    let failed = json_of(&f.call("execute_command", json!({ "command": "ls", "args": ["nope"] })));
    assert_eq!(
        (&failed["success"], &failed["exit_code"], &failed["code"]),
        (&json!(false), &json!(2), &json!("command_failed"))
    );
    let denied =
        json_of(&f.call("execute_command", json!({ "command": "rm", "args": ["-rf", "/"] })));
    assert_eq!(
        (&denied["success"], &denied["code"], &denied["verdict"]),
        (&json!(false), &json!("command_not_allowed"), &json!("DENY"))
    );
    assert!(denied["error"].as_str().unwrap().starts_with("Command not allowed"));
    f.put("sleep.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n");
    let slow = json_of(&f.call(
        "execute_command",
        json!({ "command": "python3", "args": ["sleep.py"], "timeout": 1 }),
    ));
    assert_eq!(
        (&slow["code"], &slow["stdout"], &slow["exit_code"]),
        (&json!("command_timeout"), &json!("up\n"), &Value::Null)
    );
}

#[test]
fn listings_and_searches_say_when_there_is_more() {
    let f = Fixture::new();
    for n in 0..1100 {
        f.put(&format!("many/{n:04}"), "");
    }
    let listed = f.call("list_directory", json!({ "path": "many" }));
    assert_eq!(
        (
            listed.fields["files"].as_array().unwrap().len(),
            &listed.fields["total_count"],
            &listed.fields["limited"]
        ),
        (1000, &json!(1100), &json!(true))
    );
    let file =
        &f.call("list_directory", json!({ "path": "src", "pattern": "*.rs" })).fields["files"][0];
    assert_eq!(
        (&file["name"], &file["path"], &file["type"], &file["size"]),
        (&json!("main.rs"), &json!("src/main.rs"), &json!("file"), &json!(21))
    );
    let found =
        f.call("search_files", json!({ "path": ".", "pattern": "**/*.py", "max_results": 1 }));
    assert_eq!(
        (&found.fields["matches"], &found.fields["limited"]),
        (&json!([{ "path": "s.py", "type": "file" }]), &json!(true))
    );
}

#[test]
fn moving_and_deleting_obey_the_rules_of_the_root() {
    let f = Fixture::new();
    f.put("src/sub/x", "x");
    assert_eq!(
        f.call("delete_file", json!({ "path": "src" })).failure.unwrap().refusal.unwrap().verdict,
        Verdict::Deny
    );
    assert!(!f.call("move_file", json!({ "source": "src", "destination": "lib" })).success());
    assert!(
        f.call("move_file", json!({ "source": "src/sub", "destination": "src/moved" })).success()
    );
    assert!(f.call("delete_file", json!({ "path": "src/moved/x" })).success());
    assert!(f.call("delete_file", json!({ "path": "src/moved" })).success());
    assert!(f.call("create_directory", json!({ "path": "src/again/deep" })).success());
    assert_eq!(f.call("get_file_info", json!({ "path": "src/again" })).fields["entries"], json!(1));
}

#[test]
fn what_is_kept_from_agents_stays_where_it_is() {
    let f = Fixture::new();
    f.put(".atelierignore", "\u{feff}a/data/private/\n");
    f.put("a/data/private/x.txt", "SECRET");
    f.put("a/more/y.txt", "y");
    let moved = |from: &str, to: &str| {
        f.judge("execute_command", json!({ "command": "mv", "args": [from, to] }))
    };
    for from in ["a/data", "a/data/private"] {
        assert_eq!(moved(from, "a/elsewhere").verdict, Verdict::Deny, "{from}");
    }
    assert_eq!(moved("a/more", "a/elsewhere").verdict, Verdict::Medium);
    // Rules that cannot be read completely stop the tools.
    f.put(".atelierignore", "#".repeat(2 << 20) + "\na/data/private/\n");
    let read = f.call("read_file", json!({ "path": "notes.txt" }));
    assert_eq!(read.failure.unwrap().code.as_str(), "file_size_exceeded");
}

#[test]
fn a_link_to_a_secret_is_of_its_tools_class() {
    let f = Fixture::new();
    f.put(".env", "x");
    symlink(".env", f.path("config.txt")).unwrap();
    assert_eq!(f.judge("read_file", json!({ "path": "config.txt" })).rule, "read_file file.secret");
    let cat = json!({ "command": "cat", "args": ["config.txt"] });
    assert_eq!(f.judge("execute_command", cat).rule, "cat file.secret");
}

/// Shared memory of programs is in a folder of the command's own.
#[test]
fn processes_of_a_command_can_share_memory() {
    let f = Fixture::new();
    f.put(
        "pool.py",
        "from multiprocessing import Lock, shared_memory\nLock()\n\
         shared = shared_memory.SharedMemory(create=True, \
         size=10)\nshared.unlink()\nprint('shared')\n",
    );
    let done = f.call("execute_command", json!({ "command": "python3", "args": ["pool.py"] }));
    assert_eq!(done.fields["stdout"], "shared\n", "{done:?}");
}

/// No tool accepts such a name, but commands can still meet it.
#[test]
fn a_secret_with_an_odd_name_is_hidden_too() {
    if !detect_isolation().mounts {
        return;
    }
    let f = Fixture::new();
    for name in ["k\n.env", "tab\t.env", "\u{1b}id_rsa"] {
        f.put(name, "SECRET-42\n");
    }
    f.put("odd\tname.txt", "plain\n");
    let grep = json!({ "command": "grep", "args": ["-rh", "-e", "SECRET", "-e", "plain", "."] });
    assert_eq!(
        approved(&f, "execute_command", grep, &Approval::none()).fields["stdout"],
        "plain\n"
    );
    let found = f.call("grep", json!({ "pattern": "SECRET" }));
    assert!(!json!(found).to_string().contains("SECRET-42"), "{found:?}");
}

/// The error about an edit that does not fit reveals something about the file, and with many
/// guesses all of it. So a person is asked before anybody learns it.
#[test]
fn no_edit_tries_out_what_a_secret_file_holds() {
    let f = Fixture::new();
    f.put(".env", "TOKEN=SECRET-live\n");
    let guess = |old: &str| json!({ "old_text": old, "new_text": "x" });
    let shown = |params: Value| f.tools().preview(&parse(&f, "edit_file", params));
    let sum = "0".repeat(64);
    for params in [
        json!({ "path": ".env", "edits": [guess("TOKEN=A")] }),
        json!({ "path": ".env", "edits": [guess("TOKEN=S"), guess("E")] }),
        json!({ "path": ".env", "edits": [guess("TOKEN=A"), { "old_text": "a", "new_text": "a" }] }),
        json!({ "path": ".env", "edits": [guess("TOKEN=S"), { "old_text": "a", "new_text": "a" }] }),
        json!({ "path": ".env", "edits": [guess("TOKEN=S")], "if_checksum": sum }),
    ] {
        let preview = shown(params.clone()).unwrap().unwrap();
        let Preview::Entry(there) = preview else { panic!("{params}: {preview:?}") };
        assert_eq!((there.text, there.size), (None, 18), "{params}");
    }
    assert!(shown(json!({ "path": "notes.txt", "edits": [guess("nothing")] })).is_err());
    assert!(shown(json!({ "path": "gone.env", "edits": [guess("nothing")] })).is_err());
}

/// A folder that is copied through a link is the folder that the link leads to.
#[test]
fn links_do_not_rename_what_is_secret_by_its_place() {
    let f = Fixture::new();
    f.put("sub/.config/gh/hosts.yml", "oauth: SECRET-gh\n");
    assert!(f.bash("ln -s sub/.config settings && ln -s src code"));
    let judged = |args: &[&str]| {
        f.judge("execute_command", json!({ "command": "cp", "args": args })).verdict
    };
    assert_eq!(judged(&["-r", "settings/.", "copy"]), Verdict::High);
    assert_eq!(judged(&["-r", "sub/.config/.", "copy"]), Verdict::High);
    assert_eq!(judged(&["-r", "code/.", "copy"]), Verdict::Medium);
}
