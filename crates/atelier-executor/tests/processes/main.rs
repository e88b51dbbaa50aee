//! Commands in the sandbox: what they may do, what they may not do, and that they end.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod git;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atelier_executor::{
    Access, Cancel, CommandSpec, Ending, Error, Options, Outcome, Runner, RunnerOptions,
    Toolchains, Workspace, detect_isolation,
};
use tempfile::TempDir;

struct Space {
    dir: TempDir,
    ws: Workspace,
    runner: Runner,
}

fn space() -> Space {
    let dir = tempfile::tempdir().unwrap();
    for name in ["ws", "out", "state"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("out/secret.txt"), "SECRET-42").unwrap();
    let ws = Workspace::open(dir.path().join("ws"), Options::default()).unwrap();
    let runner = Runner::new(&ws, common::options(dir.path().join("state"))).unwrap();
    Space { dir, ws, runner }
}

impl Space {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("ws").join(name)
    }
    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fn pwned(&self) -> bool {
        self.dir.path().join("out/PWNED").exists()
    }
    fn run(&self, spec: &CommandSpec) -> Outcome {
        self.runner.run(&self.ws, spec, &Cancel::new().unwrap()).unwrap()
    }
    fn low(&self, program: &str, args: &[&str]) -> Outcome {
        self.run(&CommandSpec::new(program, args.iter().copied()))
    }
    fn work(&self, program: &str, args: &[&str]) -> Outcome {
        self.run(&working(program, args))
    }
    fn python(&self, code: &str) -> Outcome {
        self.put("t.py", code);
        self.work("python3", &["t.py"])
    }
}

fn working(program: &str, args: &[&str]) -> CommandSpec {
    CommandSpec { access: Access::Workspace, ..CommandSpec::new(program, args.iter().copied()) }
}

fn ok(outcome: &Outcome) -> &str {
    assert_eq!(outcome.ending, Ending::Exited(0), "{} {}", outcome.stdout, outcome.stderr);
    &outcome.stdout
}

#[test]
fn a_command_runs_in_the_workspace_and_answers() {
    let s = space();
    s.put("src/a", "hello\n");
    assert_eq!(ok(&s.low("pwd", &[])).trim_end(), s.ws.root().to_str().unwrap());
    assert_eq!(ok(&s.low("cat", &["src/a"])), "hello\n");
    let there = CommandSpec {
        cwd: atelier_core::path::WorkspacePath::root().join("src").unwrap(),
        ..CommandSpec::new("cat", ["a"])
    };
    assert_eq!(ok(&s.run(&there)), "hello\n");
    let failed = s.low("ls", &["nope"]);
    assert_eq!(failed.ending, Ending::Exited(2));
    assert!(failed.stderr.contains("nope"));
    println!("{}", failed.isolation);
}

#[test]
fn the_environment_is_clean() {
    let s = space();
    let text = ok(&s.low("env", &[])).to_owned();
    assert!(
        std::env::var_os("CARGO_MANIFEST_DIR").is_some() && !text.contains("CARGO_MANIFEST_DIR"),
        "{text}"
    );
    assert!(text.contains("TERM=dumb") && text.contains("LANG=C.UTF-8"));
    let home = text.lines().find_map(|line| line.strip_prefix("HOME=")).unwrap();
    assert!(
        home.starts_with(s.dir.path().canonicalize().unwrap().join("state").to_str().unwrap()),
        "{home}"
    );
}

#[test]
fn looking_commands_can_write_nowhere_and_run_nothing_of_the_workspace() {
    let s = space();
    if !detect_isolation().enforces_read_only() {
        return;
    }
    s.put("f", "x");
    s.put("evil.sh", "#!/bin/sh\ntouch ../out/PWNED");
    fs::set_permissions(s.path("evil.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let base = s.dir.path();
    for (program, args) in [
        ("touch", vec!["new".to_owned()]),
        ("touch", vec![base.join("out/PWNED").display().to_string()]),
        ("rm", vec!["f".to_owned()]),
        ("truncate", vec!["-s0".to_owned(), "f".to_owned()]),
        ("chmod", vec!["777".to_owned(), "f".to_owned()]),
        ("touch", vec!["-d2000-01-01".to_owned(), "f".to_owned()]),
        ("ln", vec!["f".to_owned(), "g".to_owned()]),
        ("mkdir", vec!["d".to_owned()]),
        ("sh", vec!["./evil.sh".to_owned(), "-c".to_owned()]),
        ("env", vec!["./evil.sh".to_owned()]),
        ("cat", vec![base.join("out/secret.txt").display().to_string()]),
        ("ls", vec![base.join("out").display().to_string()]),
        ("cat", vec!["/etc/shadow".to_owned()]),
        ("cat", vec!["/proc/1/root/etc/shadow".to_owned()]),
        ("mount", vec!["-t".to_owned(), "tmpfs".to_owned(), "x".to_owned(), "/tmp".to_owned()]),
        ("unshare", vec!["-U".to_owned(), "true".to_owned()]),
    ] {
        let outcome = s.run(&CommandSpec::new(program, args.clone()));
        assert_ne!(outcome.ending, Ending::Exited(0), "{program} {args:?}: {}", outcome.stdout);
        assert!(!outcome.stdout.contains("SECRET"), "{program} {args:?}");
    }
    assert!(!s.pwned());
    assert_eq!(fs::read_to_string(s.path("f")).unwrap(), "x");
    assert_eq!(fs::metadata(s.path("f")).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(s.path("")).unwrap().count(), 2);
}

#[test]
fn working_commands_write_the_workspace_and_nothing_else() {
    let s = space();
    ok(&s.work("touch", &["new"]));
    ok(&s.work("chmod", &["700", "new"]));
    ok(&s.python("import tempfile; tempfile.NamedTemporaryFile().write(b'x')"));
    if detect_isolation().landlock == 0 {
        return;
    }
    let out = s.dir.path().join("out");
    fs::set_permissions(out.join("secret.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    for code in [
        format!("open('{}/PWNED','w')", out.display()),
        format!("open('{}/secret.txt').read()", out.display()),
        format!("import os; os.chmod('{}/secret.txt', 0o777)", out.display()),
        format!("import os; os.utime('{}/secret.txt', (0,0))", out.display()),
        format!("import os; os.rename('t.py', '{}/PWNED')", out.display()),
        format!("import os; os.symlink('{}', 'l'); open('l/PWNED','w')", out.display()),
        "open('/etc/shadow').read()".to_owned(),
        "open('/tmp/atelier-test-PWNED','w')".to_owned(),
    ] {
        let outcome = s.python(&code);
        let limited = code.contains("chmod") || code.contains("utime");
        if !limited || outcome.isolation.mounts {
            assert_eq!(
                outcome.ending,
                Ending::Exited(1),
                "{code}: {}{}",
                outcome.stdout,
                outcome.stderr
            );
        }
    }
    assert!(!s.pwned());
    if detect_isolation().mounts {
        assert_eq!(
            fs::metadata(out.join("secret.txt")).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}

#[test]
fn without_network_no_socket_of_any_family_opens() {
    let s = space();
    let outcome = s.python(
        "import socket, ctypes, os\n\
         got = []\n\
         for family in range(0, 46):\n\
         \x20 for kind in (1, 2, 3, 5):\n\
         \x20   try:\n\
         \x20     socket.socket(family, kind); got.append((family, kind))\n\
         \x20   except OSError as e: pass\n\
         print(got)\n\
         try:\n\
         \x20 a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); print('datagram pair')\n\
         except OSError: pass\n\
         a, b = socket.socketpair()\n\
         a.send(b'x'); print(b.recv(1))\n\
         print('io_uring', ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0))\n",
    );
    assert_eq!(ok(&outcome), "[]\nb'x'\nio_uring -1\n");
}

#[test]
fn with_network_the_internet_families_open_and_local_services_do_not() {
    let s = space();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let local = s.dir.path().join("ws/service.sock");
    let _service = std::os::unix::net::UnixListener::bind(&local).unwrap();
    s.put(
        "t.py",
        &format!(
            "import socket\n\
             socket.create_connection(('127.0.0.1', {})).close(); print('tcp')\n\
             socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); print('udp')\n\
             try:\n\
             \x20 socket.socket(socket.AF_UNIX).connect('service.sock'); print('unix')\n\
             except OSError: pass\n",
            listener.local_addr().unwrap().port()
        ),
    );
    let outcome = s.run(&CommandSpec { network: true, ..working("python3", &["t.py"]) });
    assert_eq!(ok(&outcome), "tcp\nudp\n");
}

/// Far longer than these commands take, and far shorter than the ten minutes that they would sleep.
const PATIENCE: Duration = Duration::from_secs(60);

/// The test below runs this in a separate process: it starts a command and waits for it.
#[test]
fn helper_that_waits_for_a_command() {
    let Some(dir) = std::env::var_os("ATELIER_TEST_DIES").map(PathBuf::from) else { return };
    let ws = Workspace::open(dir.join("ws"), Options::default()).unwrap();
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let toolchains = Toolchains::detect(&home, |name| std::env::var(name).ok());
    let options =
        RunnerOptions { state_dir: dir.join("state"), toolchains, ..RunnerOptions::default() };
    let spec = CommandSpec { timeout: Duration::from_secs(300), ..working("python3", &["t.py"]) };
    Runner::new(&ws, options).unwrap().run(&ws, &spec, &Cancel::new().unwrap()).unwrap();
}

#[test]
fn when_atelier_is_killed_its_commands_end() {
    use std::io::Read;
    let s = space();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        s.path("held"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    s.put(
        "t.py",
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nf = open('held', \
         'w')\n\
         if os.fork() == 0: os.setsid()\nf.write('up'); f.flush()\ntime.sleep(600)\n",
    );
    #[expect(clippy::disallowed_methods, reason = "the test plays atelier and is killed for it")]
    let mut atelier = std::process::Command::new(std::env::current_exe().unwrap());
    atelier
        .args(["--exact", "helper_that_waits_for_a_command"])
        .env("ATELIER_TEST_DIES", s.dir.path());
    let mut atelier = atelier.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut held = fs::File::open(s.path("held")).unwrap();
    let mut up = [0; 2];
    held.read_exact(&mut up).unwrap();
    atelier.kill().unwrap();
    atelier.wait().unwrap();
    let killed = Instant::now();
    // The pipe ends when the last process that holds it has ended.
    held.read_to_end(&mut Vec::new()).unwrap();
    assert!(killed.elapsed() < PATIENCE, "{:?}", killed.elapsed());
}

#[test]
fn standard_input_is_empty() {
    let s = space();
    let outcome = s.low("grep", &["pattern"]);
    assert_eq!(outcome.ending, Ending::Exited(1));
    assert!(outcome.elapsed < PATIENCE);
}

#[test]
fn programs_come_from_the_fixed_path_only() {
    let s = space();
    s.put("ls", "#!/bin/sh\ntouch ../out/PWNED");
    fs::set_permissions(s.path("ls"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(ok(&s.low("ls", &[])), "ls\n");
    for program in ["./ls", "/bin/ls", "bin/cat", "", "..", "no-such-program", "ls\0rm"] {
        let error = s
            .runner
            .run(&s.ws, &CommandSpec::new(program, [""; 0]), &Cancel::new().unwrap())
            .unwrap_err();
        assert_eq!(error.code().as_str(), "command_not_found", "{program:?}");
    }
    let nul = s.runner.run(&s.ws, &CommandSpec::new("echo", ["a\0b"]), &Cancel::new().unwrap());
    assert!(matches!(nul, Err(Error::NulArgument)));
    assert!(!s.pwned());
}

#[test]
fn hidden_files_are_empty_for_commands() {
    let s = space();
    if !detect_isolation().mounts {
        return;
    }
    s.put(".env", "KEY=SECRET");
    s.put("private/key", "SECRET");
    s.put("open", "no secret");
    let hidden = vec![".env".into(), "private".into(), "gone".into()];
    for access in [Access::ReadOnly, Access::Workspace] {
        let spec = CommandSpec {
            hidden: hidden.clone(),
            access,
            ..CommandSpec::new("grep", ["-r", "SECRET", "."])
        };
        let outcome = s.run(&spec);
        assert_eq!(
            (outcome.ending, outcome.stdout.as_str()),
            (Ending::Exited(1), ""),
            "{}",
            outcome.stderr
        );
    }
    assert_eq!(fs::read_to_string(s.path(".env")).unwrap(), "KEY=SECRET");
}

/// The supervisor is a copy of atelier, and its command line may contain a token.
#[test]
fn no_command_sees_who_started_it() {
    let s = space();
    if !detect_isolation().mounts {
        return;
    }
    let code = "import os\nseen = [p for p in os.listdir('/proc') if p.isdigit()]\n\
                print([open(f'/proc/{p}/cmdline').read().split('\\0')[0] for p in seen], \
                os.path.exists('/proc/1'))";
    assert_eq!(ok(&s.python(code)).trim(), "['python3'] False");
}

/// Files are hidden by their path, so the folders around them cannot be moved.
#[test]
fn what_hidden_files_lie_in_is_not_moved() {
    let s = space();
    if !detect_isolation().mounts {
        return;
    }
    s.put("a/b/private/key", "SECRET");
    s.put("a/b/open", "open");
    let code = "import os\nfor old, new in [('a', 'c'), ('a/b', 'a/c'), ('a/b/private', 'a/p'), \
        ('a/b', 'd')]:\n\
                \ttry: os.rename(old, new); print('MOVED', old)\n\texcept OSError: pass\n\
                os.rename('a/b/open', 'a/b/still'); print(open('a/b/still').read())";
    s.put("t.py", code);
    let outcome =
        s.run(&CommandSpec { hidden: vec!["a/b/private".into()], ..working("python3", &["t.py"]) });
    assert_eq!(ok(&outcome), "open\n");
}

/// Compilers and package managers of the machine work inside the sandbox.
#[test]
fn compilers_and_package_managers_work_offline() {
    let s = space();
    s.put("main.c", "#include <stdio.h>\nint main(void) { puts(\"built\"); return 0; }\n");
    s.put("Makefile", "all: main\n\t./main\nmain: main.c\n\tcc -o main main.c\n");
    s.put("Cargo.toml", "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    s.put("src/main.rs", "fn main() { println!(\"built\") }\n");
    s.put(
        "package.json",
        r#"{ "name": "x", "version": "1.0.0", "scripts": { "build": "node -e \"console.log('built')\"" } }"#,
    );
    for (program, args) in [
        ("make", &["-s"][..]),
        ("cargo", &["run", "-q", "--offline"]),
        ("npm", &["run", "-s", "build"]),
        ("python3", &["-c", "import json, multiprocessing; print('built')"]),
    ] {
        let spec = CommandSpec { timeout: Duration::from_secs(120), ..working(program, args) };
        match s.runner.run(&s.ws, &spec, &Cancel::new().unwrap()) {
            Ok(outcome) => assert!(ok(&outcome).contains("built"), "{program}: {}", outcome.stderr),
            Err(Error::CommandNotFound { .. }) => println!("{program} is not installed"),
            Err(error) => panic!("{program}: {error}"),
        }
    }
}

/// The run may have had lent credentials, and its process was killed. Folders of commands that are
/// running stay.
#[test]
fn a_start_removes_what_killed_runs_left_behind() {
    let s = space();
    for name in ["ready", "go"] {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, s.path(name), fifo, mode, 0).unwrap();
    }
    s.put(
        "t.py",
        "import os\nopen('ready', 'w').write('x')\nopen('go').read()\n\
         open(os.environ['TMPDIR'] + '/still', 'w').write('here')\nprint('still here')\n",
    );
    let left = s.dir.path().join("state/tmp/0123456789abcdef");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("git-credentials"), "https://me:SECRET-42@host.invalid").unwrap();
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| s.work("python3", &["t.py"]));
        // Blocks until the program is really running.
        fs::read(s.path("ready")).unwrap();
        let options =
            RunnerOptions { state_dir: s.dir.path().join("state"), ..RunnerOptions::default() };
        Runner::new(&s.ws, options).unwrap();
        fs::write(s.path("go"), "").unwrap();
        run.join().unwrap()
    });
    assert_eq!(ok(&outcome), "still here\n");
    assert_eq!(fs::read_dir(s.dir.path().join("state/tmp")).unwrap().count(), 0);
}

#[test]
fn state_inside_the_workspace_is_refused() {
    let s = space();
    let options = RunnerOptions { state_dir: s.path("state"), ..RunnerOptions::default() };
    assert_eq!(Runner::new(&s.ws, options).unwrap_err().code().as_str(), "path_protected");
}

/// Set-user-ID files would let other users of the machine act as their owner.
#[test]
fn nothing_is_made_to_run_as_somebody_else() {
    let s = space();
    s.put(
        "id.py",
        r"import os
def tried(what, do):
    try: do(); print('DONE', what)
    except OSError as e: print(what, e.errno)
for bit in (0o4755, 0o2755):
    tried('chmod', lambda: os.chmod('id.py', bit))
    tried('fchmod', lambda: os.fchmod(os.open('id.py', os.O_RDONLY), bit))
    tried('open', lambda: os.open('new%o' % bit, os.O_CREAT | os.O_WRONLY, bit))
    tried('mknod', lambda: os.mknod('node%o' % bit, bit | 0o100000))
os.chmod('id.py', 0o755)
os.open('plain', os.O_CREAT | os.O_WRONLY, 0o755)
",
    );
    let outcome = s.work("python3", &["id.py"]);
    let printed = ok(&outcome);
    assert!(!printed.contains("DONE"), "{printed}");
    assert!(s.path("plain").exists());
}
