//! Tests of the built-in policy, through calls as they are asked for.

mod configured;

use super::*;
use serde_json::{Value, json};

fn judged(name: &str, params: Value) -> (Verdict, String) {
    let (_, judgement) = Policy::builtin().judge_request(name, params, &Roots::relative_only());
    (judgement.verdict, judgement.rule)
}

/// FS-17: rules for a conversation's own files.
#[test]
fn a_conversations_own_files_have_rules_of_their_own() {
    use Verdict::{Deny, High, Low, Medium};
    let judge = |policy: &Policy, name: &str, params: Value| {
        policy.judge_request(name, params, &Roots::relative_only()).1
    };
    let policy = Policy::builtin().for_own_files(Low);
    let ordinary = [
        "report.md",
        "Makefile",
        "package.json",
        "Dockerfile",
        "run.sh",
        "report.ipynb",
        "settings.ini",
        ".gitignore",
        "update",
        ".env",
        "credentials.csv",
        "src/build.rs",
    ];
    for path in ordinary {
        for (name, params) in [
            ("write_file", json!({"path": path, "content": ""})),
            ("edit_file", json!({"path": path, "edits": [{"old_text": "a", "new_text": "b"}]})),
            ("read_file", json!({"path": path})),
            ("get_file_info", json!({"path": path})),
            ("move_file", json!({"source": path, "destination": format!("old/{path}")})),
            ("delete_file", json!({"path": path})),
            ("create_directory", json!({"path": format!("{path}.d")})),
        ] {
            let judgement = judge(&policy, name, params.clone());
            assert_eq!(judgement.verdict, Low, "{name} {params}: {}", judgement.reason);
        }
        let resolved = WorkspacePath::parse(path, &Roots::relative_only()).expect("a path");
        for access in [Access::Read, Access::Write, Access::Remove] {
            assert_eq!(policy.judge_resolved(&resolved, access, false).verdict, Low, "{path}");
        }
    }
    for (name, params) in [
        ("write_file", json!({"path": "x.exe", "content": ""})),
        ("write_file", json!({"path": "lib/x.so", "content": ""})),
        ("write_file", json!({"path": "../x", "content": ""})),
        ("read_file", json!({"path": "/etc/passwd"})),
        ("write_file", json!({"path": ".git/hooks/x", "content": ""})),
        ("write_file", json!({"path": ".atelierignore", "content": ""})),
        ("delete_file", json!({"path": "."})),
        ("execute_command", json!({"command": "ls"})),
    ] {
        let judgement = judge(&policy, name, params.clone());
        assert_eq!(judgement.verdict, Deny, "{name} {params}: {}", judgement.reason);
    }
    // A server's owner and a project can want a question, or refuse.
    let write = |path: &str| json!({"path": path, "content": ""});
    let strict =
        Restrictions { at_least: [("write_file".to_owned(), Medium)].into(), ..Default::default() };
    let strict = policy.restricted(RestrictionSource::Project, strict);
    assert_eq!(judge(&strict, "write_file", write("report.md")).verdict, Medium);
    let careful = Policy::builtin().for_own_files(Medium);
    assert_eq!(judge(&careful, "delete_file", json!({"path": "a"})).verdict, Medium);
    assert_eq!(judge(&careful, "read_file", json!({"path": ".env"})).verdict, Low);
    let class: FileClass = serde_json::from_value(json!({
        "id": "payroll", "verdict": "high", "reason": "Pay is private.", "on": ["read", "write"],
        "names": ["payroll*"],
    }))
    .expect("a class");
    let extension = Extension { files: vec![class], ..Extension::default() };
    let extended = Policy::builtin().extended(&extension).expect("rules").for_own_files(Low);
    assert_eq!(judge(&extended, "read_file", json!({"path": "payroll.csv"})).verdict, High);
    assert_eq!(judge(&extended, "write_file", write("Makefile")).verdict, Low);
}

#[test]
fn the_table_of_the_specification() {
    use Verdict::{Deny, High, Low, Medium};
    for (name, params, verdict, rule) in [
        ("read_file", json!({"path": "notes.txt"}), Low, "read_file"),
        ("read_file", json!({"path": "a/.env.local"}), High, "read_file file.secret"),
        ("read_file", json!({"path": "CREDENTIALS"}), High, "read_file file.secret"),
        ("get_file_info", json!({"path": "id_rsa"}), High, "get_file_info file.secret"),
        ("grep", json!({"pattern": "x", "path": ".npmrc"}), High, "grep file.secret"),
        ("grep", json!({"pattern": "x", "glob": "**/.env*"}), High, "grep file.secret"),
        ("list_directory", json!({"path": "src"}), Low, "list_directory"),
        ("list_directory", json!({"path": ".ssh"}), High, "list_directory file.secret"),
        ("search_files", json!({"pattern": "**/*.rs"}), Low, "search_files"),
        ("write_file", json!({"path": "src/main.rs", "content": ""}), Medium, "write_file"),
        ("write_file", json!({"path": "deploy.sh", "content": ""}), High, "write_file file.script"),
        ("write_file", json!({"path": "Makefile", "content": ""}), High, "write_file file.build"),
        (
            "write_file",
            json!({"path": ".github/workflows/x.yml", "content": ""}),
            High,
            "write_file file.ci",
        ),
        ("write_file", json!({"path": ".git/config", "content": ""}), Deny, "write_file file.git"),
        (
            "write_file",
            json!({"path": "x.EXE ", "content": ""}),
            Deny,
            "write_file file.executable",
        ),
        (
            "write_file",
            json!({"path": "x.exe\u{3000}", "content": ""}),
            Deny,
            "write_file file.executable",
        ),
        (
            "write_file",
            json!({"path": "x.ｅxe", "content": ""}),
            Deny,
            "write_file file.executable",
        ),
        (
            "write_file",
            json!({"path": r"src\.git\config", "content": ""}),
            Deny,
            "write_file file.git",
        ),
        ("write_file", json!({"path": r"lib\BUILD", "content": ""}), High, "write_file file.build"),
        ("write_file", json!({"path": ".env", "content": ""}), High, "write_file file.secret"),
        // Windows drops trailing dots and spaces, but not if the name has nothing else.
        ("write_file", json!({"path": "a/. .", "content": ""}), High, "write_file file.dotfile"),
        (
            "edit_file",
            json!({"path": "a.dll", "old_text": "a", "new_text": ""}),
            Deny,
            "edit_file file.executable",
        ),
        ("create_directory", json!({"path": "src/x"}), Medium, "create_directory"),
        ("create_directory", json!({"path": ".git/hooks"}), Deny, "create_directory file.git"),
        ("move_file", json!({"source": "a/b", "destination": "a/c"}), Medium, "move_file"),
        (
            "move_file",
            json!({"source": "a/b", "destination": "a/c.so"}),
            Deny,
            "move_file file.executable",
        ),
        ("move_file", json!({"source": "src/", "destination": "lib"}), Deny, "move_file top-level"),
        ("move_file", json!({"source": ".", "destination": "lib"}), Deny, "move_file top-level"),
        ("move_file", json!({"source": ".git/x", "destination": "x"}), Deny, "move_file file.git"),
        // A file that is recognised by its path is not recognised elsewhere.
        (
            "move_file",
            json!({"source": "a/.config", "destination": "b"}),
            High,
            "move_file file.secret",
        ),
        ("move_file", json!({"source": "a/.config/x", "destination": "b"}), Medium, "move_file"),
        ("delete_file", json!({"path": "a/b"}), High, "delete_file"),
        ("delete_file", json!({"path": "src/."}), Deny, "delete_file top-level"),
        ("delete_file", json!({"path": "a/.."}), Deny, "delete_file top-level"),
        ("execute_command", json!({"command": "ls"}), Low, "ls"),
        (
            "execute_command",
            json!({"command": "git", "args": ["push", "-f"]}),
            High,
            "git.push --force",
        ),
        (
            "execute_command",
            json!({"command": "rm", "args": ["-rf", "/"]}),
            Deny,
            "command.refused",
        ),
        // A finding that is not stricter than the command itself does not become the reason.
        ("execute_command", json!({"command": "touch", "args": ["x"]}), Medium, "touch"),
        // A pattern is not a path, unless it may be the value of an unlisted option.
        ("execute_command", json!({"command": "grep", "args": ["../x", "y"]}), Low, "grep"),
        (
            "execute_command",
            json!({"command": "grep", "args": ["--frob", "../x", "y"]}),
            Deny,
            "grep path",
        ),
    ] {
        assert_eq!(judged(name, params.clone()), (verdict, rule.to_owned()), "{name} {params}");
    }
}

#[test]
fn relative_arguments_start_where_the_command_does() {
    let up = |cwd: &str| {
        judged("execute_command", json!({"command": "cat", "args": ["../notes.txt"], "cwd": cwd})).0
    };
    assert_eq!((up("src"), up("."), up("src/..")), (Verdict::Low, Verdict::Deny, Verdict::Deny));
}

#[test]
fn commands_say_what_they_need() {
    let judge = |args: &[&str], timeout: Option<u32>| {
        let params = json!({"command": args[0], "args": args[1..], "timeout": timeout});
        Policy::builtin().judge_request("execute_command", params, &Roots::relative_only()).1
    };
    let install = judge(&["npm", "install", "express"], None);
    assert_eq!(
        (install.verdict, install.network, install.timeout),
        (Verdict::Medium, true, Some(300))
    );
    let list = judge(&["ls"], None);
    assert_eq!((list.network, list.timeout), (false, Some(30)));
    assert_eq!(judge(&["ls"], Some(5)).timeout, Some(5));
    let forced = judge(&["git", "push", "--force"], None);
    assert_eq!((forced.verdict, forced.network), (Verdict::High, true));
    // Of several findings that are equally strict, the first one is named.
    assert_eq!(
        judge(&["cat", ".env", "id_rsa"], None).reason,
        ".env: The file usually holds secrets."
    );
    let refused = judge(&["npm", "config", "list"], None);
    assert_eq!(
        (refused.code, &*refused.rule),
        (Some(FailureCode::CommandNotAllowed), "npm.config")
    );
    assert!(
        refused.reason.starts_with("Command not allowed: npm's settings"),
        "{}",
        refused.reason
    );
    let line = judge(&["git status | cat"], None);
    assert!(line.verdict == Verdict::Deny && line.reason.contains("`shell`"), "{}", line.reason);
    for (line, says) in [
        (&["sort", "-k"][..], "The option --key lacks its value."),
        (&["git", "-C"], "The option -C lacks its value."),
        (&["ls", "--frob"], "No rule knows the option \"frob\"."),
        (
            &["git", "fetch", "file:///x"],
            "Command not allowed: The address reaches files outside the workspace.",
        ),
        (&["git", "log", "--no-pager"], "No rule knows the option \"no-pager\"."),
        (
            &["python", "-m", "compileall", "src"],
            "It compiles the project's Python files, which shows syntax errors.",
        ),
        (
            &["python"],
            "python runs a script of the workspace or, if none is named, its standard input.",
        ),
        (&["git", "log", "--", "k\n.env"], "k\\n.env: The file usually holds secrets."),
        (
            &["git", "show", "HEAD:tab\tid_rsa"],
            "HEAD:tab\\tid_rsa: The file usually holds secrets.",
        ),
        (&["python", "s.py", "x\r.npmrc"], "x\\r.npmrc: The file usually holds secrets."),
        (
            &["cp", "-r", ".config/.", "cfg"],
            ".config/. may hold files that are asked about because of where they lie.",
        ),
    ] {
        assert_eq!(judge(line, None).reason, says, "{line:?}");
    }
    let denied = judge(&["cp", "a", "x.exe"], None);
    assert_eq!(denied.code, Some(FailureCode::WriteNotAllowed));
    let denied = judge(&["cat", "../x"], None);
    assert_eq!(denied.code, Some(FailureCode::PathOutsideWorkspace));
    assert_eq!(denied.reason, "Access denied. Path must be within /workspace");
}

#[test]
fn an_unknown_sub_command_is_what_its_command_says() {
    let rules: Extension = toml::from_str(
        r#"
        [[rules.command]]
        name = "x"
        verdict = "low"
        says = "x"
        otherwise = "medium"
        [[rules.command]]
        name = "x y"
        verdict = "low"
        says = "x"
        "#,
    )
    .unwrap();
    let policy = Policy::builtin().extended(&rules).unwrap();
    for (args, verdict, rule) in [
        (&["y"][..], Verdict::Low, "x.y"),
        (&["y", "a"], Verdict::High, "x.y operand.unlisted a"),
        (&["z", "a"], Verdict::Medium, "x \"z\""),
        (&["z", "../a"], Verdict::Deny, "x path"),
    ] {
        let params = json!({"command": "x", "args": args});
        let (_, judged) = policy.judge_request("execute_command", params, &Roots::relative_only());
        assert_eq!((judged.verdict, &*judged.rule), (verdict, rule), "{args:?}");
    }
}

#[test]
fn paths_are_listed_for_the_second_judgement() {
    let policy = Policy::builtin();
    let roots = Roots::announced("/ws");
    let paths = |command: &str, args: &[&str]| -> Vec<(String, String, Access)> {
        let params = json!({"command": command, "args": args, "cwd": "src"});
        let call = ToolCall::parse("execute_command", params, &roots, policy.limits()).unwrap();
        policy
            .paths(&call, &roots)
            .into_iter()
            .map(|p| (p.raw, p.path.to_string(), p.access))
            .collect()
    };
    let own = |raw: &str, path: &str, access| (raw.to_owned(), path.to_owned(), access);
    assert_eq!(
        paths("grep", &["-f", "../p.txt", "lnk/", "/ws/x"]),
        [
            own("../p.txt", "p.txt", Access::Read),
            own("lnk/", "src/lnk", Access::Read),
            own("/ws/x", "x", Access::Read),
            own(".", "src", Access::Read),
        ]
    );
    assert_eq!(
        paths("mv", &["a", "b"]),
        [
            own("a", "src/a", Access::Read),
            own("a", "src/a", Access::Remove),
            own("b", "src/b", Access::Write),
            own("b/a", "src/b/a", Access::Write),
            own(".", "src", Access::Read),
        ]
    );
    // Options, words that a rule lists, and times are not paths.
    assert_eq!(paths("python", &["-m", "build", "--wheel"]), [own(".", "src", Access::Read)]);
    assert_eq!(
        paths("python", &["s.py", "--port"]),
        [own("s.py", "src/s.py", Access::Read), own(".", "src", Access::Read)]
    );
    assert_eq!(
        paths("tar", &["--mtime=yesterday", "-cf", "x.tar"]),
        [own("x.tar", "src/x.tar", Access::Output), own(".", "src", Access::Read)]
    );
    // A relative path is listed twice: from the working directory, and from the directory that git
    // changes to. An absolute path is listed once.
    assert_eq!(
        paths("git", &["-C", "sub", "add", "x", "/ws/y"]),
        [
            own("sub", "src/sub", Access::Read),
            own("sub/x", "src/sub/x", Access::Read),
            own("x", "src/x", Access::Read),
            own("/ws/y", "y", Access::Read),
            own(".", "src", Access::Read),
        ]
    );
    let root_dir = WorkspacePath::parse("src", &roots).unwrap();
    assert_eq!(policy.judge_resolved(&root_dir, Access::Remove, true).verdict, Verdict::Deny);
    assert_eq!(policy.judge_resolved(&root_dir, Access::Remove, false).verdict, Verdict::Medium);
    for (name, access, verdict, code) in [
        ("x.exe", Access::Write, Verdict::Deny, Some(FailureCode::WriteNotAllowed)),
        (".env", Access::Read, Verdict::High, None),
    ] {
        let found =
            policy.judge_resolved(&WorkspacePath::parse(name, &roots).unwrap(), access, false);
        assert_eq!((found.verdict, found.code), (verdict, code), "{name}");
    }
}

/// The globs cover the files that are not read without a question, and no others.
#[test]
fn what_is_asked_about_before_it_is_read_is_listed() {
    let low: Extension = toml::from_str(
        r#"
        [[files]]
        id = "open"
        verdict = "low"
        on = ["read", "write"]
        reason = "Everybody may."
        names = ["open.txt"]
        "#,
    )
    .unwrap();
    let globs = Policy::builtin().extended(&low).unwrap().guarded_globs();
    for listed in ["**/.env*", "**/id_rsa", "**/.ssh/**"] {
        assert!(globs.iter().any(|glob| glob == listed), "{listed}");
    }
    for not in ["**/*.exe", "**/Makefile", "**/open.txt", "**/.git/**"] {
        assert!(!globs.iter().any(|glob| glob == not), "{not}");
    }
}

#[test]
fn limits_are_those_of_the_specification() {
    let limits = Limits::default();
    assert_eq!(
        (limits.read_bytes, limits.write_bytes, limits.output_bytes),
        (104_857_600, 104_857_600, 1_048_576)
    );
    assert_eq!((limits.timeout_default, limits.timeout_max), (30, 300));
    assert_eq!(
        (limits.arguments, limits.argument_bytes, limits.arguments_bytes),
        (4096, 65_536, 131_072)
    );
}

/// The rules that `local` marks: MEDIUM commands of git that stay in the working tree and the local
/// history.
#[test]
fn rules_marked_as_local_are_medium_git_commands_without_network() {
    fn marked<'r>(rule: &'r command::table::Rule, all: &mut Vec<&'r command::table::Rule>) {
        all.extend(rule.local.then_some(rule));
        rule.children.values().for_each(|child| marked(child, all));
    }
    let mut all = Vec::new();
    Policy::builtin().commands.values().for_each(|rule| marked(rule, &mut all));
    for rule in &all {
        assert!(rule.id.starts_with("git."), "{}", rule.id);
        assert!(!rule.network && rule.verdict <= Verdict::Medium, "{}", rule.id);
    }
    let ids: Vec<&str> = all.iter().map(|rule| &*rule.id).collect();
    assert!(
        ["git.commit", "git.add", "git.stash.push", "git.merge"].iter().all(|id| ids.contains(id))
    );
    for never in ["git.push", "git.remote", "git.config", "git.submodule", "git.init", "git.clone"]
    {
        assert!(!ids.iter().any(|id| id.starts_with(never)), "{never}");
    }
}
