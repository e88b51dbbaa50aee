//! `GET project`.

use crate::{
    Plan,
    bare_server::Answers,
    load::{self, Pace},
    report::{Aim, Report, Unit, milliseconds},
    wire::{Connection, request},
};
use anyhow::{Result, ensure};

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let (_server, address, user) = plan.server().await?;
    let path = user.project("read").await;
    let ask = request("GET", &path, &user.token, "");
    // The bare server has to send exactly the same answer.
    let mut connection = Connection::open(address).await?;
    let answer = connection.ask(&ask).await?;
    ensure!(answer.status == 200, "answered with {}", answer.status);
    let body = String::from_utf8(answer.body.to_vec())?;
    let answers = Answers { status: 200, body, event: String::new() };
    let (bare, _) = answers.serve().await?;

    for &connections in &plan.concurrencies {
        let (mut paces, mut floors) = (vec![], vec![]);
        for _ in 0..plan.rounds {
            for (to, rounds) in [(address, &mut paces), (bare.address, &mut floors)] {
                let ask = ask.clone();
                let pace =
                    load::run(to, connections, plan.window, 200, move |_| ask.clone()).await?;
                rounds.push(pace);
            }
        }
        // The target is for a busy server.
        let aim = (connections == 64).then_some(Aim::AtLeast(10_000.0));
        add(report, &format!("GET project, {connections} at once"), &paces, &floors, aim);
    }
    Ok(())
}

/// Adds the three figures of a load.
pub(crate) fn add(
    report: &mut Report,
    name: &str,
    paces: &[Pace],
    floors: &[Pace],
    aim: Option<Aim>,
) {
    add_with(report, name, paces, floors, aim, None);
}

/// Adds the three figures of a load like `add`, with a target for the median too.
pub(crate) fn add_with(
    report: &mut Report,
    name: &str,
    paces: &[Pace],
    floors: &[Pace],
    rate: Option<Aim>,
    median: Option<Aim>,
) {
    let column =
        |paces: &[Pace], pick: fn(&Pace) -> f64| paces.iter().map(pick).collect::<Vec<_>>();
    let mut figure = |what: &str, unit, pick: fn(&Pace) -> f64, aim| {
        let name = format!("{name}{what}");
        report.add(name, unit, column(paces, pick), column(floors, pick), aim);
    };
    figure("", Unit::PerSecond, |pace| pace.per_second, rate);
    figure(", p50", Unit::Milliseconds, |pace| milliseconds(pace.p50), median);
    figure(", p99", Unit::Milliseconds, |pace| milliseconds(pace.p99), None);
}
