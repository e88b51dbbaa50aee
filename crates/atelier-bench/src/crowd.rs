//! `atelier-bench crowd`: many agents with a small memory each, on one server with an embedded
//! index.

use crate::{Plan, process};
use anyhow::{Context, Result};
use atelier_testkit::Server;
use serde_json::json;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 2000)]
    agents: usize,
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
pub(crate) async fn run(args: &Args, plan: &Plan) -> Result<()> {
    let server = Server::build(&plan.binary, plan.backend).start().await;
    let user = server.user("bench");
    let project = user.project("crowd").await;
    let mut contexts = Vec::new();
    for number in 0..args.agents {
        let name = format!("agent-{number}");
        user.post(&format!("{project}/agents"), json!({"name": name})).await.expect(201);
        let context = format!("{project}/agents/{name}/context");
        let entries: Vec<_> = (0..5)
            .map(|n| {
                json!({"text": format!("fact {n} of agent \
                {number}"), "interaction_type": "tool_call"})
            })
            .collect();
        user.post(&format!("{context}/import"), json!({"interactions": entries})).await.expect(200);
        contexts.push(context);
        if (number + 1) % (args.agents / 4).max(1) == 0 {
            let (maps, files) = held(server.pid())?;
            let memory = process::memory(server.pid())? / (1 << 20);
            println!("{} agents: {maps} maps, {files} open files, {memory} MB", number + 1);
        }
    }
    let mut times = Vec::new();
    // The collections of the first agents were closed long ago.
    for context in contexts.iter().take(200) {
        let began = Instant::now();
        let found =
            user.post(&format!("{context}/search"), json!({"query": "fact"})).await.expect(200);
        times.push(began.elapsed().as_secs_f64() * 1000.0);
        anyhow::ensure!(found["results"].as_array().is_some_and(|hits| hits.len() == 5), "{found}");
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "first search on a cold collection: p50 {:.1} ms, p95 {:.1} ms, worst {:.1} ms",
        at(0.5),
        at(0.95),
        at(1.0)
    );
    Ok(())
}

fn held(pid: u32) -> Result<(usize, usize)> {
    let maps =
        std::fs::read_to_string(format!("/proc/{pid}/maps")).context("maps")?.lines().count();
    Ok((maps, std::fs::read_dir(format!("/proc/{pid}/fd"))?.count()))
}
