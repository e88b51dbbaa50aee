//! Measures the cost of looking into a repository through the gate, compared with git itself on the
//! same repository.
//!
//! The repository has 10,000 commits and holds a secret file in its past, so the gate tells
//! every command which files to leave out. The first look reads the whole history, so it is
//! measured separately from the later ones.

use crate::report::{Aim, Report, Unit, milliseconds};
use anyhow::{Context, Result, ensure};
use atelier_core::{
    path::Roots,
    policy::{Policy, call::ToolCall},
};
use atelier_executor::{
    Approval, Cancel, Functions, Options, Origin, Runner, RunnerOptions, Tools, Workspace,
};
use serde_json::json;
use std::{
    fmt::Write as _,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

const COMMITS: usize = 10_000;
const FILES: usize = 200;
/// How much longer than git itself a look may take, in milliseconds.
const ALLOWED: f64 = 15.0;

const LOOKS: [&[&str]; 5] = [
    &["status"],
    &["log", "--oneline", "-20"],
    &["log", "-p", "-20"],
    &["diff"],
    &["diff", "HEAD~1"],
];

pub(crate) fn measure(rounds: usize, report: &mut Report) -> Result<()> {
    let base = tempfile::tempdir()?;
    let root = base.path().canonicalize()?.join("ws");
    make_repository(&root)?;
    let workspace = Workspace::open(&root, Options::default())?;
    let options =
        RunnerOptions { state_dir: base.path().join("state"), ..RunnerOptions::default() };
    let runner = Runner::new(&workspace, options)?;
    let roots = Roots::announced(root.to_string_lossy());
    let tools = Tools {
        workspace: &workspace,
        runner: Some(&runner),
        policy: Policy::builtin(),
        roots: &roots,
        functions: Functions::builtin(),
        layers: None,
        origin: Origin::local(),
    };
    let gated = |args: &[&str]| -> Result<f64> {
        let params = json!({ "command": "git", "args": args });
        let call = ToolCall::parse("execute_command", params, &roots, Policy::builtin().limits())
            .context("a look that is no call")?;
        let start = Instant::now();
        let outcome = tools.execute(&call, &Approval::none(), &Cancel::new()?);
        ensure!(outcome.success(), "git {args:?}: {outcome:?}");
        Ok(milliseconds(start.elapsed()))
    };
    let bare = |args: &[&str]| -> Result<f64> {
        let start = Instant::now();
        let output =
            Command::new("git").args(args).current_dir(&root).env("GIT_PAGER", "cat").output()?;
        ensure!(output.status.success(), "git {args:?} fails");
        Ok(milliseconds(start.elapsed()))
    };
    let first = gated(&["log", "-p", "-1"])?;
    report.add(
        "the first look (floor: git log -p -1)",
        Unit::Milliseconds,
        vec![first],
        vec![bare(&["log", "-p", "-1"])?],
        None,
    );
    for args in LOOKS {
        let (mut through_gate, mut floor) = (Vec::new(), Vec::new());
        for _ in 0..rounds * 10 {
            through_gate.push(gated(args)?);
            floor.push(bare(args)?);
        }
        let name = format!("git {} (floor: git itself)", args.join(" "));
        report.add(name, Unit::Milliseconds, through_gate, floor, Some(Aim::AboveFloor(ALLOWED)));
    }
    Ok(())
}

/// Makes a repository through `git fast-import`, with a secret file that was deleted again.
fn make_repository(root: &Path) -> Result<()> {
    std::fs::create_dir_all(root)?;
    let git = |args: &[&str]| {
        Command::new("git").args(args).current_dir(root).stdout(Stdio::null()).status()
    };
    ensure!(git(&["init", "-q", "-b", "main"])?.success(), "cannot make a repository");
    let mut stream = String::new();
    for commit in 0..COMMITS {
        let (path, text) = match commit {
            10 => ("M 100644 inline .env".to_owned(), "TOKEN=secret\n".to_owned()),
            11 => ("D .env".to_owned(), String::new()),
            _ => {
                let file = commit % FILES;
                (
                    format!("M 100644 inline src/{}/{file}.txt", file % 20),
                    format!("line {commit}\n").repeat(20),
                )
            }
        };
        let time = 1_700_000_000 + commit;
        writeln!(
            stream,
            "commit refs/heads/main\ncommitter a <a@b> {time} +0000\ndata 7\nchange\n\n{path}"
        )?;
        if !text.is_empty() {
            writeln!(stream, "data {}\n{text}", text.len())?;
        }
    }
    let mut import = Command::new("git")
        .args(["fast-import", "--quiet"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run git")?;
    import.stdin.take().context("no pipe to git")?.write_all(stream.as_bytes())?;
    ensure!(import.wait()?.success(), "git fast-import fails");
    ensure!(git(&["reset", "-q", "--hard"])?.success(), "cannot check the repository out");
    std::fs::write(root.join("src/0/0.txt"), "changed\n")?;
    Ok(())
}
