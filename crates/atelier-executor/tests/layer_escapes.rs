//! Attempts to get out of a layer, or to get something through a landing that must not land. Each
//! fails, and the workspace stays as it is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;

use atelier_core::policy::verdict::Verdict;
use atelier_executor::{LayerOptions, Layers};
use common::Fixture;
use serde_json::{Value, json};

fn shell(f: &Fixture, script: &str) -> Value {
    f.call("shell", json!({ "script": script, "timeout": 60 })).to_value()
}

/// Runs a script that tries something, and checks that workspace and surroundings stay untouched.
fn tries(f: &Fixture, script: &str) -> Value {
    let before = (f.snapshot("ws"), f.snapshot("out"), f.snapshot("home"));
    let answer = shell(f, script);
    assert!(answer["stdout"].is_string(), "the script ran: {answer:#}");
    assert!(!answer.to_string().contains("SECRET-"), "{answer:#}");
    assert_eq!((f.snapshot("ws"), f.snapshot("out"), f.snapshot("home")), before, "{script}");
    answer
}

/// LY-23
#[test]
fn nothing_a_script_does_touches_the_folder() {
    let f = Fixture::new();
    f.put("sub/deep/file.txt", "deep\n");
    let base = f.base().display().to_string();
    for script in [
        "rm -rf . ./* 2>/dev/null; rm -rf \"$PWD\"/* ; find . -delete; ls -A | wc -l",
        "mount --bind /tmp . ; umount . ; umount -l . ; umount -l /tmp; unshare -m true; nsenter -t 1 -m ls /",
        "echo x > /etc/passwd; echo x > /usr/bin/ls; touch /x /var/x /root/x /home/x",
        "cat /proc/1/root/etc/shadow; ls /proc/1/cwd/ /proc/*/root/root 2>/dev/null | head -2; cat /proc/1/environ /proc/1/cmdline",
        "python3 -c 'import os
for f in range(3, 256):
    try: print(f, os.readlink(f\"/proc/self/fd/{f}\"))
    except OSError: pass' | grep -v pipe; true",
        "mknod null c 1 3; mknod w c 0 0; mknod f p; mkfifo fifo; python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.bind(\"sock\")'",
        "chmod u+s notes.txt; chmod 4755 s.py; chmod 2755 src; cp /bin/sh sh; chmod 6755 sh; ls -l sh | cut -c4",
        "python3 -c 'import os
for name in (\"user.overlay.opaque\", \"user.overlay.redirect\", \"user.overlay.whiteout\", \"trusted.overlay.opaque\"):
    for path in (\".\", \"src\", \"notes.txt\"):
        try: os.setxattr(path, name, b\"y\"); print(\"set\", name)
        except OSError as e: print(e.errno)' | sort -u",
        "ln notes.txt hard && echo changed > hard && cat notes.txt; ln /etc/passwd p; ln -s /etc/shadow sh2; cat sh2",
        "cd .. ; pwd; ls; cat out/secret.txt; echo x > out/x; echo x > x",
    ] {
        tries(&f, script);
    }
    for place in
        [format!("{base}/out/secret.txt"), format!("{base}/state"), "/root/.ssh".to_owned()]
    {
        // The folder itself may be there, and is empty.
        let script = format!(
            "cat {place}; find {place} -mindepth 1 -ls; echo x > {place}/x; ls -A {place}/"
        );
        assert_eq!(tries(&f, &script)["stdout"], json!(""), "{place}");
    }
}

/// LY-24
#[test]
fn memory_processes_disk_and_time_are_bounded() {
    let mut f = Fixture::new();
    let options = LayerOptions { max_bytes: 250 << 20, ..LayerOptions::default() };
    f.layers = Layers::open(&f.base().join("state"), &f.ws, options).unwrap();
    let f = f;
    // A fork bomb ends with its script, and the machine goes on.
    let answer = f.call(
        "shell",
        json!({ "script": "bomb() { bomb | bomb & }; bomb; sleep 60", "timeout": 2 }),
    );
    let answer = answer.to_value();
    assert_eq!(answer["code"], json!("command_timeout"), "{answer:#}");
    assert_eq!(shell(&f, "echo fine")["stdout"], json!("fine\n"));
    // A script that ignores being asked to end is killed, with all that it has started.
    let script = "trap '' TERM; (trap '' TERM; setsid sleep 300) & while :; do :; done";
    let answer = f.call("shell", json!({ "script": script, "timeout": 1 })).to_value();
    assert_eq!(answer["code"], json!("command_timeout"), "{answer:#}");
    // A script that fills the disk is ended.
    let script =
        "for i in $(seq 100); do head -c 100M /dev/zero > big$i || exit 1; sleep 0.3; done";
    let answer = f.call("shell", json!({ "script": script, "timeout": 120 })).to_value();
    assert_eq!(answer["success"], json!(false));
    assert!(answer["code"] == json!("file_size_exceeded"), "{answer:#}");
    let full = shell(&f, "true");
    assert_eq!(full["code"], json!("file_size_exceeded"), "{full:#}");
    assert_eq!(f.call("discard", json!({})).to_value()["success"], json!(true));
    assert_eq!(shell(&f, "echo empty")["stdout"], json!("empty\n"));
    // Long output is kept whole, and answered in part.
    let answer = shell(&f, "seq 100000");
    assert_eq!(answer["truncated"], json!(true));
    assert!(answer["stdout"].as_str().unwrap().len() <= 20_000);
    let rest = json!({ "job_id": answer["job_id"], "offset": 588_882, "limit": 13 });
    let rest = f.call("job_output", rest).to_value();
    assert_eq!(rest["stdout"], json!("99999\n100000\n"));
}

/// LY-25
#[test]
fn what_must_not_land_does_not_land() {
    let f = Fixture::new();
    assert!(f.bash("git init -q && git add -A && git commit -qm one"));
    let refused = |script: &str, path: &str| {
        let ran = shell(&f, script);
        assert_eq!(ran["success"], json!(true), "{ran:#}");
        let before = f.snapshot("ws");
        let answer = f.call("land", json!({ "paths": [path] })).to_value();
        assert_eq!(answer["success"], json!(false), "{script}: {answer:#}");
        assert_eq!(f.snapshot("ws"), before, "{script}");
        assert_eq!(f.call("discard", json!({})).to_value()["success"], json!(true));
        answer["error"].as_str().unwrap().to_owned()
    };
    let why = refused("ln -s /etc/passwd link", "link");
    assert!(why.contains("leads out of the workspace"), "{why}");
    refused("ln -s ../../out/secret.txt src/link", "src/link");
    refused("ln -s .git/config link", "link");
    let why = refused("mkfifo fifo", "fifo");
    assert!(why.contains("FIFOs"), "{why}");
    refused("echo hidden/ > .atelierignore", ".atelierignore");
    let why = refused("git commit -q --allow-empty -m two", ".git");
    assert!(why.contains("commit"), "{why}");
    refused("echo x > .git/hooks/pre-commit", ".git/hooks/pre-commit");
    refused("mkdir -p src/.git && echo x > src/.git/config", "src/.git/config");
    // Commits stay in the layer; the files land.
    shell(&f, "echo two >> notes.txt; git commit -qam two; git config user.name evil");
    let head = fs::read_to_string(f.path(".git/config")).unwrap();
    let landed = f.call("land", json!({})).to_value();
    assert_eq!(
        landed["landed"],
        json!([{ "path": "notes.txt", "change": "changed" }]),
        "{landed:#}"
    );
    assert_eq!(fs::read_to_string(f.path(".git/config")).unwrap(), head);
}

/// LY-26: a person, or another program, puts a link in the place of a folder while a landing is
/// prepared.
#[test]
fn a_link_in_place_of_a_folder_leads_nowhere() {
    let f = Fixture::new();
    shell(&f, "echo changed > src/a.py; echo new > src/new.py");
    fs::rename(f.path("src"), f.path("src2")).unwrap();
    symlink(f.base().join("out"), f.path("src")).unwrap();
    let answer = f.call("land", json!({})).to_value();
    assert_eq!(answer["success"], json!(false), "{answer:#}");
    let names: Vec<_> =
        fs::read_dir(f.base().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["secret.txt"]);
    assert_eq!(fs::read_to_string(f.path("src2/a.py")).unwrap(), "print(1)\n");
}

/// LY-26: what was approved is what lands.
#[test]
fn a_layer_that_changes_after_the_preview_does_not_land() {
    use atelier_executor::{Approval, Cancel, Expect, Preview};
    let f = Fixture::new();
    shell(&f, "echo one > notes.txt");
    let call = common::parse(&f, "land", json!({}));
    let Some(Preview::Landing { digest, diff }) = f.tools().preview(&call).unwrap() else {
        panic!("a landing has a preview")
    };
    assert_eq!(
        diff,
        "diff --git a/notes.txt b/notes.txt\n--- a/notes.txt\n+++ b/notes.txt\n@@ -1,1 +1,1 @@\n\
         -notes\n+one\n"
    );
    let approval = Approval { expect: Expect::Checksum(digest.clone()), ..Approval::full() };
    shell(&f, "echo two > notes.txt");
    let outcome = f.tools().execute(&call, &approval, &Cancel::new().unwrap()).to_value();
    assert_eq!(outcome["code"], json!("stale"), "{outcome:#}");
    assert_eq!(fs::read_to_string(f.path("notes.txt")).unwrap(), "notes\n");
    // A file of a stricter kind that joins later is not covered by an approval of less.
    shell(&f, "echo one > notes.txt");
    let medium = Approval { up_to: Verdict::Medium, ..approval.clone() };
    shell(&f, "echo 'all:' > Makefile");
    let outcome = f.tools().execute(&call, &medium, &Cancel::new().unwrap()).to_value();
    assert_eq!(outcome["code"], json!("approval_required"), "{outcome:#}");
    shell(&f, "rm Makefile");
    let outcome = f.tools().execute(&call, &approval, &Cancel::new().unwrap()).to_value();
    assert_eq!(outcome["success"], json!(true), "{outcome:#}");
    assert_eq!(fs::read_to_string(f.path("notes.txt")).unwrap(), "one\n");
}

/// How risky landing these paths is, and the rule that says so.
fn rated(f: &Fixture, tool: &str, params: Value) -> (Verdict, String) {
    let judged = f.judge(tool, params);
    (judged.verdict, judged.rule)
}

/// LY-41: a folder that is a repository by what is in it can start programs, whatever it is called.
#[test]
fn landing_what_makes_a_repository_is_high() {
    let high = (Verdict::High, "land file.repository".to_owned());
    let land = |f: &Fixture, path: &str| {
        let rating = rated(f, "land", json!({ "paths": [path] }));
        let landed = f.call("land", json!({ "paths": [path] })).to_value();
        assert_eq!(landed["success"], json!(true), "{path}: {landed:#}");
        rating
    };
    let f = Fixture::new();
    let bare = "mkdir -p lib/v/objects lib/v/refs; echo 'ref: refs/heads/main' > lib/v/HEAD; \
        printf '[core]\\nfsmonitor = ./x\\n' > lib/v/config; echo t > lib/v/objects/t; \
        echo t > lib/v/refs/t";
    shell(&f, bare);
    assert_eq!(rated(&f, "land", json!({})), high);
    // One after the other, the one that completes the repository is asked about, and all after it.
    assert_eq!(land(&f, "lib/v/config").0, Verdict::Medium);
    assert_eq!(land(&f, "lib/v/HEAD").0, Verdict::Medium);
    assert_eq!(land(&f, "lib/v/refs").0, Verdict::Medium);
    assert_eq!(land(&f, "lib/v/objects"), high);
    shell(&f, "echo more >> lib/v/config; mkdir lib/v/new; echo x > lib/v/new/x");
    assert_eq!(land(&f, "lib/v/config"), high);
    assert_eq!(land(&f, "lib/v/new"), high);
    // The folder beside it is not a repository.
    shell(&f, "echo x > lib/x; echo x > HEAD");
    assert_eq!(land(&f, "lib/x").0, Verdict::Medium);
    // The root is a folder like any other.
    assert_eq!(land(&f, "HEAD").0, Verdict::Medium);
    shell(&f, "mkdir objects refs");
    assert_eq!(rated(&f, "land", json!({})), high);
    // Empty folders, links and the worktree of another repository make one as well.
    for script in [
        "mkdir -p w/objects w/refs; touch w/HEAD",
        "mkdir w; ln -s ../notes.txt w/HEAD; ln -s ../src w/objects; ln -s ../src w/refs",
        "mkdir w; touch w/HEAD; echo ../lib/v > w/commondir",
    ] {
        let f = Fixture::new();
        shell(&f, script);
        assert_eq!(rated(&f, "land", json!({})), high, "{script}");
    }
    // A person may complete a repository that they have begun.
    let f = Fixture::new();
    f.put("w/HEAD", "x");
    f.put("w/objects/x", "x");
    shell(&f, "mkdir -p w/refs; touch w/refs/x");
    assert_eq!(rated(&f, "land", json!({})), high);
}

/// LY-41: the same holds for what is brought back.
#[test]
fn undoing_what_makes_a_repository_is_high() {
    let f = Fixture::new();
    for name in ["w/HEAD", "w/objects/x", "w/refs/x"] {
        f.put(name, "x");
    }
    let gone = f.call("delete_file", json!({ "path": "w/HEAD" })).to_value();
    assert_eq!(gone["success"], json!(true), "{gone:#}");
    let undo = rated(&f, "undo", json!({}));
    assert_eq!(undo, (Verdict::High, "undo file.repository".to_owned()));
}

/// LY-42: a chain of links leads out as well as a single one, in whatever order they land.
#[test]
fn chains_of_links_that_lead_out_do_not_land() {
    let f = Fixture::new();
    let land = |path: &str| {
        let landed = f.call("land", json!({ "paths": [path] })).to_value();
        (landed["success"] == json!(true), landed["error"].as_str().unwrap_or("").to_owned())
    };
    let leads_out = |path: &str| {
        let (landed, why) = land(path);
        assert!(!landed && why.contains("leads out of the workspace"), "{path}: {why}");
    };
    f.put("d/x", "x");
    shell(&f, "ln -s .. d/l1; ln -s d/l1/.. l2; ln -s d/l1/../home/x l3; ln -s d/../notes.txt l4");
    leads_out(".");
    for path in ["l2", "l3", "l4"] {
        leads_out(path);
    }
    assert!(land("d/l1").0);
    for path in ["l2", "l3"] {
        leads_out(path);
    }
    f.call("discard", json!({}));
    // A person's own link leads out, and into their repository.
    symlink(f.base().join("out"), f.path("mine")).unwrap();
    symlink(f.path(".git"), f.path("repo")).unwrap();
    assert!(f.bash("git init -q"));
    shell(&f, "ln -s mine/secret.txt l5; ln -s repo/config l6; ln -s d/l7 l8; ln -s ../mine d/l7");
    for path in ["l5", "l6", "d/l7", "."] {
        leads_out(path);
    }
    f.call("discard", json!({}));
    // Others land: to a neighbour, upwards, to nothing, through other links, and in a circle.
    shell(
        &f,
        "mkdir -p n/a n/.bin; echo x > n/a/x; ln -s ../a/x n/.bin/x; ln -s n/.bin/x l9; ln -s none \
         l10; ln -s l12 l11; ln -s l11 l12; ln -s d/l1/notes.txt l13; ln -s . l14",
    );
    let (landed, why) = land(".");
    assert!(landed, "{why}");
    assert_eq!(fs::read_to_string(f.path("l9")).unwrap(), "x\n");
}
