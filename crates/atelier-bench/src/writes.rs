//! `POST project`: one project, four agents and five events are on disk before the answer.

use crate::{
    Plan,
    bare_loop::Loop,
    bare_server::Answers,
    load, process, reads,
    report::{Aim, Report, Unit},
    start::megabytes,
    wire::request,
};
use anyhow::Result;

/// Several users write. On PostgreSQL, they write in parallel.
const USERS: usize = 8;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let (server, address, user) = plan.server().await?;
    let tokens: Vec<String> =
        (0..USERS).map(|n| server.user(&format!("writer-{n}")).token).collect();
    let example = user.post("/my/projects/", serde_json::json!({"name": "example"})).await;
    let answers =
        Answers { status: 201, body: example.expect(201).to_string(), event: String::new() };
    let (bare, _) = answers.serve().await?;
    let idle = process::memory(server.pid())?;
    // A database with the same schema that no other program uses.
    let (mut beside, _, _) = plan.server().await?;
    beside.kill();
    let mut bare_loop = Loop::over(&beside, plan.backend).await?;

    for &connections in &plan.concurrencies {
        let (mut paces, mut floors, mut loops) = (vec![], vec![], vec![]);
        for round in 0..plan.rounds {
            for (to, rounds) in [(address, &mut paces), (bare.address, &mut floors)] {
                let tokens = tokens.clone();
                let make = move |n: u64| {
                    let body = format!(r#"{{"name":"project-{connections}-{round}-{n}"}}"#);
                    request("POST", "/my/projects/", &tokens[n as usize % USERS], &body)
                };
                rounds.push(load::run(to, connections, plan.window, 201, make).await?);
            }
            // One commit has as many projects as there are requests in progress. The server cannot
            // commit more at once.
            loops.push(bare_loop.for_time(plan.window, connections).await?);
        }
        let name = format!("POST project, {connections} at once");
        reads::add(report, &name, &paces, &floors, None);
        report.add(
            format!("POST project, {connections} at once, to the bare loop"),
            Unit::PerSecond,
            paces.iter().map(|pace| pace.per_second).collect(),
            loops,
            Some(Aim::OfFloor(0.5)),
        );
    }
    report.add(
        "resident memory after these writes (floor: before)",
        Unit::Megabytes,
        vec![megabytes(process::memory(server.pid())?)],
        vec![megabytes(idle)],
        None,
    );
    Ok(())
}
