//! Ten thousand idle readers of one project: what each costs, and how soon an event reaches all of
//! them.

use crate::{
    Plan,
    fanout::FollowedServer,
    followers::Followers,
    load::quantile,
    process,
    report::{Aim, Report, Unit, milliseconds},
    wire::{Connection, PATIENCE, request},
};
use anyhow::{Result, ensure};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

const EVENTS: u64 = 10;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let followed = FollowedServer::start(plan).await?;
    let (bare, _) = followed.answers.serve().await?;
    let server = followed.server.pid();
    let found = run(plan.clients, followed.address, &followed.events, &followed.change, || {
        process::memory(server)
    })
    .await?;
    let follow = request("GET", "/events", "", "");
    let floor =
        run(plan.clients, bare.address, &follow, &followed.change, || bare.memory()).await?;

    let clients = plan.clients;
    let mut add = |name: String, unit, pick: fn(&Found) -> f64, aim| {
        report.add(name, unit, vec![pick(&found)], vec![pick(&floor)], aim);
    };
    add(
        format!("memory of an idle event stream, {clients} open"),
        Unit::Kibibytes,
        |found| found.idle,
        Some(Aim::AtMost(50.0)),
    );
    add(format!("the same after {EVENTS} events"), Unit::Kibibytes, |found| found.used, None);
    add(format!("event to {clients} streams, p50"), Unit::Milliseconds, |found| found.p50, None);
    add(
        format!("event to {clients} streams, p99"),
        Unit::Milliseconds,
        |found| found.p99,
        Some(Aim::AtMost(250.0)),
    );
    add(format!("{clients} streams opened"), Unit::PerSecond, |found| found.opened, None);
    Ok(())
}

struct Found {
    /// KiB per stream, before and after events were sent through it.
    idle: f64,
    used: f64,
    /// The delays of all events to all readers in milliseconds, from the moment before the change
    /// was sent.
    p50: f64,
    p99: f64,
    opened: f64,
}

async fn run(
    clients: usize,
    address: SocketAddr,
    follow: &[u8],
    change: &[u8],
    memory: impl Fn() -> Result<u64>,
) -> Result<Found> {
    let before = memory()?;
    let began = Instant::now();
    let followers = Followers::open(address, clients, follow).await?;
    let opened = clients as f64 / began.elapsed().as_secs_f64();
    let each = |now: u64| now.saturating_sub(before) as f64 / 1024.0 / clients as f64;
    sleep(Duration::from_secs(2)).await;
    let idle = each(memory()?);

    let mut connection = Connection::open(address).await?;
    for event in 1..=EVENTS {
        followers.time_from(Instant::now());
        let answer = timeout(PATIENCE, connection.ask(change)).await??;
        ensure!(answer.status == 200, "answered with {}", answer.status);
        followers.until(event).await?;
    }
    let mut delays = followers.take_delays();
    Ok(Found {
        idle,
        used: each(memory()?),
        p50: milliseconds(quantile(&mut delays, 0.5)),
        p99: milliseconds(quantile(&mut delays, 0.99)),
        opened,
    })
}
