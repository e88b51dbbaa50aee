//! How long questions wait, and what becomes of one that nobody answers in time.

use super::{GateSetup, id};
use crate::{build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use chrono::{DateTime, Utc};
use rstest::rstest;
use serde_json::{Value, json};

fn seconds_of(call: &Value) -> i64 {
    let time =
        |name: &str| -> DateTime<Utc> { call["approval"][name].as_str().unwrap().parse().unwrap() };
    (time("expires_at") - time("requested_at")).num_seconds()
}

impl GateSetup {
    async fn let_wait(&self, wait: Value) -> atelier_testkit::Answer {
        let settings = json!({"settings": {"approvals": {"wait": wait}}});
        self.user.put(&self.project, settings).await
    }

    async fn commit(&self) -> Value {
        let params = json!({"command": "git", "args": ["commit", "-m", "x"]});
        self.execute("execute_command", params).await
    }
}

/// TL-02.4: the times of the server hold unless the project has its own, and a person can let a
/// question wait longer.
#[rstest]
#[tokio::test]
async fn project_says_how_long_questions_wait(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    assert_eq!(seconds_of(&setup.commit().await), 300);
    for refused in [json!(9), json!(2_592_001), json!("forever"), json!(60.5), json!([60])] {
        let answer = setup.let_wait(refused.clone()).await;
        assert_eq!(answer.problem(), (422, "invalid_request"), "{refused}");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains("until_answered"), "{detail}");
    }
    setup.let_wait(json!(7200)).await.expect(200);
    assert_eq!(seconds_of(&setup.commit().await), 7200);
    // A question about a write is asked when the machine has shown what it changes.
    let write = setup.execute("write_file", json!({"path": "a.txt", "content": "x"})).await;
    assert_eq!(seconds_of(&setup.preview(&write).await), 7200);

    setup.let_wait(json!("until_answered")).await.expect(200);
    let patient = setup.commit().await;
    assert_eq!(patient["approval"]["expires_at"], Value::Null);
    let asked = loop {
        let asked = setup.until("TOOL_APPROVAL_REQUEST").await;
        if asked.data["tool_id"] == patient["tool_id"] {
            break asked.data;
        }
    };
    assert_eq!((&asked["timeout_seconds"], &asked["expires_at"]), (&Value::Null, &Value::Null));
    let approved = setup.decide(&patient, "approve", json!({})).await.expect(200);
    assert_eq!(approved["status"], "dispatched");

    setup.user.put(&setup.project, json!({"settings": {}})).await.expect(200);
    let call = setup.commit().await;
    assert_eq!(seconds_of(&call), 300);
    let longer = setup.decide(&call, "wait", json!({"wait": 3600})).await.expect(200);
    assert!((3600..3660).contains(&seconds_of(&longer)), "{longer}");
    let event = setup.until("TOOL_APPROVAL_EXTENDED").await.data;
    assert_eq!(
        (&event["tool_id"], &event["expires_at"]),
        (&call["tool_id"], &longer["approval"]["expires_at"])
    );
    let shorter = setup.decide(&call, "wait", json!({"wait": 10})).await.expect(200);
    assert_eq!(shorter["approval"]["expires_at"], longer["approval"]["expires_at"]);
    let patient = setup.decide(&call, "wait", json!({})).await.expect(200);
    assert_eq!(patient["approval"]["expires_at"], Value::Null);
    setup.decide(&call, "reject", json!({})).await.expect(200);
    let late = setup.decide(&call, "wait", json!({})).await;
    assert_eq!(late.problem(), (409, "already_settled"));
    let wrong = setup.decide(&call, "wait", json!({"wait": "a while"})).await;
    assert_eq!(wrong.problem(), (422, "invalid_request"));
    let audit = setup.user.get(&setup.path("audit")).await.expect(200);
    let extended: Vec<&Value> = audit["audit"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["decision"] == "extended")
        .collect();
    assert_eq!(extended.len(), 3);
    assert_eq!(extended[0]["by"], setup.user.claims()["sub"]);
    // Strangers learn nothing.
    let eve = server.user("eve");
    for how in ["wait", "ask-again"] {
        let approval = call["approval_id"].as_str().unwrap();
        let path = setup.path(&format!("approvals/{approval}/{how}"));
        assert_eq!(eve.post(&path, json!({})).await.problem(), (404, "not_found"));
    }
}

/// TL-02.5: a question that ran out is asked again once, as a new call.
#[rstest]
#[tokio::test]
async fn question_that_ran_out_is_asked_again(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("GATE__APPROVAL_MEDIUM", "4s").start().await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    // What is asked again is whole, however large it is.
    let content = "x".repeat(200_000);
    let params = json!({"path": "a.txt", "content": content});
    let write = setup.execute("write_file", params).await;
    let early = setup.preview(&write).await;
    let again = setup.decide(&early, "ask-again", json!({})).await;
    assert_eq!(again.problem(), (409, "already_settled"));
    let expired = eventually("the question runs out", async || {
        let call = setup.show(&write).await;
        (call["status"] == "expired").then_some(call)
    })
    .await;
    assert_eq!(expired["error"]["code"], "approval_timeout");
    setup.let_wait(json!("until_answered")).await.expect(200);
    let again = setup.decide(&expired, "ask-again", json!({})).await.expect(200);
    assert_ne!(again["tool_id"], write["tool_id"]);
    assert_eq!(
        (&again["tool_params"], &again["digest"]),
        (&write["tool_params"], &write["digest"])
    );
    assert_eq!(setup.show(&write).await["asked_again"], again["tool_id"]);
    let twice = setup.decide(&expired, "ask-again", json!({})).await;
    assert_eq!(twice.problem(), (409, "asked_anew"));
    let again = setup.preview(&again).await;
    setup.decide(&again, "approve", json!({})).await.expect(200);
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    assert_eq!(id(&signal.data), id(&again));
    setup.claim(&signal).await.expect(200);
    let done = setup.result(&signal, json!({"success": true})).await.expect(200);
    assert_eq!(done["status"], "completed");
    let audit = setup.user.get(&setup.path("audit")).await.expect(200);
    let asked = audit["audit"].as_array().unwrap().iter();
    assert_eq!(asked.filter(|entry| entry["decision"] == "asked_again").count(), 1);
}

/// TL-02.6: a write that changes nothing is done without a question; anything else is asked about.
#[rstest]
#[tokio::test]
async fn write_that_changes_nothing_asks_nobody(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let report = async |tool: &str, params: Value, base: Value| {
        let call = setup.execute(tool, params).await;
        let body = json!({"client_id": setup.client, "base_checksum": base, "diff": "No change.\n",
                          "rating": null, "unchanged": true});
        setup.post(&format!("tools/{}/preview", id(&call)), body).await.expect(200)
    };
    let write = |path: &str| json!({"path": path, "content": "same"});
    let done = report("write_file", write("a.txt"), json!("c0ffee")).await;
    assert_eq!((&done["status"], &done["approval"]), (&json!("completed"), &Value::Null));
    let result = json!({"success": true, "unchanged": true, "path": "a.txt", "checksum": "c0ffee"});
    assert_eq!((&done["result"], &done["attempt"]), (&result, &json!(0)));
    // A new file, a secret file and a deletion are asked about, whatever the machine says.
    for (tool, params, base) in [
        ("write_file", write("new.txt"), Value::Null),
        ("write_file", write(".env"), json!("c0ffee")),
        ("delete_file", json!({"path": "a.txt"}), json!("c0ffee")),
    ] {
        let asked = report(tool, params.clone(), base).await;
        assert_eq!(asked["status"], "pending_approval", "{tool} {params}");
    }
}
