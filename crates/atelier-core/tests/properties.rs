//! Properties of every text: nothing panics, no path leaves the workspace, and no further argument
//! makes a call less strict.

use atelier_core::{
    digest::CallDigest,
    path::{MAX_DEPTH, MAX_NAME_BYTES, Roots, WorkspacePath},
    policy::{
        Policy,
        call::{Command, ToolCall},
        verdict::Verdict,
    },
};
use proptest::prelude::*;
use std::path::{Component, Path};

fn roots() -> Roots {
    Roots::announced("/base/ws").also("/workspace")
}

/// Paths as attackers write them: with `..`, absolute, encoded, and with look-alike characters.
fn path_text() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        4 => "[a-zA-Z0-9_. ]{1,8}",
        3 => Just("..".to_owned()),
        1 => Just(".".to_owned()),
        1 => Just(String::new()),
        1 => prop::sample::select(vec![
            "%2e%2e", "..%2f", "\u{2025}", "\u{ff0e}.", ".\u{200d}.", "..\\", "~", "$HOME", "base", "ws", "workspace",
            ".git", "C:", "\u{202e}x", "a\0b", "notes.txt", "файл", "👨‍👩‍👧",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ];
    (prop::collection::vec(name, 0..8), any::<bool>(), any::<bool>()).prop_map(
        |(names, rooted, slash)| {
            format!(
                "{}{}{}",
                if rooted { "/" } else { "" },
                names.join("/"),
                if slash { "/" } else { "" }
            )
        },
    )
}

const COMMANDS: [&str; 40] = [
    "grep", "find", "ls", "cat", "head", "tail", "wc", "echo", "date", "pwd", "whoami", "file",
    "stat", "sort", "uniq", "cut", "diff", "uname", "git", "npm", "pnpm", "yarn", "pip", "cargo",
    "go", "python", "node", "sed", "awk", "patch", "mkdir", "cp", "mv", "touch", "gcc", "make",
    "cmake", "tar", "zip", "unzip",
];

fn argument() -> impl Strategy<Value = String> {
    prop_oneof![
        2 => path_text().prop_filter("no NUL in arguments", |text| !text.contains('\0')),
        2 => "-[a-zA-Z0-9]{1,4}",
        2 => "--[a-z-]{0,12}(=[a-z./]{0,8})?",
        2 => prop::sample::select(vec![
            "status", "log", "commit", "push", "install", "run", "build", "-", "--", "-n", "-e", "-m", "x", "src", "s/a/b/",
            "{print $1}", "xf", "cfz", "-o", "-f", "HEAD~1", "main..HEAD", "A=b", "config", "stash", "remote", "add", "-c",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,12}",
    ]
}

fn command() -> impl Strategy<Value = Command> {
    (prop::sample::select(COMMANDS.to_vec()), prop::collection::vec(argument(), 0..7)).prop_map(
        |(command, args)| Command {
            command: command.to_owned(),
            args,
            timeout: None,
            cwd: WorkspacePath::root(),
        },
    )
}

fn verdict(command: &Command) -> Verdict {
    Policy::builtin().judge(&ToolCall::from(command.clone()), &roots()).verdict
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_parsed_path_is_inside_and_in_its_shortest_form(raw in path_text()) {
        let Ok(path) = WorkspacePath::parse(&raw, &roots()) else { return Ok(()) };
        let text = path.as_str();
        if text != "." {
            for part in Path::new(text).components() {
                prop_assert!(matches!(part, Component::Normal(_)), "{raw:?} gave {text:?}");
            }
            prop_assert_eq!(path.components().collect::<Vec<_>>().join("/"), text);
        }
        prop_assert!(path.depth() <= MAX_DEPTH && path.components().all(|name| name.len() <= MAX_NAME_BYTES));
        prop_assert!(!text.chars().any(char::is_control));
        // Parsing the result again changes nothing, whatever the roots are.
        let again = WorkspacePath::parse(text, &Roots::relative_only());
        prop_assert_eq!(again.map(|p| p.to_string()), Ok(text.to_owned()));
    }

    #[test]
    fn leaving_is_never_parsed(names in prop::collection::vec("[a-z]{1,4}", 0..5), more in path_text()) {
        // A path that goes up more often than down is outside, whatever follows.
        let climb = format!("{}{}", names.iter().map(|n| format!("{n}/")).collect::<String>(), "../".repeat(names.len() + 1));
        let raw = format!("{climb}{more}");
        prop_assert!(WorkspacePath::parse(&raw, &roots()).is_err(), "{raw:?}");
    }

    #[test]
    fn a_path_below_a_directory_never_leaves_the_root(base in path_text(), below in path_text()) {
        let Ok(base) = WorkspacePath::parse(&base, &roots()) else { return Ok(()) };
        if let Ok(path) = base.join(&below) {
            prop_assert!(WorkspacePath::parse(path.as_str(), &Roots::relative_only()).is_ok());
        }
    }

    #[test]
    fn judging_never_panics_and_always_explains(command in command()) {
        let policy = Policy::builtin();
        let call = ToolCall::from(command);
        let judged = policy.judge(&call, &roots());
        prop_assert!(!judged.rule.is_empty() && !judged.reason.is_empty());
        prop_assert_eq!(judged.code.is_some(), judged.verdict == Verdict::Deny);
        prop_assert_eq!(policy.judge(&call, &roots()), judged.clone(), "the same call, the same \
            judgement");
        // A call that is not denied names no path outside the workspace.
        if judged.verdict < Verdict::Deny {
            for used in policy.paths(&call, &roots()) {
                prop_assert!(WorkspacePath::parse(used.path.as_str(), &Roots::relative_only()).is_ok());
            }
        }
    }

    #[test]
    fn an_option_that_no_rule_lists_makes_no_call_milder(command in command()) {
        // echo has no options, and tar reads its first word in its own way.
        if ["echo", "tar"].contains(&command.command.as_str()) {
            return Ok(());
        }
        let mut more = command.clone();
        more.args.insert(0, "--zz-frobnicate".to_owned());
        prop_assert!(verdict(&more) >= verdict(&command).max(Verdict::High), "{more:?}");
    }

    #[test]
    fn an_outside_operand_is_denied_wherever_it_stands(
        name in prop::sample::select(vec!["cat", "ls", "head", "wc", "stat", "file", "cp", "mv", "touch", "mkdir", "gcc", "tar", "zip"]),
        before in prop::collection::vec("[a-z]{1,5}", 0..3),
        after in prop::collection::vec("[a-z]{1,5}", 0..3),
    ) {
        let args = before.into_iter().chain(["../out/secret.txt".to_owned()]).chain(after).collect::<Vec<_>>();
        let mut args = args;
        if name == "tar" {
            args.insert(0, "-cf".to_owned());
        }
        let command = Command { command: name.to_owned(), args, timeout: None, cwd: WorkspacePath::root() };
        prop_assert_eq!(verdict(&command), Verdict::Deny, "{:?}", command);
    }

    #[test]
    fn requests_of_any_shape_are_answered(name in "[a-z_]{0,20}", key in "[a-z_]{0,10}", text in "\\PC{0,40}") {
        let params = serde_json::json!({key: text});
        let (_, judged) = Policy::builtin().judge_request(&name, params, &roots());
        prop_assert_eq!(judged.code.is_some(), judged.verdict == Verdict::Deny);
    }

    #[test]
    fn approving_one_command_approves_no_other(a in command(), b in command()) {
        let digest = |command: &Command| CallDigest::of(&ToolCall::from(command.clone()));
        prop_assert_eq!(a == b, digest(&a) == digest(&b));
    }
}
