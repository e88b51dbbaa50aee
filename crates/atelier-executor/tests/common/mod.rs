//! The fixture of the attack corpora: `BASE/{ws,out,home,state}` with the files their README names.
#![allow(dead_code, reason = "every test binary uses its own part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use atelier_core::gate::ToolOutcome;
use atelier_core::path::Roots;
use atelier_core::policy::Policy;
use atelier_core::policy::call::ToolCall;
use atelier_core::policy::verdict::Judgement;
use atelier_executor::{
    Approval, Cancel, Functions, GitIdentity, LayerOptions, Layers, Options, Origin, Runner,
    RunnerOptions, Toolchains, Tools, Workspace,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Fixture {
    base: TempDir,
    pub(crate) ws: Workspace,
    pub(crate) runner: Runner,
    pub(crate) roots: Roots,
    pub(crate) layers: Layers,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        for dir in ["ws/src", "out", "home", "state"] {
            fs::create_dir_all(base.path().join(dir)).unwrap();
        }
        for (name, text) in [
            ("ws/notes.txt", "notes\n"),
            ("ws/src/main.rs", "fn main() {} // TODO\n"),
            ("ws/src/a.py", "print(1)\n"),
            ("ws/main.c", "int main(void) { return 0; }\n"),
            ("ws/app.js", "console.log(1)\n"),
            ("ws/s.py", "import os\nprint(dict(os.environ))\n"),
            ("out/secret.txt", "SECRET-42"),
        ] {
            fs::write(base.path().join(name), text).unwrap();
        }
        let root = base.path().canonicalize().unwrap().join("ws");
        let ws = Workspace::open(&root, Options { durable: false, ..Options::default() }).unwrap();
        let runner = Runner::new(&ws, options(base.path().join("state"))).unwrap();
        let roots =
            Roots::announced(root.to_str().unwrap()).also(base.path().join("ws").to_str().unwrap());
        let state = base.path().join("state");
        let layers = Layers::open(&state, &ws, LayerOptions::default()).unwrap();
        Self { base, ws, runner, roots, layers }
    }

    pub(crate) fn base(&self) -> &Path {
        self.base.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().join("ws").join(name)
    }

    pub(crate) fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn tools(&self) -> Tools<'_> {
        Tools {
            workspace: &self.ws,
            runner: Some(&self.runner),
            policy: Policy::builtin(),
            roots: &self.roots,
            functions: Functions::builtin(),
            layers: Some(&self.layers),
            origin: Origin::local(),
        }
    }

    /// Runs one line of bash in `ws`, with the variables of the corpora. Returns false if it
    /// failed, for example because creating a device needs root.
    pub(crate) fn bash(&self, line: &str) -> bool {
        #[expect(clippy::disallowed_methods, reason = "a fixture is made outside the sandbox")]
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", line])
            .current_dir(self.path(""))
            .env("BASE", self.base())
            .env("WS", self.base().join("ws"))
            .env("OUT", self.base().join("out"))
            .env("HOME", self.base().join("home"))
            .envs(["AUTHOR", "COMMITTER"].iter().flat_map(|who| {
                [(format!("GIT_{who}_NAME"), "a"), (format!("GIT_{who}_EMAIL"), "a@b")]
            }));
        bash.output().unwrap().status.success()
    }

    /// Replaces `$WS`, `$WS2` and `$OUT` at the beginning of a path.
    pub(crate) fn expand(&self, path: &str) -> String {
        for (name, dir) in [("$WS2", "ws2"), ("$WS", "ws"), ("$OUT", "out")] {
            if let Some(rest) = path.strip_prefix(name) {
                return format!("{}{rest}", self.base().join(dir).display());
            }
        }
        path.to_owned()
    }

    /// Runs a call for the person at the keyboard: everything below DENY is allowed.
    pub(crate) fn call(&self, tool: &str, params: Value) -> ToolOutcome {
        let (call, judgement) = Policy::builtin().judge_request(tool, params, &self.roots);
        match call {
            Ok(call) => self.tools().execute(&call, &Approval::full(), &Cancel::new().unwrap()),
            Err(_) => ToolOutcome::refused(&judgement),
        }
    }

    pub(crate) fn judge(&self, tool: &str, params: Value) -> Judgement {
        let (call, judgement) = Policy::builtin().judge_request(tool, params, &self.roots);
        call.map_or(judgement, |call: ToolCall| self.tools().judge(&call))
    }

    /// Everything below `dir`: names, kinds, contents, modes.
    pub(crate) fn snapshot(&self, dir: &str) -> BTreeMap<PathBuf, String> {
        use std::os::unix::fs::MetadataExt;
        let mut seen = BTreeMap::new();
        let mut todo = vec![self.base().join(dir)];
        while let Some(path) = todo.pop() {
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = match meta.is_file() && meta.len() < 1 << 20 {
                true => String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
                false => String::new(),
            };
            if meta.is_dir() {
                todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            seen.insert(path, format!("{:o} {} {content}", meta.mode(), meta.ino()));
        }
        seen
    }
}

/// The cases of a corpus, one per line. A line that is not JSON (a lone surrogate) is returned as
/// text.
pub(crate) fn corpus(name: &str) -> Vec<Result<Value, String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../atelier-core/tests/data").join(name);
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| line.trim_end_matches(','))
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).map_err(|_| line.to_owned()))
        .collect()
}

pub(crate) fn parse(f: &Fixture, tool: &str, params: Value) -> ToolCall {
    ToolCall::parse(tool, params, &f.roots, Policy::builtin().limits()).unwrap()
}

/// Runs a call with the given approval.
pub(crate) fn approved(f: &Fixture, tool: &str, params: Value, approval: &Approval) -> ToolOutcome {
    f.tools().execute(&parse(f, tool, params), approval, &Cancel::new().unwrap())
}

pub(crate) fn git(args: &[&str]) -> Value {
    json!({ "command": "git", "args": args })
}

/// Whether the test goes on here. Root may read and enter every folder, so as root the test runs
/// again in a child process that is somebody else, and has passed if that one did.
pub(crate) fn is_not_root(test: &str) -> bool {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    // The folders above the program may be closed to others; this path does not go through them.
    #[expect(clippy::disallowed_methods, reason = "the test runs itself")]
    let mut again = std::process::Command::new("/proc/self/exe");
    again
        .args(["--exact", test, "--nocapture"])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .env("TMPDIR", "/tmp")
        .env("HOME", "/nonexistent");
    let done = again.output().unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && printed.contains("1 passed"), "{printed}");
    false
}

/// The options of a runner with this machine's toolchains and an author of commits.
pub(crate) fn options(state_dir: PathBuf) -> RunnerOptions {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    RunnerOptions {
        state_dir,
        toolchains: Toolchains::detect(&home, |name| std::env::var(name).ok()),
        git: GitIdentity {
            name: Some("Ada".into()),
            email: Some("ada@example.org".into()),
            credentials: None,
        },
        environment: Vec::new(),
    }
}
