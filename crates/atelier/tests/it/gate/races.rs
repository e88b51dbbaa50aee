//! Approve, reject, cancel and the timeout, all at the same moment.

use super::*;
use crate::build;
use chrono::{DateTime, Utc};
use futures::{StreamExt, stream};
use std::{collections::HashMap, time::Duration};

/// `make judge` runs ten thousand on each database.
fn races() -> usize {
    std::env::var("ATELIER_TEST_RACES").map_or(400, |count| count.parse().unwrap())
}

/// TL-02.2 TL-03.1 TL-05.2: of approve, reject, cancel and timeout exactly one wins, the losers are
/// told which, and the signal is sent once if approve wins and never otherwise.
#[rstest]
#[tokio::test]
async fn exactly_one_decision_wins(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("GATE__APPROVAL_MEDIUM", "1s").start().await;
    let setup = GateSetup::new(server.user("ann")).await;
    let raced = stream::iter(0..races()).map(|number| race(&setup, number)).buffer_unordered(32);
    // The client has to stay connected until the last race, however slow the machine is.
    let there = async {
        loop {
            setup.post(&format!("clients/{}/renew", setup.client), json!(null)).await.expect(200);
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    let won: Vec<&str> = tokio::select! {
        won = raced.collect() => won,
        () = there => unreachable!("it never leaves"),
    };
    let mut count: HashMap<&str, usize> = HashMap::new();
    won.iter().for_each(|winner| *count.entry(winner).or_default() += 1);
    // Each of the four has to win at least once. Otherwise the test shows nothing.
    for winner in ["approve", "reject", "cancel", "timeout"] {
        assert!(count.contains_key(winner), "{winner} never won: {count:?}");
    }

    // All events, from the first one to a mark at the end.
    let mut events = setup.user.events(&setup.path("events"), Some("0")).await;
    let mark = setup.execute("delete_file", json!({"path": "mark"})).await;
    let (mut approved, mut signals) = (0, HashMap::<String, usize>::new());
    loop {
        let event = events.next().await;
        match event.name.as_str() {
            "TOOL_EXECUTION_SIGNAL" => *signals.entry(id(&event.data).to_owned()).or_default() += 1,
            "TOOL_CALL_UPDATED" if event.data["status"] == "approved" => approved += 1,
            "TOOL_CALL_UPDATED" if event.data["tool_id"] == mark["tool_id"] => break,
            _ => {}
        }
    }
    assert!(signals.values().all(|count| *count == 1), "{signals:?}");
    assert_eq!(signals.len(), approved);
}

/// One call and all decisions about it at about the same moment. Returns the winner.
async fn race(setup: &GateSetup, number: usize) -> &'static str {
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    let expires: DateTime<Utc> = call["approval"]["expires_at"].as_str().unwrap().parse().unwrap();
    // Every second race happens just before the timeout.
    let at = (number % 2 == 1).then_some(expires);
    let by = || {
        let jitter = chrono::TimeDelta::milliseconds(rand::random_range(-20..60));
        let wait =
            at.map_or(Duration::ZERO, |at| (at + jitter - Utc::now()).to_std().unwrap_or_default());
        tokio::time::sleep(wait)
    };
    let cancel = format!("tools/{}/cancel", id(&call));
    // The first request differs from race to race.
    let (approve, reject, cancelled) = match number % 3 {
        0 => tokio::join!(
            after(by(), setup.decide(&call, "approve", json!({}))),
            after(by(), setup.decide(&call, "reject", json!({}))),
            after(by(), setup.post(&cancel, json!({})))
        ),
        1 => {
            let (reject, cancelled, approve) = tokio::join!(
                after(by(), setup.decide(&call, "reject", json!({}))),
                after(by(), setup.post(&cancel, json!({}))),
                after(by(), setup.decide(&call, "approve", json!({})))
            );
            (approve, reject, cancelled)
        }
        _ => {
            let (cancelled, approve, reject) = tokio::join!(
                after(by(), setup.post(&cancel, json!({}))),
                after(by(), setup.decide(&call, "approve", json!({}))),
                after(by(), setup.decide(&call, "reject", json!({})))
            );
            (approve, reject, cancelled)
        }
    };
    let nobody = [&approve, &reject, &cancelled].iter().all(|answer| answer.status == 409);
    let settled = match nobody {
        true => {
            eventually("time decides", async || {
                let call = setup.show(&call).await;
                (call["status"] != "pending_approval").then_some(call)
            })
            .await
        }
        false => setup.show(&call).await,
    };
    for loser in [&approve, &reject, &cancelled].into_iter().filter(|answer| answer.status != 200) {
        assert_eq!(loser.problem(), (409, "already_settled"));
    }
    let (status, approval) = (settled["status"].as_str().unwrap(), &settled["approval"]["status"]);
    let winner = match (approve.status.as_u16(), reject.status.as_u16(), cancelled.status.as_u16())
    {
        (200, 409, 409) => ("approve", "dispatched", "approved"),
        // A call that was approved and sent can still be cancelled before it begins.
        (200, 409, 200) => ("approve", "cancelled", "approved"),
        (409, 200, 409) => ("reject", "rejected", "rejected"),
        (409, 409, 200) => ("cancel", "cancelled", "cancelled"),
        (409, 409, 409) => ("timeout", "expired", "expired"),
        other => panic!("{other:?}: {settled}"),
    };
    assert_eq!((status, approval.as_str().unwrap()), (winner.1, winner.2), "{settled}");
    assert_eq!(settled["attempt"], u32::from(winner.0 == "approve"));
    winner.0
}

async fn after<T>(wait: tokio::time::Sleep, then: impl Future<Output = T>) -> T {
    wait.await;
    then.await
}
