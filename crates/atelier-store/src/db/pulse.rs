//! Whether PostgreSQL answers at all.
//!
//! A statement may be slow, and nobody can tell by waiting for it whether its answer will come. So
//! a connection of its own asks the simplest question twice a second. While it gets no answer,
//! statements fail instead of waiting, and requests are refused at once.

use super::DbError;
use sqlx::{PgConnection, postgres::PgConnectOptions};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const INTERVAL: Duration = Duration::from_millis(500);
/// How long the database may take to answer the question.
const PATIENCE: Duration = Duration::from_millis(2500);

#[derive(Clone)]
pub(crate) struct Pulse {
    beating: watch::Receiver<bool>,
    stop: CancellationToken,
}

impl Pulse {
    pub(crate) fn start(options: PgConnectOptions) -> Self {
        let (sender, beating) = watch::channel(true);
        let stop = CancellationToken::new();
        let end = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = watch_database(options, &sender) => {}
                () = end.cancelled() => {}
            }
        });
        Self { beating, stop }
    }

    pub(crate) fn is_beating(&self) -> bool {
        *self.beating.borrow()
    }

    /// Returns when the database stops answering.
    pub(crate) async fn stops(&self) {
        let mut beating = self.beating.clone();
        if beating.wait_for(|beating| !beating).await.is_err() {
            // Nobody watches any more: the store is closing.
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }
}

/// Asks the database until nobody wants to know.
async fn watch_database(options: PgConnectOptions, beating: &watch::Sender<bool>) {
    let mut conn = None;
    while !beating.is_closed() {
        let mut answer = ask(&options, &mut conn).await;
        let lost = answer.is_err() && conn.take().is_some();
        if lost && !matches!(answer, Err(DbError::PoolTimedOut)) {
            // Only the connection may be lost, as after a restart of the database.
            answer = ask(&options, &mut conn).await;
        }
        let changed =
            beating.send_if_modified(|was| std::mem::replace(was, answer.is_ok()) != *was);
        match answer {
            Ok(()) if changed => tracing::info!("the database answers again"),
            Err(error) if changed => {
                tracing::error!(%error, "the database does not answer; requests are refused");
            }
            _ => {}
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn ask(options: &PgConnectOptions, conn: &mut Option<PgConnection>) -> Result<(), DbError> {
    let ask = async {
        let conn = match conn {
            Some(conn) => conn,
            None => conn.insert(super::pg::open(options).await?),
        };
        Ok(sqlx::raw_sql("SELECT 1").execute(conn).await.map(drop)?)
    };
    tokio::time::timeout(PATIENCE, ask).await.unwrap_or(Err(DbError::PoolTimedOut))
}
