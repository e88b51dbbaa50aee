//! The floor of durable writes: a loop that commits the rows of `POST project` in groups and does
//! nothing else.
//!
//! It uses the same tables, indexes, settings and bytes: the server created the database, and the
//! rows are copies of its first project. Each project has one row in `projects`, four in `agents`
//! and five in `events`; each commit updates one counter in `users`. There is no HTTP, token, JSON,
//! savepoint or thread between the loop and the database.

mod lite;
mod pg;

use anyhow::Result;
use atelier_testkit::{Backend, Server};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The rows of a new project.
struct Template {
    tenant: String,
    user: Uuid,
    workspace: String,
    settings: String,
    /// The name and configuration of each agent.
    agents: Vec<(String, String)>,
    /// The name and data of each event.
    events: Vec<(String, String)>,
}

pub(crate) enum Loop {
    Lite(Box<lite::Lite>),
    Pg(Vec<pg::Lane>),
}

impl Loop {
    /// A loop on the database of a server that was killed.
    pub(crate) async fn over(server: &Server, backend: Backend) -> Result<Self> {
        Ok(match backend {
            Backend::Sqlite => {
                Loop::Lite(Box::new(lite::Lite::open(&server.data().join("atelier.db"))?))
            }
            Backend::Postgres => Loop::Pg(pg::open(server.database()).await?),
        })
    }

    /// Writes this many projects.
    pub(crate) async fn projects(&mut self, count: usize) -> Result<()> {
        match self {
            Loop::Lite(lite) => lite.commit(count),
            Loop::Pg(lanes) => lanes[0].commit(count).await,
        }
    }

    /// Commits groups of `group` projects for `window`. Returns the number of projects per second.
    pub(crate) async fn for_time(&mut self, window: Duration, group: usize) -> Result<f64> {
        let began = Instant::now();
        let end = began + window;
        let written = match self {
            // Blocks the runtime, which has nothing else to do.
            Loop::Lite(lite) => {
                let mut written = 0;
                while Instant::now() < end {
                    lite.commit(group)?;
                    written += group;
                }
                written
            }
            // The lanes share the requests that are in progress.
            Loop::Pg(lanes) => {
                let used = lanes.len().min(group);
                let group = group.div_ceil(used);
                let lanes = lanes[..used].iter_mut().map(|lane| async move {
                    let mut written = 0;
                    while Instant::now() < end {
                        lane.commit(group).await?;
                        written += group;
                    }
                    anyhow::Ok(written)
                });
                futures::future::try_join_all(lanes).await?.into_iter().sum()
            }
        };
        Ok(written as f64 / began.elapsed().as_secs_f64())
    }
}

/// A name with the same length as the names in the load.
fn name(id: Uuid) -> String {
    let id = id.simple().to_string();
    format!("loop-{}", &id[18..])
}
