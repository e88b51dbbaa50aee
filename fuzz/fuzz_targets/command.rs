//! Whatever the words, one a line: judging a command does not panic, gives the same twice, and no
//! argument behind the others turns a refusal into anything milder.
#![no_main]

use atelier_core::{
    path::{Roots, WorkspacePath},
    policy::{
        Policy,
        call::{Command, ToolCall},
        git::Line,
        verdict::Verdict,
    },
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut words = text.split('\n').map(str::to_owned);
    let Some(command) = words.next() else { return };
    let roots = Roots::announced("/base/ws").also("/workspace");
    let judge = |args: &[String]| {
        let command = Command { command: command.clone(), args: args.to_vec(), timeout: None, cwd: WorkspacePath::root() };
        let call = ToolCall::from(command);
        let judgement = Policy::builtin().judge(&call, &roots);
        // What it would touch is asked for as well, when it runs.
        let paths = Policy::builtin().paths(&call, &roots);
        assert!(paths.iter().all(|used| used.path.components().all(|name| name != "..")), "{call:?}");
        judgement
    };
    let args: Vec<String> = words.take(64).collect();
    // A git command line is read a second time, to find out what it would show.
    if let Some(line) = Line::read(&args) {
        assert!(line.words().iter().all(|word| args.iter().any(|arg| arg.contains(word))), "{args:?}");
        line.paths(&[]).for_each(drop);
    }
    let judgement = judge(&args);
    assert_eq!(judgement, judge(&args), "{command} {args:?}");
    assert_eq!(judgement.code.is_some(), judgement.verdict == Verdict::Deny, "{command} {args:?}: \
        {judgement:?}");
    assert!(!judgement.rule.is_empty() && !judgement.reason.is_empty(), "{command} {args:?}");
});
