//! Tests of rules that servers add, and of restrictions.

use super::*;

#[test]
fn a_server_adds_and_a_project_only_tightens() {
    let extension: Extension = toml::from_str(
        r#"
        [[rules.command]]
        name = "curl"
        verdict = "high"
        says = "curl loads from an address."
        operands = "data*"
        network = true
        flags = "-s,--silent"
        examples = "high: curl -s https://example.invalid"
        [[files]]
        id = "ledger"
        verdict = "deny"
        on = ["read", "write"]
        reason = "The ledger is the accountant's."
        names = ["ledger.*"]
        "#,
    )
    .unwrap();
    let server = Policy::builtin().extended(&extension).unwrap();
    let roots = Roots::relative_only();
    let run = |policy: &Policy, line: &[&str]| {
        policy
            .judge_request(
                "execute_command",
                json!({"command": line[0], "args": line[1..]}),
                &roots,
            )
            .1
            .verdict
    };
    assert_eq!(run(Policy::builtin(), &["curl", "-s", "x"]), Verdict::Deny);
    assert_eq!(run(&server, &["curl", "-s", "x"]), Verdict::High);
    assert_eq!(run(&server, &["cat", "ledger.csv"]), Verdict::Deny);
    let ledger = server.judge_request("read_file", json!({"path": "ledger.csv"}), &roots).1;
    assert_eq!((ledger.verdict, ledger.code), (Verdict::Deny, Some(FailureCode::PathNotAllowed)));
    assert_eq!(run(&server, &["ls"]), Verdict::Low);

    let narrowing: Restrictions = toml::from_str(
        r#"
        deny = ["git push", "delete_file"]
        no_network = true
        at_least = { "ls" = "medium", "make" = "low", "curl" = "low", "git" = "medium" }
        "#,
    )
    .unwrap();
    let project = server.restricted(RestrictionSource::Project, narrowing);
    assert_eq!(run(&project, &["ls"]), Verdict::Medium);
    assert_eq!(run(&project, &["make"]), Verdict::High, "lowering has no effect");
    assert_eq!(run(&project, &["curl", "x"]), Verdict::Deny, "it needs the network");
    assert_eq!(run(&project, &["git", "push"]), Verdict::Deny);
    assert_eq!(run(&project, &["git", "status"]), Verdict::Medium);
    assert_eq!(run(&project, &["rm"]), Verdict::Deny);
    let delete = project.judge_request("delete_file", json!({"path": "a/b"}), &roots).1;
    assert_eq!(
        (delete.verdict, delete.code),
        (Verdict::Deny, Some(FailureCode::CommandNotAllowed))
    );
}

#[test]
fn commands_that_can_be_allowed_are_as_their_examples_say() {
    let allow = Extension { allow: vec!["curl".into(), "wget".into()], ..Extension::default() };
    let policy = Policy::builtin().extended(&allow).unwrap();
    assert!(policy.check_examples(&optional().unwrap(), &[]).unwrap() > 20);
    let unknown = Extension { allow: vec!["ssh".into()], ..Extension::default() };
    let error = Policy::builtin().extended(&unknown).unwrap_err().to_string();
    assert_eq!(
        error,
        "allow: \"ssh\" is none of the commands that can be allowed by name: curl, wget"
    );
}

/// TL-06.1: a server makes the rules of a machine stricter, and loosens only what the machine's
/// owner accepts.
#[test]
fn a_machine_accepts_what_its_owner_names() {
    let extension: Extension = toml::from_str(
        r#"
        allow = ["curl"]
        [[rules.command]]
        name = "bash"
        verdict = "low"
        says = "x"
        operands = "data*"
        [[rules.command]]
        name = "git push"
        verdict = "low"
        says = "x"
        operands = "data*"
        [[files]]
        id = "ledger"
        verdict = "deny"
        on = ["read", "write"]
        reason = "The ledger is the accountant's."
        names = ["ledger.*"]
        [limits]
        read_bytes = 1000000000000
        output_bytes = 1000
        [narrow]
        deny = ["npm"]
        "#,
    )
    .unwrap();
    assert_eq!(extension.commands(), ["bash", "curl", "git"].into());
    // The rules are unchanged after they are sent.
    let sent: Extension =
        serde_json::from_value(serde_json::to_value(&extension).unwrap()).unwrap();
    assert_eq!(sent, extension);
    let own = Policy::builtin().limits();
    for (accept, verdicts) in [
        (&[][..], [Verdict::Deny, Verdict::Deny, Verdict::Medium]),
        (&["curl".to_owned()][..], [Verdict::High, Verdict::Deny, Verdict::Medium]),
        (&["bash".to_owned(), "git".to_owned()][..], [Verdict::Deny, Verdict::Low, Verdict::Low]),
    ] {
        let policy = Policy::builtin().extended(&extension.accepted(accept, own)).unwrap();
        let roots = Roots::relative_only();
        let run = |line: &[&str]| {
            let params = json!({"command": line[0], "args": line[1..]});
            policy.judge_request("execute_command", params, &roots).1
        };
        let found = [&["curl", "https://example.invalid"][..], &["bash", "x"], &["git", "push"]];
        assert_eq!(found.map(|line| run(line).verdict), verdicts, "{accept:?}");
        assert_eq!(run(&["cat", "ledger.csv"]).verdict, Verdict::Deny);
        assert_eq!(
            run(&["npm", "install"]).reason,
            "Command not allowed: This server does not allow npm."
        );
        assert_eq!(
            (policy.limits().read_bytes, policy.limits().output_bytes),
            (own.read_bytes, 1000)
        );
    }
}

/// A server accepts the rules that the documentation shows.
#[test]
fn the_example_in_the_manual_works() {
    #[derive(serde::Deserialize)]
    struct File {
        policy: Extension,
    }
    let manual = include_str!("../../../../../docs/gate.md");
    let text =
        manual.split("`atelier.toml`:\n\n```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let file: File = toml::from_str(text).unwrap();
    let policy = Policy::builtin().extended(&file.policy).unwrap();
    let roots = Roots::relative_only();
    let run = |line: &[&str]| {
        let params = json!({"command": line[0], "args": line[1..]});
        policy.judge_request("execute_command", params, &roots).1.verdict
    };
    assert_eq!(run(&["terraform", "plan"]), Verdict::High);
    assert_eq!(run(&["terraform", "apply"]), Verdict::Deny);
    assert_eq!(run(&["npm", "publish"]), Verdict::Deny);
    assert_eq!(run(&["cat", "ledger.csv"]), Verdict::Deny);
}

#[test]
fn faulty_rules_say_where() {
    let extended = |text: &str| {
        Policy::builtin().extended(&toml::from_str(text).unwrap()).unwrap_err().to_string()
    };
    let rule =
        |rest: &str| format!("[[rules.command]]\nname = 'x'\nverdict = 'low'\nsays = 'x'\n{rest}");
    assert!(extended(&rule("options = '-o =frob'")).contains("no kind of argument"));
    assert!(extended(&rule("options = '-o !deny'")).contains("needs its reason"));
    for name in ["o", "ox", "-", "-o,x", "-o,-"] {
        assert!(
            extended(&rule(&format!("options = '{name}'"))).contains("begins with a dash"),
            "{name}"
        );
    }
    let lines = "options = \"\"\"\n# What it is for.\n\n-o =data\n\"\"\"\nexamples = 'low: x -o y'";
    Policy::builtin().extended(&toml::from_str(&rule(lines)).unwrap()).unwrap();
    assert!(extended(&rule("examples = 'deny: x'")).contains("is LOW by x"));
    assert!(extended(&rule("include = ['nowhere']")).contains("no group"));
    assert!(extended(&rule("").replace("'x'\nverdict", "'x y'\nverdict")).contains("not there"));
}

#[test]
fn a_wish_has_to_concern_something() {
    let policy = Policy::builtin();
    let deny = |key: &str| Restrictions { deny: vec![key.to_owned()], ..Restrictions::default() };
    for key in ["touch", "git push", "git", "delete_file", "execute_command", "curl", "bash", "npm"]
    {
        policy.check_restrictions(&deny(key)).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    for key in ["toch", "git  push", "git psh", "gitxpush", "git pus ", "", "delete-file"] {
        assert_eq!(
            policy.check_restrictions(&deny(key)),
            Err(RuleError::Restriction(key.to_owned())),
            "{key}"
        );
    }
    let extension = Extension { narrow: deny("toch"), ..Extension::default() };
    assert_eq!(policy.extended(&extension).unwrap_err(), RuleError::Restriction("toch".into()));
}
