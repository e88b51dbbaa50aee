//! Commands end with all their processes, within their time, and within their limits.

use super::*;

/// Whether any process on the machine still has the mark in its command line.
fn alive(mark: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    })
}

fn timed(s: &Space, code: &str, seconds: u64) -> (Outcome, Duration) {
    s.put("t.py", code);
    let started = Instant::now();
    let spec =
        CommandSpec { timeout: Duration::from_secs(seconds), ..working("python3", &["t.py"]) };
    let outcome = s.run(&spec);
    (outcome, started.elapsed())
}

#[test]
fn a_timeout_ends_grandchildren_that_hide_and_ignore() {
    let s = space();
    let mark = format!("atelier-mark-{}", std::process::id());
    let (outcome, took) = timed(
        &s,
        &format!(
            "import os, signal, time, subprocess\n\
             signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
             for _ in range(3):\n\
             \x20 if os.fork() == 0:\n\
             \x20   os.setsid()\n\
             \x20   if os.fork() == 0:\n\
             \x20     signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
             \x20     signal.signal(signal.SIGHUP, signal.SIG_IGN)\n\
             \x20     os.execlp('python3', 'python3', '-c', 'import time; time.sleep(600)', \
             '{mark}')\n\
             \x20   os._exit(0)\n\
             print('up', flush=True)\n\
             time.sleep(600)\n"
        ),
        1,
    );
    assert_eq!((outcome.ending, outcome.stdout.as_str()), (Ending::TimedOut, "up\n"));
    assert!(took < PATIENCE, "{took:?}");
    assert!(!alive(&mark));
}

#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    let s = space();
    let mark = format!("atelier-left-{}", std::process::id());
    let (outcome, took) = timed(
        &s,
        &format!(
            "import subprocess\nsubprocess.Popen(['python3', '-c', 'import time; \
             time.sleep(600)', '{mark}'], start_new_session=True)\nprint('done')"
        ),
        20,
    );
    assert_eq!(ok(&outcome), "done\n");
    assert!(took < PATIENCE && !alive(&mark), "{took:?}");
}

#[test]
fn cancelling_ends_it_at_once() {
    let s = space();
    let cancel = Cancel::new().unwrap();
    let fifo = s.path("ready");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    s.put("t.py", "import time\nopen('ready','w').write('x')\ntime.sleep(600)");
    let spec = CommandSpec { timeout: Duration::from_secs(60), ..working("python3", &["t.py"]) };
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| s.runner.run(&s.ws, &spec, &cancel).unwrap());
        // Blocks until the program is really running.
        fs::read(&fifo).unwrap();
        cancel.cancel();
        run.join().unwrap()
    });
    assert_eq!(outcome.ending, Ending::Cancelled);
    assert!(outcome.elapsed < PATIENCE, "{:?}", outcome.elapsed);
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_flood_of_output_is_drained_and_cut() {
    let s = space();
    fs::File::create(s.path("huge.bin")).unwrap().set_len(1 << 30).unwrap();
    s.low("true", &[]);
    let before = resident_kib();
    let outcome = s.low("cat", &["huge.bin"]);
    assert_eq!(
        (outcome.ending, outcome.stdout_bytes, outcome.truncated),
        (Ending::Exited(0), 1 << 30, true)
    );
    assert!(outcome.stdout.len() <= 1 << 20);
    let (flood, _) = timed(&s, "import sys\nwhile True: sys.stderr.write('x' * 65536)", 1);
    assert_eq!((flood.ending, flood.truncated), (Ending::TimedOut, true));
    assert!(flood.stderr.len() + flood.stdout.len() <= 1 << 20);
    let (split, _) = timed(&s, "print('я' * 2_000_000)", 20);
    assert!(split.truncated && !split.stdout.contains('\u{fffd}'));
    assert!(resident_kib() - before < 64 << 10, "{} KiB more", resident_kib() - before);
}

#[test]
fn a_fork_bomb_stays_in_its_pot() {
    let s = space();
    let Some(limit) = detect_isolation().process_limit else { return };
    let mark = format!("atelier-bomb-{}", std::process::id());
    let (outcome, took) = timed(
        &s,
        &format!(
            "import os, sys\nsys.argv.append('{mark}')\nn = 0\nwhile True:\n  try: os.fork()\n  \
             except OSError as e:\n    os.write(1, b'full ' + str(e.errno).encode() + b'\\n'); \
             break\nimport time; time.sleep(600)"
        ),
        2,
    );
    assert_eq!(outcome.ending, Ending::TimedOut);
    assert!(
        outcome.stdout.contains("full 11") || outcome.stdout.contains("full 12"),
        "limit {limit}: {}",
        outcome.stdout
    );
    assert!(took < PATIENCE, "{took:?}");
}
