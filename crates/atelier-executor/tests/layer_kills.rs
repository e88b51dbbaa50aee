//! A process is killed while it lands or undoes, at random moments. The folder is then as before or
//! as after. And: whatever both sides do, nobody's edits are lost. `ATELIER_LAND_KILLS` and
//! `ATELIER_LAND_ROUNDS` make the tests longer, `ATELIER_SEED` repeats one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use atelier_core::path::Roots;
use atelier_core::policy::Policy;
use atelier_executor::{
    Approval, Cancel, Functions, LayerOptions, Layers, Options, Origin, Runner, RunnerOptions,
    Tools, Workspace,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

struct Folder {
    ws: Workspace,
    runner: Runner,
    layers: Layers,
    roots: Roots,
}

impl Folder {
    fn open(base: &Path) -> Self {
        let root = base.join("ws");
        fs::create_dir_all(&root).unwrap();
        let ws = Workspace::open(&root, Options { durable: false, ..Options::default() }).unwrap();
        let state = base.join("state");
        let options = RunnerOptions { state_dir: state.clone(), ..RunnerOptions::default() };
        let runner = Runner::new(&ws, options).unwrap();
        let layers = Layers::open(&state, &ws, LayerOptions::default()).unwrap();
        Self { ws, runner, layers, roots: Roots::relative_only() }
    }

    fn call(&self, tool: &str, params: Value) -> Value {
        let tools = Tools {
            workspace: &self.ws,
            runner: Some(&self.runner),
            policy: Policy::builtin(),
            roots: &self.roots,
            functions: Functions::builtin(),
            layers: Some(&self.layers),
            origin: Origin::local(),
        };
        let (call, judgement) = Policy::builtin().judge_request(tool, params, &self.roots);
        let call = call.unwrap_or_else(|error| panic!("{error}: {judgement:?}"));
        tools.execute(&call, &Approval::full(), &Cancel::new().unwrap()).to_value()
    }
}

/// Every file of the folder with its content, as anybody reads it.
fn read(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => todo.push(path),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, fs::read_to_string(&path).unwrap());
                }
            }
        }
    }
    found
}

/// The beginning of each file.
fn brief(files: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    files.iter().map(|(name, text)| (name.as_str(), text.get(..20).unwrap_or(text))).collect()
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn seed() -> u64 {
    let seed = number("ATELIER_SEED", rand::random());
    println!("ATELIER_SEED={seed}");
    seed
}

/// Waits, but not for anything that happens.
fn pass(time: Duration) {
    let (_sender, receiver) = mpsc::channel::<()>();
    receiver.recv_timeout(time).ok();
}

/// The size of a large file, in bytes.
const LARGE: usize = 1_200_000;

const CHILD: &str = "ATELIER_LAND_CHILD";

/// The process that is killed. Run by itself, this test does nothing.
#[test]
fn the_process_that_is_killed() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let mut words = told.splitn(3, ' ');
    let (tool, base) = (words.next().unwrap(), words.next().unwrap());
    let params = serde_json::from_str(words.next().unwrap()).unwrap();
    let folder = Folder::open(Path::new(base));
    fs::write(Path::new(base).join("ready"), "").unwrap();
    folder.call(tool, params);
}

/// Runs the tool in a process of its own and kills it after a while.
fn kill(base: &Path, tool: &str, params: &Value, after: Duration) {
    let ready = base.join("ready");
    fs::remove_file(&ready).ok();
    #[expect(clippy::disallowed_methods, reason = "the process that is killed is this test")]
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_process_that_is_killed", "--nocapture"])
        .env(CHILD, format!("{tool} {} {params}", base.display()))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while !ready.exists() && child.try_wait().unwrap().is_none() {
        pass(Duration::from_millis(1));
    }
    pass(after);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
}

/// How long landing and undoing take here.
fn calibrate(base: &Path) -> Duration {
    // A change in the same moment as a script counts as a conflict.
    pass(Duration::from_millis(15));
    let folder = Folder::open(base);
    let script = "for i in $(seq 0 29); do echo x > dir/file$i; done";
    assert_eq!(folder.call("shell", json!({ "script": script }))["success"], json!(true));
    let begun = std::time::Instant::now();
    assert_eq!(folder.call("land", json!({}))["success"], json!(true));
    assert_eq!(folder.call("undo", json!({}))["success"], json!(true));
    begun.elapsed() / 2
}

/// LY-27
#[test]
fn a_killed_landing_leaves_before_or_after() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("ws");
    fs::create_dir_all(root.join("dir/deep")).unwrap();
    for n in 0..30 {
        fs::write(root.join(format!("dir/file{n}")), format!("before {n}\n")).unwrap();
    }
    // The file is too large to compute its checksum at every look.
    fs::write(root.join("dir/large"), "x".repeat(LARGE)).unwrap();
    let mut rng = StdRng::seed_from_u64(seed());
    let mut seen = BTreeMap::new();
    let mut first = read(&root);
    let longest = calibrate(base.path());
    for round in 0..number("ATELIER_LAND_KILLS", 20) {
        // A change in the same moment as a script counts as a conflict.
        pass(Duration::from_millis(15));
        let folder = Folder::open(base.path());
        let (tool, before, after) = if round % 2 == 0 {
            first = read(&root);
            let gone = format!("dir/file{}", 10 + round % 20);
            let digit = round % 10;
            let script = format!(
                "mkdir -p new{round}/x; for i in $(seq 0 9); do echo {round} > dir/file$i; \
                 echo {round} > new{round}/x/$i; done; rm -f {gone}; rm -rf dir/deep; \
                 head -c {LARGE} /dev/zero | tr '\\0' {digit} > dir/large"
            );
            let ran = folder.call("shell", json!({ "script": script }));
            assert_eq!(ran["success"], json!(true), "{ran:#}");
            let mut after = first.clone();
            after.remove(&gone);
            after.insert("dir/large".to_owned(), digit.to_string().repeat(LARGE));
            for n in 0..10 {
                after.insert(format!("dir/file{n}"), format!("{round}\n"));
                after.insert(format!("new{round}/x/{n}"), format!("{round}\n"));
            }
            ("land", first.clone(), after)
        } else {
            // If the previous landing was put back, it is made now. Files that were put back are no
            // conflict.
            let landed = folder.call("land", json!({}));
            let fits = landed["success"] == json!(true) || landed["code"] == json!("not_found");
            assert!(fits, "{landed:#}");
            ("undo", read(&root), first.clone())
        };
        drop(folder);
        kill(base.path(), tool, &json!({}), longest.mul_f64(rng.random_range(0.0..3.0)));
        // The next use of the folder puts things right.
        drop(Folder::open(base.path()));
        let now = read(&root);
        let what = match (now == before, now == after) {
            (true, _) => "before",
            (_, true) => "after",
            _ => panic!(
                "round {round}, {tool}: {:#?}\nbefore {:#?}\nafter {:#?}",
                brief(&now),
                brief(&before),
                brief(&after)
            ),
        };
        *seen.entry((tool, what)).or_insert(0) += 1;
    }
    println!("{seen:?}");
    assert!(seen.len() > 1, "the kills come at different moments: {seen:?}");
}

/// The paths that the layer has changed.
fn changed(folder: &Folder) -> Vec<String> {
    let answer = folder.call("changes", json!({}));
    let files = answer["files"].as_array().unwrap().iter();
    files
        .flat_map(|file| [&file["path"], &file["from"]])
        .filter_map(|path| path.as_str().map(str::to_owned))
        .collect()
}

/// LY-44: a killed process leaves the folder as before a command or as after it.
#[test]
fn a_killed_command_leaves_before_or_after() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("ws");
    fs::create_dir_all(root.join("dir")).unwrap();
    let script = "
import os, sys
round = sys.argv[1]
for n in range(30):
    open(f'dir/file{n}', 'w').write(round)
os.makedirs(f'new{round}/deep')
open(f'new{round}/deep/x', 'w').write(round)
if round != '0': os.remove(f'old{round}')
";
    fs::write(root.join("t.py"), script).unwrap();
    let rounds = number("ATELIER_LAND_KILLS", 20);
    for round in 0..=rounds {
        fs::write(root.join(format!("old{round}")), "old").unwrap();
    }
    let params = |round: u64| json!({ "command": "python3", "args": ["t.py", round.to_string()] });
    let begun = std::time::Instant::now();
    let ran = Folder::open(base.path()).call("execute_command", params(0));
    assert_eq!(ran["success"], json!(true), "{ran:#}");
    let longest = begun.elapsed();
    let mut rng = StdRng::seed_from_u64(seed());
    let mut seen = BTreeMap::new();
    for round in 1..=rounds {
        let before = read(&root);
        let mut after = before.clone();
        after.remove(&format!("old{round}"));
        after.insert(format!("new{round}/deep/x"), round.to_string());
        for n in 0..30 {
            after.insert(format!("dir/file{n}"), round.to_string());
        }
        let late = longest.mul_f64(rng.random_range(0.2..2.0));
        kill(base.path(), "execute_command", &params(round), late);
        // The next use of the folder puts things right.
        drop(Folder::open(base.path()));
        let now = read(&root);
        let what = match (now == before, now == after) {
            (true, _) => "before",
            (_, true) => "after",
            _ => panic!("between: {:?}\nbefore: {:?}", brief(&now), brief(&before)),
        };
        *seen.entry(what).or_insert(0) += 1;
        let left = fs::read_dir(base.path().join("state/commands")).unwrap().count();
        assert_eq!(left, 0, "the layer of a killed command is gone");
    }
    println!("{seen:?}");
}

/// LY-28: a person and an agent change the same files at random. A landing or an undo never
/// replaces what its side has not seen.
#[test]
fn nobodys_edits_are_lost() {
    let mut rng = StdRng::seed_from_u64(seed());
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("ws");
    let folder = Folder::open(base.path());
    let name = |n: u32| format!("f{n}");
    for n in 0..6 {
        fs::write(root.join(name(n)), format!("first {n}\n")).unwrap();
    }
    pass(Duration::from_millis(30));
    let content = |path: &str| fs::read_to_string(root.join(path)).ok();
    // The content that the folder had when the layer first touched each file, and the content that
    // the last landing wrote.
    let mut touched: BTreeMap<String, Option<String>> = BTreeMap::new();
    let (mut landings, mut conflicts) = (0, 0);
    for round in 0..number("ATELIER_LAND_ROUNDS", 80) {
        let path = name(rng.random_range(0..6));
        match rng.random_range(0..10) {
            0 | 1 => {
                fs::write(root.join(&path), format!("person {round}\n")).unwrap();
                // A change in the same moment as a script counts as a conflict.
                pass(Duration::from_millis(30));
            }
            2 => {
                fs::remove_file(root.join(&path)).ok();
                pass(Duration::from_millis(30));
            }
            3..=5 => {
                let script = match rng.random_range(0..4) {
                    0 => format!("rm -f {path}"),
                    _ => format!("echo agent {round} >> {path}"),
                };
                // If a file is the same on both sides again, the layer touches it anew.
                let listed = || changed(&folder);
                touched.retain(|path, _| listed().contains(path));
                touched.entry(path.clone()).or_insert_with(|| content(&path));
                let ran = folder.call("shell", json!({ "script": script }));
                assert_eq!(ran["success"], json!(true), "{ran:#}");
                touched.retain(|path, _| listed().contains(path));
            }
            6..=8 => {
                let path = touched.keys().next().cloned().unwrap_or(path);
                let before = read(&root);
                let landed = folder.call("land", json!({ "paths": [path] }));
                if landed["success"] == json!(true) {
                    landings += 1;
                    let seen = touched.get(&path).cloned().flatten();
                    assert_eq!(before.get(&path), seen.as_ref(), "round {round}: {path} was lost");
                    touched.remove(&path);
                } else {
                    conflicts += u32::from(landed["code"] == json!("conflict"));
                    assert_eq!(read(&root), before, "round {round}: {landed:#}");
                    let discarded = folder.call("discard", json!({ "paths": [path] }));
                    assert_eq!(discarded["success"], json!(true), "{discarded:#}");
                    touched.remove(&path);
                }
            }
            _ => {
                let before = read(&root);
                let undone = folder.call("undo", json!({}));
                for file in undone["undone"].as_array().into_iter().flatten() {
                    let path = file["path"].as_str().unwrap();
                    let old = before.get(path).cloned().unwrap_or_default();
                    assert!(
                        !old.starts_with("person") || old.contains("agent"),
                        "round {round}: {old}"
                    );
                }
                if undone["success"] != json!(true) {
                    assert_eq!(read(&root), before, "round {round}: {undone:#}");
                }
            }
        }
    }
    println!("{landings} landings, {conflicts} conflicts");
    assert!(landings > 0);
}
