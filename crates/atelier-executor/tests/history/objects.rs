//! Objects, the index and other data of a repository: only git reads them.

use super::*;

/// Files of a repository that hold what was deleted, or say what there is.
fn sealed(f: &Fixture, repository: &str) -> Vec<String> {
    let list = format!("find {repository}/objects {repository}/logs {repository}/index -type f");
    printed(f, &list).lines().map(str::to_owned).collect()
}

/// The demonstrated case: a deleted `.env` lies in an object that `cat` can print.
#[test]
fn only_git_reads_what_git_keeps() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash(
        "git clone -q --no-hardlinks . sub && git clone -q --bare . mirror.git && touch mirror.git/index &&
         mkdir mirror.git/logs && touch mirror.git/logs/HEAD && git -C sub repack -adq &&
         git init -q --separate-git-dir store moved && cp .git/index .git/logs store -r && ln -s .git/objects o &&
         git worktree add -q wt HEAD"
    ));
    for repository in [".git", "sub/.git", "mirror.git", "store", ".git/worktrees/wt"] {
        let files = match repository {
            ".git/worktrees/wt" => vec![format!("{repository}/index")],
            "store" => vec!["store/index".to_owned(), "store/logs/HEAD".to_owned()],
            _ => sealed(&f, repository),
        };
        assert!(!files.is_empty(), "{repository}");
        for file in files {
            for (tool, params) in [
                ("execute_command", json!({ "command": "cat", "args": ["-v", file] })),
                ("execute_command", json!({ "command": "file", "args": [file] })),
                ("execute_command", json!({ "command": "stat", "args": [file] })),
                ("execute_command", json!({ "command": "tar", "args": ["-cf", "x.tar", file] })),
                ("execute_command", json!({ "command": "cp", "args": [file, "copy"] })),
                (
                    "execute_command",
                    json!({ "command": "git", "args": ["diff", "--no-index", "a.txt", file] }),
                ),
                ("read_file", json!({ "path": file })),
                ("get_file_info", json!({ "path": file })),
            ] {
                assert_eq!(f.judge(tool, params.clone()).verdict, Verdict::Deny, "{tool} {params}");
            }
        }
        let objects = format!("{repository}/objects");
        for (tool, params) in [
            ("execute_command", json!({ "command": "ls", "args": [objects] })),
            ("execute_command", json!({ "command": "ls", "args": ["src"], "cwd": objects })),
            ("list_directory", json!({ "path": objects })),
            ("search_files", json!({ "path": objects, "pattern": "**/*" })),
        ] {
            if repository != ".git/worktrees/wt" {
                assert_eq!(f.judge(tool, params.clone()).verdict, Verdict::Deny, "{tool} {params}");
            }
        }
    }
    assert_eq!(
        f.judge("execute_command", json!({ "command": "ls", "args": ["o"] })).verdict,
        Verdict::Deny
    );
    // Other files in the repository stay readable.
    for path in [".git/HEAD", "mirror.git/HEAD", ".git/refs/heads/master", ".git/info/exclude"] {
        let verdict = f.judge("read_file", json!({ "path": path })).verdict;
        assert_eq!(verdict, Verdict::Low, "{path}");
    }
}

/// A command must not read below a folder what it must not read by name.
#[test]
fn nothing_lists_or_searches_what_git_keeps() {
    let f = Fixture::new();
    with_secrets(&f);
    assert!(f.bash(
        "git clone -q --bare . mirror.git && mkdir deep && git clone -q --no-hardlinks . deep/sub"
    ));
    let objects: Vec<String> = [".git", "mirror.git", "deep/sub/.git"]
        .iter()
        .flat_map(|repository| sealed_names(&f, repository))
        .collect();
    assert!(objects.len() > 10, "{objects:?}");
    let mut calls: Vec<(&str, Value)> = vec![
        ("list_directory", json!({ "path": ".git", "recursive": true, "pattern": "**/*" })),
        ("list_directory", json!({ "path": "mirror.git", "recursive": true })),
        ("search_files", json!({ "pattern": "**/.git/**" })),
        ("search_files", json!({ "path": "mirror.git", "pattern": "**/*" })),
        ("grep", json!({ "pattern": ".", "path": "mirror.git" })),
    ];
    if detect_isolation().mounts {
        for args in [
            &["ls", "-R", ".git", "mirror.git", "deep"][..],
            &["find", ".", "-type", "f"],
            &["grep", "-rc", ".", "."],
            &["grep", "-r", "-a", ".", ".git", "mirror.git"],
            &["diff", "-r", ".git", "mirror.git"],
            &["git", "diff", "--no-index", ".git", "mirror.git"],
            &["git", "-C", "src", "diff", "--no-index", "."],
        ] {
            calls.push(("execute_command", json!({ "command": args[0], "args": args[1..] })));
        }
    }
    for (tool, params) in calls {
        let result = approved(&f, tool, params.clone(), &Approval::none());
        let reported = json!(result).to_string();
        assert!(!reported.contains("approval_required"), "{tool} {params}: {reported}");
        for name in &objects {
            assert!(!reported.contains(name), "{tool} {params} tells {name}: {reported}");
        }
    }
    // Outside of every repository git reads files like any other program.
    let plain = Fixture::new();
    plain.put("one/x", "1\n");
    assert!(plain.bash(
        "git init -q two && cd two && echo SECRET-42 > .env && git add -A && git commit -qm x"
    ));
    if detect_isolation().mounts {
        let reported = json!(unasked(&plain, "git", &["diff", "one", "two"])).to_string();
        assert!(!reported.contains("objects/") && !reported.contains("SECRET"), "{reported}");
    }
}

/// The ids of all files in a repository. References name commits, and those may be known.
fn sealed_names(f: &Fixture, repository: &str) -> Vec<String> {
    let check = "--batch-all-objects --batch-check='%(objecttype) %(objectname)'";
    let list = format!("git --git-dir={repository} cat-file {check} | sed -n 's/^blob ..//p'");
    printed(f, &list).lines().map(str::to_owned).collect()
}

/// An approved command reads neither objects nor the index, unless the history holds nothing to
/// protect. In that case, builds that call git work.
#[test]
fn approved_commands_get_at_objects_only_where_nothing_is_protected() {
    if !detect_isolation().mounts {
        return;
    }
    let read = "import glob\nprint(sum(open(p, 'rb').read(1) != b'' for p in glob.glob('.git/objects/**/*', recursive=True) if len(p) > 40))\n";
    let run = |f: &Fixture| {
        f.put("read.py", read);
        let result =
            f.call("execute_command", json!({ "command": "python3", "args": ["read.py"] }));
        assert!(result.success(), "{result:?}");
        (
            result.fields["stdout"].as_str().unwrap().trim() != "0",
            result.fields.get("note").is_some(),
        )
    };
    let plain = Fixture::new();
    assert!(plain.bash("git init -q . && git add -A && git commit -qm one"));
    assert_eq!(run(&plain), (true, false));
    let secret = Fixture::new();
    with_secrets(&secret);
    assert_eq!(run(&secret), (false, true));
}
