//! A folder, a project, and `atelier connect`, which connects them.

use crate::BINARY;
use atelier_testkit::{Server, User, eventually};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use uuid::Uuid;

/// A user's machine, with its own home and a folder to work in.
pub(crate) struct Machine {
    home: TempDir,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let machine = Self { home: tempfile::tempdir().unwrap() };
        std::fs::create_dir(machine.root()).unwrap();
        machine
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.home.path().join("shop")
    }

    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root().join(path)).unwrap()
    }

    /// What commands have written to a file of their own home. It is seen while they run, other
    /// than what they change in the folder.
    pub(crate) fn in_commands_home(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.commands_home()?.join(name)).ok()
    }

    /// Writes a file that commands find in their own home.
    pub(crate) fn write_in_commands_home(&self, name: &str) {
        std::fs::write(self.commands_home().unwrap().join(name), "").unwrap();
    }

    fn commands_home(&self) -> Option<PathBuf> {
        let workspaces = std::fs::read_dir(self.home().join(".cache/atelier/workspaces")).ok()?;
        workspaces.map(|workspace| workspace.unwrap().path().join("home")).next()
    }

    /// Writes the owner's rules and settings.
    pub(crate) fn rules(&self, text: &str) {
        let folder = self.home.path().join(".config/atelier");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("client.toml"), text).unwrap();
    }

    /// Every file below the folder with its content.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        fn visit(folder: &Path, found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    visit(&path, found);
                    found.insert(path, None);
                } else {
                    let content = std::fs::read(&path).unwrap();
                    found.insert(path, Some(content));
                }
            }
        }
        let mut found = BTreeMap::new();
        visit(&self.root(), &mut found);
        found
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The program, as the owner of the machine starts it.
    pub(crate) fn program(&self, arguments: &[&str]) -> Command {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = Command::new(BINARY);
        command.args(arguments).env_clear().env("HOME", self.home()).env("PATH", "/usr/bin:/bin");
        command.current_dir(self.home());
        command
    }

    pub(crate) fn command(&self, setup: &ProjectSetup, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.program(&["connect"]);
        command.arg(self.root()).args(["--server", url, "--project", &setup.name]).args(arguments);
        command.env("ATELIER_TOKEN", &setup.user.token);
        command
    }

    /// Starts the client and waits until it is connected.
    pub(crate) async fn connect(&self, setup: &ProjectSetup, url: &str) -> ConnectProcess {
        self.connect_with(setup, url, &[]).await
    }

    pub(crate) async fn connect_with(
        &self,
        setup: &ProjectSetup,
        url: &str,
        arguments: &[&str],
    ) -> ConnectProcess {
        let client = ConnectProcess::start(self.command(setup, url, arguments));
        client.prints("  connected\n").await;
        client
    }
}

/// A running `atelier connect`. Dropping it kills the process.
pub(crate) struct ConnectProcess {
    process: Child,
    output: Arc<Mutex<String>>,
}

impl ConnectProcess {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = Arc::new(Mutex::new(String::new()));
        let (stdout, stderr) = (process.stdout.take().unwrap(), process.stderr.take().unwrap());
        collect(stdout, output.clone());
        collect(stderr, output.clone());
        Self { process, output }
    }

    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    pub(crate) async fn prints(&self, words: &str) {
        eventually(words, async || self.output().contains(words).then_some(())).await;
    }

    /// Kills the client with `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Stops the client until [`Self::thaw`].
    pub(crate) fn freeze(&self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }

    pub(crate) fn thaw(&self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    }

    /// Interrupts the client, as a person does with Ctrl-C.
    pub(crate) fn signal(&self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// Interrupts the client and waits until it has ended.
    pub(crate) async fn interrupt(&mut self) {
        self.signal();
        let status = self.ended().await;
        assert!(status.success(), "{status} {}", self.output());
    }

    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        eventually("the client ends", async || self.process.try_wait().unwrap()).await
    }
}

fn collect(stream: impl std::io::Read + Send + 'static, sink: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            sink.lock().unwrap().push_str(&format!("{line}\n"));
        }
    });
}

impl Drop for ConnectProcess {
    fn drop(&mut self) {
        // The client may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            eprintln!("--- output of the client\n{}\n---", self.output());
        }
    }
}

/// A project and its owner.
#[derive(Clone)]
pub(crate) struct ProjectSetup {
    pub(crate) user: User,
    pub(crate) project: String,
    pub(crate) name: String,
}

impl ProjectSetup {
    pub(crate) async fn new(user: User) -> Self {
        let name = format!("shop {}", Uuid::now_v7());
        let project = user.project(&name).await;
        Self { user, project, name }
    }

    pub(crate) async fn post(&self, rest: &str, body: Value) -> atelier_testkit::Answer {
        self.user.post(&format!("{}/{rest}", self.project), body).await
    }

    pub(crate) async fn execute(&self, tool: &str, params: Value) -> Value {
        self.post("tools/execute", json!({"tool_name": tool, "tool_params": params}))
            .await
            .expect(200)
    }

    pub(crate) async fn show(&self, call: &Value) -> Value {
        let path = format!("{}/tools/{}", self.project, call["tool_id"].as_str().unwrap());
        self.user.get(&path).await.expect(200)
    }

    /// Waits until the call is in this state, and returns it.
    pub(crate) async fn until(&self, call: &Value, status: &str) -> Value {
        eventually(status, async || {
            let now = self.show(call).await;
            let settled = ["completed", "failed", "denied", "rejected", "expired"];
            let wrong = now["status"] != status && settled.iter().any(|end| now["status"] == *end);
            assert!(!wrong, "waited for {status}: {now}");
            (now["status"] == status).then_some(now)
        })
        .await
    }

    /// Requests a call, waits until a person is asked, and approves it.
    pub(crate) async fn approved(&self, tool: &str, params: Value) -> Value {
        let call = self.execute(tool, params).await;
        let asked = self.until(&call, "pending_approval").await;
        self.decide(&asked, "approve", json!({})).await;
        asked
    }

    pub(crate) async fn decide(&self, call: &Value, how: &str, body: Value) -> Value {
        let approval = call["approval_id"].as_str().unwrap();
        self.post(&format!("approvals/{approval}/{how}"), body).await.expect(200)
    }

    pub(crate) async fn clients(&self) -> Vec<Value> {
        let list = self.user.get(&format!("{}/clients", self.project)).await.expect(200);
        list["clients"].as_array().unwrap().clone()
    }
}

/// Reads a request over HTTP, up to the end of its head.
pub(crate) async fn request_head(connection: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if connection.read_buf(&mut head).await.unwrap_or(0) == 0 {
            break;
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A proxy with a fixed address, in front of a server whose address changes when it is restarted.
/// Its connections can be made to fail.
pub(crate) struct FixedProxy {
    pub(crate) url: String,
    target: Arc<Mutex<String>>,
    open: Arc<Mutex<Vec<JoinHandle<()>>>>,
    listening: JoinHandle<()>,
}

impl FixedProxy {
    pub(crate) async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target = Arc::new(Mutex::new(String::new()));
        let open = Arc::new(Mutex::new(Vec::new()));
        let (goal, connections) = (target.clone(), open.clone());
        let listening = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let goal = goal.lock().unwrap().clone();
                let connection = tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(goal).await {
                        drop(copy_bidirectional(&mut near, &mut far).await);
                    }
                });
                connections.lock().unwrap().push(connection);
            }
        });
        let proxy = Self { url, target, open, listening };
        proxy.point_to(server);
        proxy
    }

    pub(crate) fn point_to(&self, server: &Server) {
        *self.target.lock().unwrap() = server.url.trim_start_matches("http://").to_owned();
    }

    /// Closes every connection. New connections work.
    pub(crate) fn cut(&self) {
        self.open.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }

    /// Lets nothing through until a new target is set.
    pub(crate) fn block(&self) {
        "127.0.0.1:9".clone_into(&mut self.target.lock().unwrap());
        self.cut();
    }
}

impl Drop for FixedProxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}
