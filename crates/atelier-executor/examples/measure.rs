//! Prints what the file primitives and a sandboxed command cost on this machine:
//! `cargo run --release -p atelier-executor --example measure [DIR]`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement talks to a person and may stop on any fault"
)]

use std::time::{Duration, Instant};

use atelier_core::path::{Roots, WorkspacePath};
use atelier_core::policy::Policy;
use atelier_core::policy::call::ToolCall;
use atelier_executor::{
    Access, Approval, Cancel, CommandSpec, Expect, Functions, Glob, GrepSpec, Listing,
    MissingParents, Options, Origin, Part, Runner, RunnerOptions, Tools, Workspace,
};

const FILES: usize = 100_000;
const PER_DIRECTORY: usize = 100;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("ws");
    for n in 0..FILES / PER_DIRECTORY {
        let sub = root.join(format!("d{:02}/e{n:04}", n % 20));
        std::fs::create_dir_all(&sub).unwrap();
        for file in 0..PER_DIRECTORY {
            std::fs::write(
                sub.join(format!("file{file:03}.{}", if file == 0 { "json" } else { "txt" })),
                "hello world\n",
            )
            .unwrap();
        }
    }
    let path = |text: &str| WorkspacePath::parse(text, &Roots::relative_only()).unwrap();
    let ws = Workspace::open(&root, Options { durable: false, ..Options::default() }).unwrap();
    let durable = Workspace::open(&root, Options::default()).unwrap();
    let cancel = Cancel::new().unwrap();
    let runner = Runner::new(
        &ws,
        RunnerOptions { state_dir: dir.path().join("state"), ..RunnerOptions::default() },
    )
    .unwrap();
    println!("{}", runner.isolation());

    let json = Glob::parse("**/*.json").unwrap();
    let none = Glob::parse("**/*.nothing").unwrap();
    let all = Glob::parse("**/*").unwrap();
    let find =
        CommandSpec { output_limit: 1 << 20, ..CommandSpec::new("find", [".", "-name", "*.json"]) };
    let find = best(5, || drop(runner.run(&ws, &find, &cancel).unwrap()));
    let bare = CommandSpec::new("true", [""; 0]);
    let bare = best(20, || drop(runner.run(&ws, &bare, &cancel).unwrap()));
    let find_alone = find.saturating_sub(bare);
    let search = best(5, || {
        assert_eq!(
            ws.search(&path("."), &json, 10_000, &cancel).unwrap().hits.len(),
            FILES / PER_DIRECTORY
        );
    });
    let miss =
        best(5, || assert!(ws.search(&path("."), &none, 100, &cancel).unwrap().hits.is_empty()));
    println!(
        "find -name '*.json' over {FILES} files  {find_alone:?} (sandbox of {bare:?} taken off)"
    );
    println!(
        "search **/*.json                       {search:?} ({:.2} x find)",
        search.as_secs_f64() / find_alone.as_secs_f64()
    );
    println!(
        "search, no match                       {miss:?} ({:.2} x find)",
        miss.as_secs_f64() / find_alone.as_secs_f64()
    );
    println!(
        "search **/* cut at 100                 {:?}",
        best(5, || drop(ws.search(&path("."), &all, 100, &cancel).unwrap()))
    );
    let listing = Listing { glob: all.clone(), limit: 1000 };
    println!(
        "list recursive, 1000 of all            {:?}",
        best(5, || drop(ws.list(&path("."), &listing, &cancel).unwrap()))
    );
    let spec = GrepSpec {
        pattern: "nowhere".into(),
        literal: true,
        ignore_case: false,
        glob: None,
        context: 0,
        limit: 100,
    };
    println!(
        "grep all {FILES} files                 {:?}",
        best(3, || drop(ws.grep(&path("."), &spec, |_| false, &cancel).unwrap()))
    );

    let roots = Roots::relative_only();
    let tools = Tools {
        workspace: &ws,
        runner: Some(&runner),
        policy: Policy::builtin(),
        roots: &roots,
        functions: Functions::builtin(),
        layers: None,
        origin: Origin::local(),
    };
    let pwd = ToolCall::parse(
        "execute_command",
        serde_json::json!({ "command": "pwd" }),
        &roots,
        tools.policy.limits(),
    )
    .unwrap();
    println!(
        "tool pwd, secrets of all files hidden  {:?}",
        best(5, || assert!(tools.execute(&pwd, &Approval::none(), &cancel).success()))
    );
    std::fs::write(root.join("1k"), vec![b'x'; 1024]).unwrap();
    std::fs::write(root.join("1m"), vec![b'x'; 1 << 20]).unwrap();
    std::fs::write(root.join("200m"), "0123456789abcde\n".repeat(200 << 16)).unwrap();
    for (name, part) in [
        ("1k", Part::Whole),
        ("1m", Part::Whole),
        ("200m", Part::Head(10)),
        ("200m", Part::Tail(10)),
    ] {
        println!(
            "read {name} {part:?}: {:?}",
            mean(200, || drop(ws.read(&path(name), part).unwrap()))
        );
    }
    let bytes = vec![b'x'; 1024];
    let write = |ws: &Workspace| {
        drop(ws.write(&path("w"), &bytes, &Expect::Anything, MissingParents::Refuse).unwrap());
    };
    println!(
        "write 1k: {:?}, durable {:?}",
        mean(200, || write(&ws)),
        mean(50, || write(&durable))
    );
    let work = CommandSpec { access: Access::Workspace, ..CommandSpec::new("true", [""; 0]) };
    println!(
        "run true: {:?} read-only, {:?} with the workspace",
        mean(50, || drop(runner.run(&ws, &CommandSpec::new("true", [""; 0]), &cancel).unwrap())),
        mean(50, || drop(runner.run(&ws, &work, &cancel).unwrap()))
    );
}

fn best(times: usize, mut work: impl FnMut()) -> Duration {
    (0..times).map(|_| mean(1, &mut work)).min().unwrap()
}

fn mean(times: u32, mut work: impl FnMut()) -> Duration {
    let started = Instant::now();
    for _ in 0..times {
        work();
    }
    started.elapsed() / times
}
