//! The real program, started, killed and restarted.

use crate::{Database, PATIENCE, ScriptedModel, User, http};
use sqlx::ConnectOptions;
use std::{
    fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// The database of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

#[derive(Clone)]
pub struct Builder {
    binary: PathBuf,
    backend: Backend,
    settings: Vec<(String, String)>,
    arguments: Vec<String>,
    /// The size of the data folder's own disk, in megabytes.
    disk: Option<u32>,
}

impl Builder {
    /// Sets a setting by its environment variable, without the prefix: `("EVENTS__KEEP_DAYS",
    /// "1")`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((format!("ATELIER_{name}"), value.to_string()));
        self
    }

    /// Sets an environment variable, without adding our prefix.
    #[must_use]
    pub fn environment(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Agents use `model` instead of OpenAI.
    #[must_use]
    pub fn model(self, model: &ScriptedModel) -> Self {
        self.environment("OPENAI_API_KEY", "sk-scripted")
            .with("PROVIDERS__OPENAI__BASE_URL", model.url())
    }

    /// Puts the data folder on a disk of its own, which the test can fill. The disk is in memory and
    /// ends with the process. Needs user namespaces.
    #[must_use]
    pub fn on_small_disk(mut self, megabytes: u32) -> Self {
        self.disk = Some(megabytes);
        self
    }

    /// The program as it is started, without arguments.
    fn program(&self, data: &Path) -> Command {
        let Some(megabytes) = self.disk else { return Command::new(&self.binary) };
        let mount = format!(
            "mount -t tmpfs -o size={megabytes}m,mode=700 tmpfs \"$1\" && shift && exec \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &mount, "sh"]).arg(data).arg(&self.binary);
        command
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Starts several nodes at the same time on one empty PostgreSQL database.
    pub async fn start_nodes(self, count: usize) -> Vec<Server> {
        let database = Arc::new(Database::create().await);
        let (builder, data) =
            (Arc::new(self.with("DATABASE_URL", database.url())), Arc::new(private_folder()));
        let node = || Server::launch(builder.clone(), data.clone(), Some(database.clone()));
        futures::future::join_all((0..count).map(|_| node())).await
    }

    /// Starts a server with a data folder that exists already. A database of its own is not made.
    pub async fn start_in(self, data: TempDir) -> Server {
        Server::launch(Arc::new(self), Arc::new(data), None).await
    }

    pub async fn start(mut self) -> Server {
        let database = match self.backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Database::create().await),
        };
        if let Some(database) = &database {
            self = self.with("DATABASE_URL", database.url());
        }
        let (data, database) = (Arc::new(private_folder()), database.map(Arc::new));
        Server::launch(Arc::new(self), data, database).await
    }
}

fn private_folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o700)).tempdir().unwrap()
}

/// Keeps the developer's own keys and Ollama out of tests.
fn without_own_models(command: &mut Command) {
    for key in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"] {
        command.env_remove(key);
    }
    // Nothing listens on this port.
    command.env("ATELIER_PROVIDERS__OLLAMA__BASE_URL", "http://127.0.0.1:9/v1");
}

/// A running server. Dropping it kills the process and removes its data.
pub struct Server {
    builder: Arc<Builder>,
    data: Arc<TempDir>,
    database: Option<Arc<Database>>,
    process: Child,
    pub url: String,
    pub http: reqwest::Client,
    greeting: Vec<String>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn build(binary: impl AsRef<Path>, backend: Backend) -> Builder {
        let binary = binary.as_ref().to_owned();
        // The default embedder needs the weights of a model, or asks the scripted model.
        Builder { binary, backend, settings: vec![], arguments: vec![], disk: None }
            .with("MEMORY__EMBEDDER__KIND", "builtin")
    }

    async fn launch(
        builder: Arc<Builder>,
        data: Arc<TempDir>,
        database: Option<Arc<Database>>,
    ) -> Self {
        let mut command = builder.program(data.path());
        command
            .args(["serve", "--data"])
            .arg(data.path())
            .args(&builder.arguments)
            .env_remove("LOG_LEVEL")
            .current_dir(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ATELIER_")) {
            command.env_remove(name);
        }
        without_own_models(&mut command);
        command.env("ATELIER_LISTEN", "127.0.0.1:0").envs(builder.settings.iter().cloned());
        let mut process =
            command.spawn().unwrap_or_else(|e| panic!("{}: {e}", builder.binary.display()));

        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, mut printed) = mpsc::unbounded_channel();
        let stdout = process.stdout.take().unwrap();
        std::thread::spawn(move || {
            BufReader::new(stdout)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(line))
        });
        let (stderr, sink) = (process.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });

        let mut greeting = Vec::new();
        let listening = async {
            while let Some(line) = printed.recv().await {
                greeting.push(line);
                if let Some(url) =
                    greeting.last().and_then(|l| l.strip_prefix("Atelier is listening on "))
                {
                    return Some(url.to_owned());
                }
            }
            None
        };
        let url = tokio::time::timeout(PATIENCE, listening).await.ok().flatten();
        let Some(url) = url else {
            drop(process.kill());
            drop(process.wait());
            panic!("the server did not start: {}", log.lock().unwrap().join("\n"));
        };
        Self { builder, data, database, process, url, http: http(), greeting, log }
    }

    /// Starts another server with the same database and secret.
    pub async fn second_node(&self) -> Server {
        assert!(self.database.is_some(), "an embedded database has one node");
        Self::launch(self.builder.clone(), self.data.clone(), self.database.clone()).await
    }

    /// Starts another server with the same database and secret, and one environment variable changed.
    pub async fn second_node_with(&self, name: &str, value: &str) -> Server {
        let mut builder = Builder::clone(&self.builder);
        builder.settings.retain(|(set, _)| set != name);
        builder.settings.push((name.to_owned(), value.to_owned()));
        Self::launch(Arc::new(builder), self.data.clone(), self.database.clone()).await
    }

    /// Kills the server with `kill -9`. Everything that is not on disk is lost.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Freezes the process: its connections stay open and it does nothing. The kernel stops the
    /// threads one after the other, so this waits until all of them have stopped.
    pub fn freeze(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.process.id());
        let is_stopped = |task: io::Result<fs::DirEntry>| {
            let state = fs::read_to_string(task.unwrap().path().join("stat"));
            // The state is the first field after the name, which is in parentheses.
            state.is_ok_and(|state| state.rsplit_once(") ").unwrap().1.starts_with('T'))
        };
        while !fs::read_dir(&tasks).unwrap().all(is_stopped) {
            std::thread::yield_now();
        }
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Sends a signal to the process, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Kills the server and starts it again with the same data. The address changes.
    pub async fn restart(mut self) -> Self {
        self.kill();
        self.restart_killed().await
    }

    /// Sets an environment variable for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        let mut builder = Builder::clone(&self.builder);
        builder.settings.retain(|(set, _)| set != name);
        builder.settings.push((name.to_owned(), value.to_owned()));
        self.builder = Arc::new(builder);
    }

    /// Kills the server and starts it again with the same data and with one variable changed or
    /// removed.
    pub async fn restart_with(mut self, name: &str, value: Option<&str>) -> Self {
        drop(self.process.kill());
        drop(self.process.wait());
        let mut builder = Builder::clone(&self.builder);
        builder.settings.retain(|(set, _)| set != name);
        builder.settings.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        self.builder = Arc::new(builder);
        self.restart_killed().await
    }

    /// Starts a server again that has already ended.
    pub async fn restart_killed(self) -> Self {
        Self::launch(self.builder.clone(), self.data.clone(), self.database.clone()).await
    }

    /// Asks the server to stop, as an operator does, and returns its exit status.
    pub async fn terminate(&mut self) -> std::process::ExitStatus {
        self.signal("-TERM");
        crate::eventually("the server stops", async || self.process.try_wait().unwrap()).await
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    pub fn database(&self) -> &Database {
        self.database.as_ref().expect("a server on PostgreSQL")
    }

    /// A direct connection to the server's database, to inspect or change it behind the server's
    /// back.
    pub async fn sql(&self) -> Sql {
        match &self.database {
            Some(database) => Sql::Postgres(database.connect().await),
            None => Sql::Sqlite(
                sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(self.data().join("atelier.db"))
                    .connect()
                    .await
                    .unwrap(),
            ),
        }
    }

    /// The data folder as the process sees it, which may be on a disk of its own.
    pub fn mounted_data(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid()));
        root.join(self.data.path().strip_prefix("/").unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The lines that the server printed at its start.
    pub fn greeting(&self) -> String {
        self.greeting.join("\n")
    }

    /// Everything that the server has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Runs another command of the same program against this server's data.
    pub fn command(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(&self.builder.binary);
        without_own_models(&mut command);
        command.args(arguments).envs(self.builder.settings.iter().cloned());
        let data = if self.builder.disk.is_some() {
            self.mounted_data()
        } else {
            self.data.path().to_owned()
        };
        command.env("ATELIER_DATA", data).current_dir(self.data.path());
        command.output().unwrap()
    }

    /// A user of the default tenant, with a token made by `atelier token`.
    pub fn user(&self, name: &str) -> User {
        self.user_with(name, &[])
    }

    /// A user of the default tenant, made with further arguments, such as `--role admin`.
    pub fn user_with(&self, name: &str, arguments: &[&str]) -> User {
        let output = self.command(&[&["token", "--user", name], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        User::new(self, String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }

    /// A program of a user: a `client` or `agent` token for the project at this path.
    pub fn program(&self, name: &str, role: &str, project: &str) -> User {
        let project = project.rsplit('/').next().unwrap();
        self.user_with(name, &["--role", role, "--project", project])
    }

    /// A caller with this token, or without a token.
    pub fn bearer(&self, token: impl Into<String>) -> User {
        User::new(self, token.into())
    }

    /// All metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> String {
        let answer = self.http.get(format!("{}/metrics", self.url)).send().await.unwrap();
        answer.text().await.unwrap()
    }

    /// The value of a metric, with its labels as Prometheus writes them, or without labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Resident memory of the server, in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    }
}

/// A connection to the server's own database.
pub enum Sql {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
}

impl Sql {
    pub async fn run(&mut self, statement: &'static str) {
        match self {
            Sql::Sqlite(conn) => drop(sqlx::query(statement).execute(conn).await.unwrap()),
            Sql::Postgres(conn) => drop(sqlx::query(statement).execute(conn).await.unwrap()),
        }
    }

    /// The single number that a query returns.
    pub async fn count(&mut self, query: &'static str) -> i64 {
        match self {
            Sql::Sqlite(conn) => sqlx::query_scalar(query).fetch_one(conn).await.unwrap(),
            Sql::Postgres(conn) => sqlx::query_scalar(query).fetch_one(conn).await.unwrap(),
        }
    }

    /// Keeps the server from changing (and, on PostgreSQL, from reading) agents until this is
    /// dropped or rolled back.
    pub async fn hold_agents(&mut self) {
        match self {
            Sql::Sqlite(_) => self.run("BEGIN IMMEDIATE").await,
            Sql::Postgres(_) => {
                self.run("BEGIN").await;
                self.run("LOCK TABLE agents IN ACCESS EXCLUSIVE MODE").await;
            }
        }
    }

    pub async fn release(&mut self) {
        self.run("ROLLBACK").await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The test may have killed it already.
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            eprintln!("--- log of the server\n{}\n---", self.log());
        }
    }
}
