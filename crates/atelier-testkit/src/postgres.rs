//! A separate database in the real PostgreSQL that `make services` starts, and a whole server for a
//! single test that can be frozen and stopped.

use crate::{PATIENCE, free_port, service};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::{
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use uuid::Uuid;

const VARIABLE: &str = "ATELIER_TEST_POSTGRES_URL";

/// A database for one test. Dropping it deletes the database.
pub struct Database {
    admin_url: String,
    name: String,
}

impl Database {
    pub async fn create() -> Self {
        let admin_url = service(VARIABLE, "PostgreSQL");
        let name = format!("atelier_{}", Uuid::now_v7().simple());
        let mut admin = PgConnection::connect(&admin_url).await.unwrap_or_else(|error| {
            panic!("PostgreSQL at {VARIABLE} does not answer ({error}): make services")
        });
        let create = format!("CREATE DATABASE {name}");
        sqlx::query(AssertSqlSafe(create)).execute(&mut admin).await.unwrap();
        Self { admin_url, name }
    }

    pub fn url(&self) -> String {
        let (server, _) = self.admin_url.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name)
    }

    /// A direct connection to the database, to inspect or change it behind the server's back.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, name) = (self.admin_url.clone(), self.name.clone());
        // On its own thread with its own runtime, because the test's runtime may be shutting down.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&url).await.map_err(std::io::Error::other)?;
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                sqlx::query(AssertSqlSafe(drop))
                    .execute(&mut admin)
                    .await
                    .map_err(std::io::Error::other)
            })
        });
        if let Ok(Err(error)) = removed.join() {
            eprintln!("a test database stays behind: {error}");
        }
    }
}

/// The account of the server if the tests run as root, which PostgreSQL refuses: `nobody`.
const NOBODY: u32 = 65534;

/// A PostgreSQL server for one test, on a free port. Dropping it kills it and deletes its data.
pub struct PostgresServer {
    data: TempDir,
    process: Child,
    port: u16,
}

impl PostgresServer {
    pub async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        if is_root() {
            std::os::unix::fs::chown(data.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut initdb = program("initdb");
        initdb.arg("--pgdata").arg(data.path().join("data"));
        initdb.args(["--username=atelier", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
        let made = initdb.arg("--no-sync").current_dir(data.path()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = free_port();
        let process = launch(&data, port);
        let server = Self { data, process, port };
        server.ready().await;
        server
    }

    pub fn url(&self) -> String {
        format!("postgres://atelier@127.0.0.1:{}/postgres", self.port)
    }

    /// Stops all processes of the server, so that connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Ends all sessions and the server.
    pub fn stop(&mut self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        self.process.wait().unwrap();
    }

    /// Starts a stopped server again with the same data and port.
    pub async fn restart(&mut self) {
        self.process = launch(&self.data, self.port);
        self.ready().await;
    }

    fn signal(&self, signal: &str) {
        let mut pids = vec![self.process.id().to_string()];
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = std::fs::read_to_string(children).unwrap();
        pids.extend(children.split_whitespace().map(str::to_owned));
        // A child may have ended in the meantime.
        drop(Command::new("kill").arg(signal).args(&pids).stderr(Stdio::null()).status());
    }

    async fn ready(&self) {
        let answers = async {
            while PgConnection::connect(&self.url()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, answers).await.expect("PostgreSQL starts");
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The other processes of the server end with the first.
        self.thaw();
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

fn program(name: &str) -> Command {
    let folder = PathBuf::from(service("ATELIER_TEST_POSTGRES_PROGRAMS", "PostgreSQL"));
    let mut command = Command::new(folder.join(name));
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn launch(data: &TempDir, port: u16) -> Child {
    program("postgres")
        .arg("-D")
        .arg(data.path().join("data"))
        .args(["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"])
        .args(["-c", "unix_socket_directories=", "-c", &format!("port={port}")])
        .current_dir(data.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
