//! The gate: requested calls, decisions of people, and what reaches the client. The test plays the
//! client.

mod machines;
mod permissions;
mod races;
mod rules;
mod standing;
mod time;

use crate::{build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Events, SseEvent, User, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

/// A project with a connected client, and an event stream of the project.
struct GateSetup {
    user: User,
    project: String,
    client: Uuid,
    events: Events,
}

impl GateSetup {
    async fn new(user: User) -> Self {
        let project = user.project(&format!("shop {}", Uuid::now_v7())).await;
        let events = user.events(&format!("{project}/events"), Some("0")).await;
        let mut setup = Self { user, project, client: Uuid::now_v7(), events };
        setup.connect().await;
        setup
    }

    async fn connect(&mut self) {
        let body = json!({"client_id": self.client, "root": "/home/ann/shop", "os": "linux", "isolation": {}});
        self.post("clients", body).await.expect(200);
    }

    fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.project)
    }

    async fn post(&self, rest: &str, body: Value) -> atelier_testkit::Answer {
        self.user.post(&self.path(rest), body).await
    }

    async fn execute(&self, tool: &str, params: Value) -> Value {
        self.post("tools/execute", json!({"tool_name": tool, "tool_params": params}))
            .await
            .expect(200)
    }

    /// Shows what the call would change, so that the person is asked.
    async fn preview(&self, call: &Value) -> Value {
        assert_eq!(call["status"], "previewing", "{call}");
        let preview = json!({"client_id": self.client, "base_checksum": "c0ffee", "diff": "-x\n"});
        self.post(&format!("tools/{}/preview", id(call)), preview).await.expect(200)
    }

    async fn show(&self, call: &Value) -> Value {
        self.user.get(&self.path(&format!("tools/{}", id(call)))).await.expect(200)
    }

    async fn until(&mut self, name: &str) -> SseEvent {
        self.events.until(name).await
    }

    async fn decide(&self, call: &Value, how: &str, body: Value) -> atelier_testkit::Answer {
        let approval = call["approval_id"].as_str().unwrap();
        self.post(&format!("approvals/{approval}/{how}"), body).await
    }

    async fn claim(&self, signal: &SseEvent) -> atelier_testkit::Answer {
        let body = json!({"client_id": self.client, "attempt": signal.data["attempt"]});
        self.post(&format!("tools/{}/claim", id(&signal.data)), body).await
    }

    async fn result(&self, signal: &SseEvent, result: Value) -> atelier_testkit::Answer {
        let body =
            json!({"client_id": self.client, "attempt": signal.data["attempt"], "result": result});
        self.post(&format!("tools/{}/result", id(&signal.data)), body).await
    }
}

fn id(call: &Value) -> &str {
    call["tool_id"].as_str().unwrap()
}

/// TL-04.1 TL-04.2 TL-05.2 TL-05.3 TL-02.2: A LOW call goes straight to the client, and its result
/// comes back.
#[rstest]
#[tokio::test]
async fn low_call_runs_without_approval(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("tool_read_file", json!({"path": "README.md"})).await;
    assert_eq!((&call["status"], &call["risk_level"]), (&json!("dispatched"), &json!("LOW")));
    assert_eq!((&call["requires_approval"], &call["approval_id"]), (&json!(false), &Value::Null));
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    assert_eq!(signal.data["tool_id"], call["tool_id"]);
    assert_eq!(signal.data["tool_name"], "read_file");
    assert_eq!(signal.data["tool_params"], json!({"path": "README.md"}));
    assert_eq!(signal.data["client_id"], json!(setup.client));

    setup.claim(&signal).await.expect(200);
    let result = json!({"success": true, "content": "# Shop", "size": 6});
    let done = setup.result(&signal, result.clone()).await.expect(200);
    assert_eq!((&done["status"], &done["result"]), (&json!("completed"), &result));
    assert_eq!(setup.until("TOOL_RESULT_ACK").await.data["status"], "completed");
    assert_eq!(setup.show(&call).await, done);

    // A result counts once: repeating it is accepted, another result is not, and another machine's
    // result is not.
    assert_eq!(setup.result(&signal, result).await.expect(200), done);
    let other = setup.result(&signal, json!({"success": true, "content": "evil"})).await;
    assert_eq!(other.problem(), (409, "result_differs"));
    setup.client = Uuid::now_v7();
    let unknown = setup.result(&signal, json!({"success": true})).await;
    assert_eq!(unknown.problem(), (404, "not_found"));
    setup.connect().await;
    let stranger = setup.result(&signal, json!({"success": true})).await;
    assert_eq!(stranger.problem(), (409, "not_your_call"));
}

/// TL-06.5 TL-07.1
#[rstest]
#[tokio::test]
async fn denied_call_reaches_no_client(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    for (tool, params, code) in [
        ("execute_command", json!({"command": "rm", "args": ["-rf", "/"]}), "command_not_allowed"),
        ("read_file", json!({"path": "../../etc/passwd"}), "path_outside_workspace"),
        ("read_file", json!({"path": "x", "user_id": 7}), "invalid_params"),
        ("fly", json!({}), "unknown_tool"),
    ] {
        let call = setup.execute(tool, params).await;
        assert_eq!(
            (&call["status"], &call["error"]["code"]),
            (&json!("denied"), &json!(code)),
            "{call}"
        );
    }
    let rm =
        setup.execute("tool_execute_command", json!({"command": "rm", "args": ["-rf", "/"]})).await;
    assert!(rm["error"]["detail"].as_str().unwrap().starts_with("Command not allowed"), "{rm}");
    // The next event in the stream belongs to the harmless call, and no signal comes before it.
    setup.execute("read_file", json!({"path": "a"})).await;
    assert_eq!(
        setup.until("TOOL_EXECUTION_SIGNAL").await.data["tool_params"],
        json!({"path": "a"})
    );
}

/// TL-04.3 TL-05.1 TL-05.2 TL-02.2 TL-03.1
#[rstest]
#[tokio::test]
async fn medium_call_waits_for_approval(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup
        .execute("execute_command", json!({"command": "npm", "args": ["install", "express"]}))
        .await;
    assert_eq!(
        (&call["status"], &call["risk_level"]),
        (&json!("pending_approval"), &json!("MEDIUM"))
    );
    let asked = setup.until("TOOL_APPROVAL_REQUEST").await;
    assert_eq!(
        asked.data,
        json!({
            "type": "TOOL_APPROVAL_REQUEST",
            "project_id": call["project_id"],
            "created_at": asked.data["created_at"],
            "approval_id": call["approval_id"],
            "tool_id": call["tool_id"],
            "tool_name": "execute_command",
            "tool_params": {"command": "npm", "args": ["install", "express"]},
            "risk_level": "MEDIUM",
            "rule": call["rule"],
            "reason": call["reason"],
            "class": {
                "findings": ["npm.install", "npm.install isolation"],
                "destinations": ["as configured"],
                "local_git": false,
            },
            "network": true,
            "preview": null,
            "digest": call["digest"],
            "agent_id": null,
            "session_id": null,
            "task_id": null,
            "timeout_seconds": 300,
            "expires_at": call["approval"]["expires_at"],
        })
    );
    for field in ["created_at", "approval_id", "rule", "reason", "digest"] {
        assert!(asked.data[field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
    let pending = setup.user.get(&setup.path("approvals?status=pending")).await.expect(200);
    assert_eq!(
        (&pending["total"], &pending["approvals"][0]["tool_id"]),
        (&json!(1), &call["tool_id"])
    );
    assert_eq!(setup.user.get("/my/approvals/").await.expect(200)["total"], 1);

    let mut lost = setup.user.events(&setup.path("events"), Some("nonsense")).await;
    let reset = lost.next().await;
    assert_eq!(
        reset.data["snapshot"]["pending"][0]["tool_id"], call["tool_id"],
        "a lost reader learns of it"
    );

    // All of it survives a restart of the server.
    let server = server.restart().await;
    setup.user = setup.user.at(&server);
    setup.events = setup.user.events(&setup.path("events"), Some(&asked.id)).await;
    let approved = setup.decide(&call, "approve", json!({})).await.expect(200);
    assert_eq!(approved["approval"]["status"], "approved");
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    assert_eq!(
        (&signal.data["tool_id"], &signal.data["digest"]),
        (&call["tool_id"], &call["digest"])
    );
    // A decision cannot be changed.
    for how in ["approve", "reject"] {
        let late = setup.decide(&call, how, json!({})).await;
        assert_eq!(late.problem(), (409, "already_settled"));
        assert!(late.body["detail"].as_str().unwrap().contains("dispatched"), "{}", late.body);
    }
    let audit = setup.user.get(&setup.path("audit")).await.expect(200);
    let entry = &audit["audit"][0];
    assert_eq!(
        (&entry["decision"], &entry["by"]),
        (&json!("approved"), &setup.user.claims()["sub"])
    );
    assert_eq!(entry["digest"], call["digest"]);
}

/// TL-04.3
#[rstest]
#[tokio::test]
async fn rejection_returns_its_reason(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("delete_file", json!({"path": "a.txt"})).await;
    assert_eq!(call["risk_level"], "HIGH");
    let call = setup.preview(&call).await;
    assert_eq!(setup.until("TOOL_APPROVAL_REQUEST").await.data["timeout_seconds"], 600);
    let rejected =
        setup.decide(&call, "reject", json!({"reason": "I still need it"})).await.expect(200);
    assert_eq!(rejected["status"], "rejected");
    assert_eq!(
        rejected["error"],
        json!({"code": "approval_rejected", "detail": "Rejected by the user: I still need it"})
    );
    assert_eq!(setup.decide(&call, "approve", json!({})).await.problem(), (409, "already_settled"));
}

/// TL-06.3: the user sees the difference to the file on the machine; if the file changes meanwhile,
/// they are asked again.
#[rstest]
#[tokio::test]
async fn write_is_previewed_before_it_is_decided(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("write_file", json!({"path": "a.txt", "content": "new\n"})).await;
    assert_eq!(call["status"], "previewing");
    for (base, diff) in [("c0ffee", "-old\n+new\n"), ("decaf", "-older\n+new\n")] {
        let wanted = setup.until("TOOL_PREVIEW_REQUEST").await;
        assert_eq!(wanted.data["client_id"], json!(setup.client));
        let preview = json!({"client_id": setup.client, "base_checksum": base, "diff": diff});
        let stranger = json!({"client_id": Uuid::now_v7(), "base_checksum": base, "diff": "evil"});
        let path = format!("tools/{}/preview", id(&call));
        assert_eq!(setup.post(&path, stranger).await.problem(), (404, "not_found"));
        let odd =
            setup.post(&path, json!({"client_id": setup.client, "diff": 5})).await.expect(422);
        assert!(odd["detail"].as_str().unwrap().contains("expected a string"), "{odd}");
        let asked = setup.post(&path, preview).await.expect(200);
        assert_eq!(setup.until("TOOL_APPROVAL_REQUEST").await.data["preview"]["diff"], diff);
        setup.decide(&asked, "approve", json!({})).await.expect(200);
        let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
        assert_eq!(signal.data["base_checksum"], base);
        let shown = &setup.show(&call).await["approval"]["preview_digest"];
        assert!(shown.is_string() && signal.data["preview_digest"] == *shown, "{}", signal.data);
        setup.claim(&signal).await.expect(200);
        if base == "c0ffee" {
            // The file has changed in the meantime, so the user is asked again.
            let stale = json!({"success": false, "code": "stale", "error": "the file has changed"});
            assert_eq!(setup.result(&signal, stale).await.expect(200)["status"], "previewing");
        } else {
            let done = setup.result(&signal, json!({"success": true, "size": 4})).await.expect(200);
            assert_eq!(done["status"], "completed");
        }
    }
}

/// TL-02.2: there is a warning first, and expiry survives a restart.
#[rstest]
#[tokio::test]
async fn undecided_call_expires(#[values(Sqlite, Postgres)] backend: Backend) {
    // Long enough for a restart in between, even on a busy machine.
    let server = build(backend).with("GATE__APPROVAL_MEDIUM", "6s").start().await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    let asked = setup.until("TOOL_APPROVAL_REQUEST").await;
    let server = server.restart().await;
    setup.user = setup.user.at(&server);
    setup.events = setup.user.events(&setup.path("events"), Some(&asked.id)).await;
    assert_eq!(setup.until("TOOL_APPROVAL_WARNING").await.data["approval_id"], call["approval_id"]);
    let expired = eventually("time decides", async || {
        let call = setup.show(&call).await;
        (call["status"] == "expired").then_some(call)
    })
    .await;
    assert_eq!(expired["error"], json!({"code": "approval_timeout", "detail": "Approval timeout"}));
    assert_eq!(setup.decide(&call, "approve", json!({})).await.problem(), (409, "already_settled"));
    eventually("the log has it", async || server.log().contains("time is up").then_some(())).await;
}

/// The call says that it waits for a client, and expires in the end.
#[rstest]
#[tokio::test]
async fn call_waits_for_a_client_and_expires(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("GATE__DISPATCH", "1s").start().await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let away = setup.path(&format!("clients/{}", setup.client));
    assert_eq!(setup.user.delete(&away).await.status, 204);
    let waiting = setup.execute("read_file", json!({"path": "a"})).await;
    assert_eq!(waiting["status"], "approved");
    setup.connect().await;
    assert_eq!(setup.until("TOOL_EXECUTION_SIGNAL").await.data["tool_id"], waiting["tool_id"]);

    assert_eq!(setup.user.delete(&away).await.status, 204);
    let lost = setup.execute("read_file", json!({"path": "b"})).await;
    let expired = eventually("it gives up", async || {
        let call = setup.show(&lost).await;
        (call["status"] == "expired").then_some(call)
    })
    .await;
    assert_eq!(expired["error"]["code"], "no_client");
}

#[rstest]
#[tokio::test]
async fn prefer_wait_answers_when_the_call_is_settled(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let request = setup.user.request("POST".parse().unwrap(), &setup.path("tools/execute"));
    let request = request.header("prefer", "wait=20");
    let body = json!({"tool_name": "read_file", "tool_params": {"path": "a"}});
    let asking = tokio::spawn(async move {
        request.json(&body).send().await.unwrap().json::<Value>().await.unwrap()
    });
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    setup.claim(&signal).await.expect(200);
    setup.result(&signal, json!({"success": true, "content": "x"})).await.expect(200);
    let call = asking.await.unwrap();
    assert_eq!((&call["status"], &call["result"]["content"]), (&json!("completed"), &json!("x")));
}

/// TL-07.1: a tenant's admin may reject and cancel.
#[rstest]
#[tokio::test]
async fn only_the_owner_can_approve(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    let approval = setup.path(&format!("approvals/{}", call["approval_id"].as_str().unwrap()));
    for (name, role, approve, reject) in [
        ("ann", "agent", 403, 403),
        ("ann", "client", 403, 403),
        ("bob", "user", 404, 404),
        ("bob", "admin", 404, 200),
    ] {
        let other = match role {
            "agent" | "client" => server.program(name, role, &setup.project),
            _ => server.user_with(name, &["--role", role]),
        };
        for how in ["approve", "wait", "ask-again"] {
            let answer = other.post(&format!("{approval}/{how}"), json!({})).await;
            assert_eq!(answer.status, approve, "{name} {role}: {how}");
        }
        assert_eq!(
            other.post(&format!("{approval}/reject"), json!({})).await.status,
            reject,
            "{name} {role}"
        );
    }
    assert_eq!(setup.show(&call).await["status"], "rejected");

    // An agent cannot approve, and a client cannot request calls.
    let agent = server.program("ann", "agent", &setup.project);
    let client = server.program("ann", "client", &setup.project);
    let ask = json!({"tool_name": "read_file", "tool_params": {"path": "a"}});
    assert_eq!(client.post(&setup.path("tools/execute"), ask.clone()).await.status, 403);
    // The machine is the client's own, so only the client can report for it.
    setup.user.delete(&setup.path(&format!("clients/{}", setup.client))).await.expect(204);
    let machine = json!({"client_id": setup.client, "root": "/", "os": "linux", "isolation": {}});
    client.post(&setup.path("clients"), machine).await.expect(200);
    let call = agent.post(&setup.path("tools/execute"), ask).await.expect(200);
    let result = json!({"client_id": setup.client, "attempt": 1, "result": {"success": true}});
    let path = setup.path(&format!("tools/{}/result", id(&call)));
    assert_eq!(agent.post(&path, result.clone()).await.status, 403);
    assert_eq!(setup.user.post(&path, result.clone()).await.status, 404);
    assert_eq!(client.post(&path, result).await.expect(200)["status"], "completed");
}

/// WS-09.2 TL-07.1
#[rstest]
#[tokio::test]
async fn calls_of_another_project_look_like_unknown_calls(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let (shop, blog) = (GateSetup::new(ann.clone()).await, GateSetup::new(ann).await);
    let call = shop.execute("create_directory", json!({"path": "d"})).await;
    shop.decide(&call, "approve", json!({"scope": "class"})).await.expect(200);
    let call = shop.preview(&shop.execute("delete_file", json!({"path": "d"})).await).await;
    let grants = shop.user.get(&shop.path("grants")).await.expect(200);
    let (tool, approval) = (id(&call), call["approval_id"].as_str().unwrap());
    let grant = grants["grants"][0]["id"].as_str().unwrap();
    let run = json!({"client_id": shop.client, "attempt": 1});
    let result = json!({"client_id": shop.client, "attempt": 1, "result": {}});
    let preview = json!({"client_id": shop.client, "diff": ""});
    for (rest, body) in [
        (format!("tools/{tool}/cancel"), json!({})),
        (format!("tools/{tool}/claim"), run),
        (format!("tools/{tool}/result"), result),
        (format!("tools/{tool}/preview"), preview),
        (format!("approvals/{approval}/approve"), json!({})),
        (format!("approvals/{approval}/reject"), json!({})),
        (format!("approvals/{approval}/wait"), json!({})),
        (format!("approvals/{approval}/ask-again"), json!({})),
        (format!("clients/{}/renew", shop.client), json!({})),
        (
            "clients".into(),
            json!({"client_id": shop.client, "root": "/", "os": "linux", "isolation": {}}),
        ),
    ] {
        assert_eq!(blog.post(&rest, body).await.problem(), (404, "not_found"), "{rest}");
    }
    for rest in [format!("grants/{grant}"), format!("clients/{}", shop.client)] {
        assert_eq!(
            blog.user.delete(&blog.path(&rest)).await.problem(),
            (404, "not_found"),
            "{rest}"
        );
    }
    assert_eq!(
        blog.user.get(&blog.path(&format!("tools/{tool}"))).await.problem(),
        (404, "not_found")
    );
    assert_eq!(shop.show(&call).await, call);
    assert_eq!(server.user("bob").get("/my/approvals").await.expect(200)["total"], 0);
}

/// TL-06.1
#[rstest]
#[tokio::test]
async fn call_that_the_client_rates_higher_is_asked_about_again(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("read_file", json!({"path": "notes"})).await;
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    let refused = json!({
        "success": false, "code": "approval_required", "verdict": "HIGH", "rule": "read_file \
            file.secret",
        "error": "notes: The file usually holds secrets.",
    });
    let asked = setup.result(&signal, refused.clone()).await.expect(200);
    assert_eq!(
        (&asked["status"], &asked["risk_level"]),
        (&json!("pending_approval"), &json!("HIGH"))
    );
    let request = setup.until("TOOL_APPROVAL_REQUEST").await;
    assert_eq!(
        (&request.data["risk_level"], &request.data["timeout_seconds"]),
        (&json!("HIGH"), &json!(600))
    );
    assert_eq!(request.data["reason"], refused["error"]);
    setup.decide(&asked, "approve", json!({})).await.expect(200);
    let again = setup.until("TOOL_EXECUTION_SIGNAL").await;
    assert_eq!((&again.data["risk_level"], &again.data["attempt"]), (&json!("HIGH"), &json!(2)));
    // The same refusal again is not a reason to ask again, so the call fails.
    let failed = setup.result(&again, refused).await.expect(200);
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("approval_required"))
    );
    assert_eq!(setup.show(&call).await["risk_level"], "HIGH");
}

/// TL-02.1 TL-03.1
#[rstest]
#[tokio::test]
async fn past_approvals_are_listed_by_status(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(setup.execute("create_directory", json!({"path": "d"})).await);
    }
    setup.decide(&calls[0], "approve", json!({})).await.expect(200);
    setup.decide(&calls[1], "reject", json!({"reason": "no"})).await.expect(200);
    setup.post(&format!("tools/{}/cancel", id(&calls[2])), json!({})).await.expect(200);
    let listed = async |query: &str| {
        let list = setup.user.get(&setup.path(&format!("approvals{query}"))).await.expect(200);
        let ids: Vec<Value> = list["approvals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| call["tool_id"].clone())
            .collect();
        assert_eq!(list["total"], ids.len());
        ids
    };
    let id = |at: usize| calls[at]["tool_id"].clone();
    assert_eq!(listed("").await, [id(3)]);
    assert_eq!(listed("?status=pending").await, [id(3)]);
    assert_eq!(listed("?status=approved").await, [id(0)]);
    assert_eq!(listed("?status=rejected").await, [id(1)]);
    assert_eq!(listed("?status=cancelled").await, [id(2)]);
    assert_eq!(listed("?status=expired").await, Vec::<Value>::new());
    assert_eq!(listed("?status=all").await, [id(3), id(2), id(1), id(0)]);
    let other = setup.user.get(&setup.path("approvals?status=maybe")).await;
    assert_eq!(other.status, 422, "{}", other.body);
}

/// Open calls stay, and so does the audit.
#[rstest]
#[tokio::test]
async fn settled_calls_are_deleted_after_their_retention_time(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = build(backend).start().await;
    let setup = GateSetup::new(server.user("ann")).await;
    let settled = setup.execute("create_directory", json!({"path": "d"})).await;
    let waiting = setup.execute("create_directory", json!({"path": "e"})).await;
    setup.decide(&settled, "reject", json!({})).await.expect(200);
    let path = |call: &Value| setup.path(&format!("tools/{}", id(call)));
    // Every start deletes calls that are too old.
    let server = server.restart_with("ATELIER_GATE__KEEP_DAYS", Some("0")).await;
    let ann = server.bearer(setup.user.token.clone());
    eventually("the settled call is gone", async || {
        (ann.get(&path(&settled)).await.status == 404).then_some(())
    })
    .await;
    assert_eq!(ann.get(&path(&waiting)).await.expect(200)["status"], "pending_approval");
    let audit = ann.get(&setup.path("audit")).await.expect(200);
    let rejected = audit["audit"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["tool_id"] == settled["tool_id"]);
    assert!(rejected.count() >= 1, "{audit}");
}
