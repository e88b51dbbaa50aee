//! The floor of a tool call: a bare server that answers a request when one row is on disk. It
//! commits all waiting requests together. A tool call needs at least two such answers: its request
//! and its result, each sent over HTTP and committed.

use crate::{bare_server, process::Process};
use anyhow::{Context, Result};
use atelier_testkit::{Backend, Database};
use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::any};
use rusqlite::{Connection, params};
use sqlx::Connection as _;
use std::{path::PathBuf, process::Command};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};

/// Where the server stores its rows.
#[derive(Clone, clap::Args)]
pub(crate) struct RowStorage {
    #[arg(long, conflicts_with = "url")]
    file: Option<PathBuf>,
    #[arg(long)]
    url: Option<String>,
}

/// A running server, and the place of its rows.
pub(crate) struct DurableServer {
    pub(crate) process: Process,
    _folder: TempDir,
    _database: Option<Database>,
}

impl DurableServer {
    pub(crate) async fn start(backend: Backend) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("durable-server");
        let database = match backend {
            Backend::Sqlite => {
                command.arg("--file").arg(folder.path().join("floor.db"));
                None
            }
            Backend::Postgres => {
                let database = Database::create().await;
                command.args(["--url", &database.url()]);
                Some(database)
            }
        };
        let (process, _) = Process::start(command).await?;
        Ok(Self { process, _folder: folder, _database: database })
    }
}

/// A request that waits for its row to be on disk.
type Waiting = (Bytes, oneshot::Sender<()>);

/// As many requests as the store takes into one commit.
const GROUP: usize = 128;

pub(crate) fn run(place: RowStorage) -> Result<()> {
    bare_server::end_with_input();
    tokio::runtime::Runtime::new()?.block_on(async {
        let (sender, waiting) = mpsc::channel::<Waiting>(1024);
        let committing = match (place.file, place.url) {
            (Some(file), _) => {
                let db = open(&file)?;
                tokio::task::spawn_blocking(move || commit_lite(db, waiting))
            }
            (None, Some(url)) => {
                let mut db = sqlx::PgConnection::connect(&url).await?;
                sqlx::query("CREATE TABLE floor (body BYTEA NOT NULL)").execute(&mut db).await?;
                tokio::spawn(commit_pg(db, waiting))
            }
            (None, None) => anyhow::bail!("where to? --file or --url"),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        bare_server::greet(&listener.local_addr()?.to_string());
        let router = Router::new().fallback(any(keep)).with_state(sender);
        use axum::serve::ListenerExt;
        let serving = axum::serve(listener.tap_io(|stream| drop(stream.set_nodelay(true))), router);
        tokio::select! {
            served = serving => Ok(served?),
            committed = committing => committed?,
        }
    })
}

async fn keep(State(sender): State<mpsc::Sender<Waiting>>, body: Bytes) -> (StatusCode, Bytes) {
    let (done, kept) = oneshot::channel();
    let sent = sender.send((body.clone(), done)).await;
    match sent.is_ok() && kept.await.is_ok() {
        true => (StatusCode::OK, body),
        false => (StatusCode::INTERNAL_SERVER_ERROR, Bytes::new()),
    }
}

/// Opens the database with the settings of `Db::open_lite` in the store.
fn open(file: &std::path::Path) -> Result<Connection> {
    let db = Connection::open(file)?;
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "full")?;
    db.execute("CREATE TABLE floor (body BLOB NOT NULL) STRICT", [])?;
    Ok(db)
}

fn commit_lite(mut db: Connection, mut waiting: mpsc::Receiver<Waiting>) -> Result<()> {
    let mut group = Vec::new();
    while waiting.blocking_recv_many(&mut group, GROUP) > 0 {
        let tx = db.transaction()?;
        {
            let mut insert = tx.prepare_cached("INSERT INTO floor VALUES (?1)")?;
            for (body, _) in &group {
                insert.execute(params![&body[..]])?;
            }
        }
        tx.commit()?;
        answer(&mut group);
    }
    Ok(())
}

fn answer(group: &mut Vec<Waiting>) {
    for (_, done) in group.drain(..) {
        // The caller may have disconnected.
        done.send(()).ok();
    }
}

async fn commit_pg(mut db: sqlx::PgConnection, mut waiting: mpsc::Receiver<Waiting>) -> Result<()> {
    let mut group = Vec::new();
    while waiting.recv_many(&mut group, GROUP).await > 0 {
        let bodies: Vec<Vec<u8>> = group.iter().map(|(body, _)| body.to_vec()).collect();
        // One statement is one transaction.
        sqlx::query("INSERT INTO floor SELECT unnest($1::bytea[])")
            .bind(bodies)
            .execute(&mut db)
            .await
            .context("the floor cannot commit")?;
        answer(&mut group);
    }
    Ok(())
}
