//! The time from start to ready, and the memory of an idle server.

use crate::{
    Plan, bare_loop,
    bare_server::Answers,
    process::Process,
    report::{Aim, Report, Unit, milliseconds},
};
use anyhow::Result;
use atelier_testkit::{Backend, Server};
use std::{process::Command, time::Duration};

const STARTS: usize = 5;
const PROJECTS: usize = 1000;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let (mut empty, mut existing, mut bare) = (vec![], vec![], vec![]);
    let (mut idle, mut bare_idle) = (vec![], vec![]);
    let filled = filled(plan).await?;
    for _ in 0..STARTS {
        let (process, took) = plain_answers().serve().await?;
        settle().await;
        bare.push(milliseconds(took));
        bare_idle.push(megabytes(process.memory()?));

        let fresh = Fresh::new(plan).await?;
        let (process, took) = Process::start(fresh.command(plan)).await?;
        settle().await;
        empty.push(milliseconds(took));
        idle.push(megabytes(process.memory()?));
        drop(process);

        let (_process, took) = Process::start(filled.command(plan)).await?;
        existing.push(milliseconds(took));
    }
    report.add("cold start to ready, empty data", Unit::Milliseconds, empty, bare.clone(), None);
    report.add(
        format!("cold start to ready, {PROJECTS} projects"),
        Unit::Milliseconds,
        existing,
        bare,
        None,
    );
    report.add("resident memory, idle", Unit::Megabytes, idle, bare_idle, Some(Aim::AtMost(60.0)));
    Ok(())
}

fn plain_answers() -> Answers {
    Answers { status: 200, body: "{}".into(), event: String::new() }
}

/// Waits until a server has finished its work after it became ready.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The data folder of a server. It is deleted when this value is dropped.
struct Fresh {
    data: tempfile::TempDir,
    database: Option<atelier_testkit::Database>,
}

impl Fresh {
    async fn new(plan: &Plan) -> Result<Self> {
        let database = match plan.backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(atelier_testkit::Database::create().await),
        };
        Ok(Self { data: tempfile::tempdir()?, database })
    }

    fn command(&self, plan: &Plan) -> Command {
        serve(plan, self.data.path(), self.database.as_ref().map(|d| d.url()))
    }
}

/// A server with data. It is killed, so that the next start finds the state after a crash.
struct Filled(Server);

impl Filled {
    fn command(&self, plan: &Plan) -> Command {
        let url = (plan.backend == Backend::Postgres).then(|| self.0.database().url());
        serve(plan, self.0.data(), url)
    }
}

async fn filled(plan: &Plan) -> Result<Filled> {
    let (mut server, _, _) = plan.server().await?;
    server.kill();
    bare_loop::Loop::over(&server, plan.backend).await?.projects(PROJECTS).await?;
    Ok(Filled(server))
}

fn serve(plan: &Plan, data: &std::path::Path, database: Option<String>) -> Command {
    let mut command = Command::new(&plan.binary);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).current_dir(data);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ATELIER_")) {
        command.env_remove(name);
    }
    command.envs(database.map(|url| ("ATELIER_DATABASE_URL", url)));
    command
}
