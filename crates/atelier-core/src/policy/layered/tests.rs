use super::*;
use crate::{path::Roots, policy::RestrictionSource};
use serde_json::{Value, json};

fn judge(policy: &Policy, tool: &str, params: Value) -> Judgement {
    policy.judge_request(tool, params, &Roots::relative_only()).1
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text, &Roots::relative_only()).unwrap()
}

fn change(text: &str, change: ChangeKind) -> FileChange {
    FileChange::new(path(text), change)
}

fn restricted(restrictions: Value) -> Policy {
    let restrictions = serde_json::from_value(restrictions).unwrap();
    Policy::builtin().restricted(RestrictionSource::Project, restrictions)
}

#[test]
fn scripts_are_rated_by_their_ways_out() {
    let policy = Policy::builtin();
    for (params, verdict, rule) in [
        (json!({"script": "rm -rf / | sh"}), Verdict::Low, "shell"),
        (json!({"script": "x", "network": []}), Verdict::Low, "shell"),
        (json!({"script": "x", "network": ["PyPI.org."]}), Verdict::Medium, "shell network"),
        (
            json!({"script": "x", "network": ["169.254.169.254", "pypi.org"]}),
            Verdict::High,
            "shell network.local",
        ),
        (json!({"script": "x", "network": ["metadata"]}), Verdict::High, "shell network.local"),
        (json!({"script": "x", "network": ["::1"]}), Verdict::High, "shell network.local"),
        (json!({"script": "x", "network": ["https://pypi.org"]}), Verdict::Deny, "invalid_params"),
        (json!({"script": "x", "network": ["127.1"]}), Verdict::Deny, "invalid_params"),
        (json!({"script": "x", "timeout": 1801}), Verdict::Deny, "timeout_exceeded"),
        (json!({"script": "a\0b"}), Verdict::Deny, "invalid_params"),
        (json!({}), Verdict::Deny, "invalid_params"),
    ] {
        let judged = judge(policy, "shell", params.clone());
        assert_eq!((judged.verdict, judged.rule.as_str()), (verdict, rule), "{params}");
    }
    let judged = judge(policy, "shell", json!({"script": "x", "network": ["b.org", "A.org"]}));
    let class = CallClass {
        destinations: ["a.org".to_owned(), "b.org".to_owned()].into(),
        ..CallClass::of("shell network")
    };
    assert_eq!((judged.class, judged.network, judged.timeout), (class, true, Some(120)));
}

#[test]
fn the_strictest_mode_holds() {
    let verdict = |policy: &Policy| judge(policy, "shell", json!({"script": "x"})).verdict;
    let ask = restricted(json!({"shell": "ask"}));
    assert_eq!(verdict(&ask), Verdict::Medium);
    let free = serde_json::from_value(json!({"shell": "free"})).unwrap();
    assert_eq!(verdict(&ask.restricted(RestrictionSource::Machine, free)), Verdict::Medium);
    let off = serde_json::from_value(json!({"shell": "off"})).unwrap();
    let off = ask.restricted(RestrictionSource::Machine, off);
    let denied = judge(&off, "shell", json!({"script": "x"}));
    let words = "Command not allowed: the shell is off on this machine.";
    assert_eq!((denied.verdict, denied.reason.as_str()), (Verdict::Deny, words));
    assert!(serde_json::from_value::<crate::policy::Restrictions>(json!({"shell": "on"})).is_err());
    // Only where there is a shell is it named.
    let command = json!({"command": "frobnicate"});
    let names_shell = |policy: &Policy| {
        judge(policy, "execute_command", command.clone()).reason.contains("`shell`")
    };
    assert!(names_shell(Policy::builtin()) && names_shell(&ask) && !names_shell(&off));
    let no_network = restricted(json!({"no_network": true}));
    assert_eq!(verdict(&no_network), Verdict::Low);
    let out = judge(&no_network, "shell", json!({"script": "x", "network": ["pypi.org"]}));
    assert_eq!(out.verdict, Verdict::Deny);
}

#[test]
fn the_isolation_of_the_machine_decides() {
    let full = Isolation {
        landlock: 5,
        mounts: true,
        network: NetworkIsolation::NamespaceAndSeccomp,
        processes: ProcessIsolation::PidNamespace,
        process_limit: None,
        user_namespace: true,
    };
    assert_eq!(ShellMode::of(&full), ShellMode::Free);
    for lacking in [
        Isolation { landlock: 0, ..full.clone() },
        Isolation { mounts: false, ..full.clone() },
        Isolation { network: NetworkIsolation::Seccomp, ..full.clone() },
        Isolation { processes: ProcessIsolation::Supervisor, ..full.clone() },
    ] {
        assert_eq!(ShellMode::of(&lacking), ShellMode::Ask, "{lacking}");
    }
    assert_eq!(ShellMode::of(&Isolation::none()), ShellMode::Off);
    let verdict = |isolation| judge_shell_isolation(isolation).map(|judged| judged.verdict);
    assert_eq!(verdict(Some(&full)), None);
    assert_eq!(verdict(None), Some(Verdict::Medium));
    assert_eq!(verdict(Some(&Isolation::none())), Some(Verdict::Deny));
}

#[test]
fn landings_are_as_strict_as_their_strictest_file() {
    use ChangeKind::{Added, Changed, Deleted, Mode, Renamed};
    let judged = |changes: &[FileChange]| {
        let judged = Policy::builtin().judge_changes("land", changes);
        (judged.verdict, judged.rule)
    };
    let expect = |verdict, rule: &str| (verdict, rule.to_owned());
    assert_eq!(judged(&[]), expect(Verdict::Medium, "land"));
    assert_eq!(judged(&[change("src/a.rs", Changed)]), expect(Verdict::Medium, "land"));
    assert_eq!(judged(&[change("src/a.rs", Deleted)]), expect(Verdict::High, "land deletes"));
    assert_eq!(judged(&[change("x.sh", Added)]), expect(Verdict::High, "land file.script"));
    assert_eq!(
        judged(&[change("src/a.rs", Changed), change(".env", Mode)]),
        expect(Verdict::High, "land file.secret")
    );
    assert_eq!(
        judged(&[change("a", Changed), change("lib/x.so", Added)]),
        expect(Verdict::Deny, "land file.executable")
    );
    let whole = FileChange { is_directory: true, ..change("src", Deleted) };
    assert_eq!(judged(&[whole]).0, Verdict::Deny);
    let moved = FileChange { from: Some(path(".env")), ..change("a.txt", Renamed) };
    assert_eq!(judged(&[moved]), expect(Verdict::High, "land file.secret"));
    let started = FileChange { becomes_executable: true, ..change("run", Added) };
    assert_eq!(judged(&[started]), expect(Verdict::High, "land executable"));
}

#[test]
fn a_permission_holds_for_the_folders_that_it_was_given_for() {
    let class = |paths: &[&str]| {
        let changes: Vec<_> = paths.iter().map(|path| change(path, ChangeKind::Changed)).collect();
        Policy::builtin().judge_changes("land", &changes).class
    };
    let given = class(&["src/a.rs", "docs/x.md"]);
    assert!(given.covers(&class(&["src/deep/b.rs"])));
    assert!(!given.covers(&class(&["src/a.rs", "tests/x.rs"])));
    assert!(!given.covers(&class(&["README.md"])));
    assert_eq!(given.in_words(), "every “land” on files in “docs/**” and “src/**”");
}
