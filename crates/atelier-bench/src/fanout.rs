//! Events that are written and sent to many readers: agents of one project change, and a hundred
//! readers follow.

use crate::{
    Plan,
    bare_server::Answers,
    followers::Followers,
    load,
    report::{Report, Unit},
    wire::{Connection, request},
};
use anyhow::{Context, Result, ensure};
use atelier_testkit::{Server, User};
use std::{net::SocketAddr, time::Instant};

const FOLLOWERS: usize = 100;
const WRITERS: usize = 16;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let followed = FollowedServer::start(plan).await?;
    let (bare, _) = followed.answers.serve().await?;
    let (mut paces, mut floors) = (vec![], vec![]);
    for _ in 0..plan.rounds {
        paces.push(run(plan, followed.address, &followed.events, &followed.change).await?);
        let follow = request("GET", "/events", "", "");
        floors.push(run(plan, bare.address, &follow, &followed.change).await?);
    }
    let (written, delivered) = paces.into_iter().unzip();
    let (floor_written, floor_delivered) = floors.into_iter().unzip();
    report.add(
        format!("PUT agent, {WRITERS} at once, {FOLLOWERS} followers: written"),
        Unit::PerSecond,
        written,
        floor_written,
        None,
    );
    report.add(
        format!("PUT agent, {WRITERS} at once, {FOLLOWERS} followers: delivered"),
        Unit::PerSecond,
        delivered,
        floor_delivered,
        None,
    );
    Ok(())
}

/// Returns how many events are written and delivered per second.
async fn run(plan: &Plan, address: SocketAddr, follow: &[u8], change: &[u8]) -> Result<(f64, f64)> {
    let followers = Followers::open(address, FOLLOWERS, follow).await?;
    let began = Instant::now();
    let change = change.to_vec();
    let pace = load::run(address, WRITERS, plan.window, 200, move |_| change.clone()).await?;
    // Every answered request wrote an event, including the warm-up. All followers have to see all
    // of them.
    followers.until(pace.answered).await?;
    let took = began.elapsed().as_secs_f64();
    Ok((pace.per_second, followers.seen() as f64 / took))
}

/// A project to change and to follow, and what the bare server needs to do the same.
pub(crate) struct FollowedServer {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
    /// The request that follows the project.
    pub(crate) events: Vec<u8>,
    /// The request that causes an event.
    pub(crate) change: Vec<u8>,
    pub(crate) answers: Answers,
}

impl FollowedServer {
    pub(crate) async fn start(plan: &Plan) -> Result<Self> {
        let (server, address, user) = plan.server().await?;
        let project = user.project("followed").await;
        let path = format!("{project}/agents/coder");
        let body = r#"{"config":{"temperature":0.5}}"#;
        let change = request("PUT", &path, &user.token, body);
        let mut connection = Connection::open(address).await?;
        let answer = connection.ask(&change).await?;
        ensure!(answer.status == 200, "answered with {}", answer.status);
        let answers = Answers {
            status: 200,
            body: String::from_utf8(answer.body.to_vec())?,
            event: last_event(&user, &project).await?,
        };
        let events = request("GET", &format!("{project}/events"), &user.token, "");
        Ok(Self { server, address, events, change, answers })
    }
}

/// An event as the server sends it.
async fn last_event(user: &User, project: &str) -> Result<String> {
    let mut events = user.events(&format!("{project}/events"), Some("0")).await;
    let event = events.until("AGENT_UPDATED").await;
    let id: u64 = event.id.parse().context("a number")?;
    Ok(format!("id: {id}\nevent: {}\ndata: {}\n\n", event.name, event.data))
}
