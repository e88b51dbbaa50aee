//! Directories are swapped for links while calls run. Errors are allowed, but not a single byte
//! from outside may be read. Takes two seconds by default; `ATELIER_RACE_SECONDS` makes it longer.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atelier_core::path::{Roots, WorkspacePath};
use atelier_executor::{Cancel, Edit, Expect, Glob, GrepSpec, Listing, MissingParents, Part};
use common::Fixture;
use rustix::fs::{CWD, RenameFlags, renameat_with};

fn p(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text, &Roots::relative_only()).unwrap()
}

const OUTSIDE_SIZE: usize = 10_007;

/// Stops the swapping thread even if an assertion fails, so that the test fails instead of hanging.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn swap(a: &Path, b: &Path) {
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

#[test]
fn swapping_links_in_never_leads_outside() {
    let f = Fixture::new();
    for file in ["flip_real/secret.txt", "flip_real/deep/secret.txt", "leaf_real"] {
        f.put(file, "inside");
    }
    std::fs::create_dir_all(f.base().join("out/deep")).unwrap();
    // A size that no file inside has.
    let secret = format!("SECRET{}", "x".repeat(OUTSIDE_SIZE - 6));
    for file in ["out/secret.txt", "out/deep/secret.txt"] {
        std::fs::write(f.base().join(file), &secret).unwrap();
    }
    symlink(f.base().join("out"), f.path("flip")).unwrap();
    symlink("../out/secret.txt", f.path("leaf")).unwrap();
    let outside = f.snapshot("out");
    let seconds =
        std::env::var("ATELIER_RACE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let (stop, inside, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swap(&f.path("flip"), &f.path("flip_real"));
                swap(&f.path("leaf"), &f.path("leaf_real"));
            }
        });
        let _stop = StopOnDrop(&stop);
        let cancel = Cancel::new().unwrap();
        let count = |ok: bool| if ok { &inside } else { &refused }.fetch_add(1, Ordering::Relaxed);
        let everything = Listing { glob: Glob::parse("**/*").unwrap(), limit: 100 };
        let secret = GrepSpec {
            pattern: "SECRET".into(),
            literal: true,
            ignore_case: false,
            glob: None,
            context: 0,
            limit: 9,
        };
        while Instant::now() < deadline {
            for path in ["flip/secret.txt", "flip/deep/secret.txt", "leaf"] {
                match f.ws.read(&p(path), Part::Whole) {
                    Ok(content) => {
                        assert!(!content.bytes.starts_with(b"SECRET"), "read {path} from outside");
                        count(true);
                    }
                    Err(_) => _ = count(false),
                }
                count(
                    f.ws.write(&p(path), b"inside", &Expect::Anything, MissingParents::Create)
                        .is_ok(),
                );
                count(
                    f.ws.append(&p(path), b"!", &Expect::Anything, MissingParents::Refuse).is_ok(),
                );
                let edit = Edit { old: "inside".into(), new: "inside!".into(), count: None };
                count(f.ws.edit(&p(path), &[edit], &Expect::Anything).is_ok());
                if let Ok(info) = f.ws.info(&p(path)) {
                    assert_ne!(info.size, OUTSIDE_SIZE as u64, "described {path} outside");
                }
            }
            count(f.ws.create_directory(&p("flip/new/dir")).is_ok());
            count(f.ws.move_entry(&p("flip/deep/secret.txt"), &p("flip/moved"), false).is_ok());
            count(f.ws.delete(&p("flip/new"), true).is_ok());
            count(f.ws.delete(&p("flip/moved"), false).is_ok());
            if let Ok(found) = f.ws.grep(&p("."), &secret, |_| false, &cancel) {
                assert_eq!(found.matches, 0, "searched outside: {:?}", found.lines);
            }
            if let Ok(listed) = f.ws.list(&p("flip"), &everything, &cancel) {
                assert!(
                    listed.entries.iter().all(|entry| entry.size != OUTSIDE_SIZE as u64),
                    "listed outside"
                );
            }
        }
    });
    let (inside, refused) = (inside.into_inner(), refused.into_inner());
    println!("{inside} calls got through, {refused} were refused");
    assert!(inside > 0 && refused > 0, "the race did not happen: {inside} {refused}");
    assert_eq!(f.snapshot("out"), outside);
}

/// The sandbox also holds if paths are swapped while a command runs.
#[test]
fn a_command_does_not_follow_a_link_that_is_swapped_in() {
    let f = Fixture::new();
    f.put("flip_real/secret.txt", "inside");
    symlink(f.base().join("out"), f.path("flip")).unwrap();
    let outside = f.snapshot("out");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swap(&f.path("flip"), &f.path("flip_real"));
            }
        });
        let _stop = StopOnDrop(&stop);
        for _ in 0..40 {
            for (program, args) in [
                ("cat", ["flip/secret.txt"].as_slice()),
                ("touch", &["flip/PWNED"]),
                ("find", &["flip/", "-type", "f"]),
            ] {
                let mut spec = atelier_executor::CommandSpec::new(program, args.iter().copied());
                spec.access = atelier_executor::Access::Workspace;
                if let Ok(outcome) = f.runner.run(&f.ws, &spec, &Cancel::new().unwrap()) {
                    assert!(!outcome.stdout.contains("SECRET"), "{program} read outside");
                }
            }
        }
    });
    assert_eq!(f.snapshot("out"), outside);
}
