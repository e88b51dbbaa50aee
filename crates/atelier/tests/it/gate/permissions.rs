//! Permissions: for a class of calls, for an agent, and for how long.

use super::*;

/// TL-02.3
#[rstest]
#[tokio::test]
async fn class_of_calls_can_be_allowed_for_a_session(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let commit = json!({"command": "git", "args": ["commit", "-m", "x"]});
    let session = crate::conversation(&setup.user, &setup.project).await;
    let ask = async |session: Uuid, params: &Value| {
        let body =
            json!({"tool_name": "execute_command", "tool_params": params, "session_id": session});
        setup.post("tools/execute", body).await.expect(200)
    };
    let first = ask(session, &commit).await;
    setup.decide(&first, "approve", json!({"scope": "class"})).await.expect(200);
    let grants = setup.user.get(&setup.path("grants")).await.expect(200);
    assert_eq!(grants["total"], 1);
    let grant = &grants["grants"][0];
    assert_eq!(
        grant["words"],
        "every “git commit” that is asked about because of “isolation”, in this project and this session"
    );

    let again = ask(session, &commit).await;
    assert_eq!((&again["status"], &again["grant_id"]), (&json!("dispatched"), &grant["id"]));
    let other = crate::conversation(&setup.user, &setup.project).await;
    let other_session = ask(other, &commit).await;
    assert_eq!(other_session["status"], "pending_approval");
    let other_class = ask(session, &json!({"command": "git", "args": ["push", "--force"]})).await;
    assert_eq!(other_class["status"], "pending_approval");

    let withdrawn =
        setup.user.delete(&setup.path(&format!("grants/{}", grant["id"].as_str().unwrap()))).await;
    assert_eq!(withdrawn.status, 200);
    assert_eq!(ask(session, &commit).await["status"], "pending_approval");
}

/// TL-02.3: without a conversation, a session is the connection of the client.
#[rstest]
#[tokio::test]
async fn permission_for_a_connection_ends_with_it(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let allow = async |setup: &GateSetup| {
        let call = setup.execute("create_directory", json!({"path": "d"})).await;
        assert_eq!(call["status"], "pending_approval", "nothing is left of the last connection");
        setup.decide(&call, "approve", json!({"scope": "class"})).await.expect(200);
        assert_eq!(
            setup.execute("create_directory", json!({"path": "d"})).await["status"],
            "dispatched"
        );
    };
    allow(&setup).await;
    // The same process reconnects.
    let mut body = json!({"client_id": setup.client, "root": "/home/ann/shop", "os": "linux", "isolation": {}});
    body["resumed"] = json!(true);
    setup.post("clients", body).await.expect(200);
    assert_eq!(
        setup.execute("create_directory", json!({"path": "d"})).await["status"],
        "dispatched"
    );
    // Another process connects with the same identity.
    setup.connect().await;
    setup.until("GRANT_WITHDRAWN").await;
    allow(&setup).await;
    // A client disconnects explicitly.
    let away = setup.path(&format!("clients/{}", setup.client));
    assert_eq!(setup.user.delete(&away).await.status, 204);
    assert_eq!(setup.user.get(&setup.path("grants")).await.expect(200)["total"], 0);
    setup.connect().await;
    allow(&setup).await;
}

/// TL-02.3 TL-07.1: a session is a conversation of this project, and naming another agent does not
/// give its permissions.
#[rstest]
#[tokio::test]
async fn permission_of_one_agent_does_not_cover_another(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let session = crate::conversation(&setup.user, &setup.project).await;
    let ask = |session: Uuid| json!({"tool_name": "create_directory", "tool_params": {"path": "d"}, "agent_id": "coder", "session_id": session});
    let first = setup.post("tools/execute", ask(session)).await.expect(200);
    setup.decide(&first, "approve", json!({"scope": "agent"})).await.expect(200);
    assert_eq!(setup.post("tools/execute", ask(session)).await.expect(200)["status"], "dispatched");
    let agent = server.program("ann", "agent", &setup.project);
    let borrowed = agent.post(&setup.path("tools/execute"), ask(session)).await.expect(200);
    assert_eq!(borrowed["status"], "pending_approval");
    let elsewhere = GateSetup::new(server.user("ann")).await;
    let foreign = crate::conversation(&elsewhere.user, &elsewhere.project).await;
    for session in [Uuid::now_v7(), foreign] {
        assert_eq!(setup.post("tools/execute", ask(session)).await.status, 404);
    }
}

/// TL-02.1: the rules at the time of the run decide.
#[rstest]
#[tokio::test]
async fn approval_does_not_outlive_a_rule_change(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let touch = json!({"command": "touch", "args": ["a.txt"]});
    let rules = async |setup: &GateSetup, policy: Value| {
        setup.user.put(&setup.project, json!({"settings": {"policy": policy}})).await.expect(200);
    };
    let denied = setup.execute("execute_command", touch.clone()).await;
    let riskier = setup.execute("execute_command", touch.clone()).await;
    rules(&setup, json!({"deny": ["touch"]})).await;
    let answer = setup.decide(&denied, "approve", json!({"scope": "class"})).await.expect(200);
    assert_eq!(
        (&answer["status"], &answer["error"]["code"]),
        (&json!("denied"), &json!("command_not_allowed"))
    );
    assert_eq!(setup.user.get(&setup.path("grants")).await.expect(200)["total"], 0);
    rules(&setup, json!({"at_least": {"touch": "HIGH"}})).await;
    let again = setup.decide(&riskier, "approve", json!({})).await.expect(200);
    assert_eq!(
        (&again["status"], &again["risk_level"]),
        (&json!("pending_approval"), &json!("HIGH"))
    );
    assert_ne!(again["approval_id"], riskier["approval_id"]);
    assert_eq!(
        setup.decide(&again, "approve", json!({})).await.expect(200)["status"],
        "dispatched"
    );

    // The call is approved and waits for a machine. The new rules also apply when a machine
    // connects.
    let away = setup.path(&format!("clients/{}", setup.client));
    assert_eq!(setup.user.delete(&away).await.status, 204);
    let waiting = setup.execute("read_file", json!({"path": "a"})).await;
    assert_eq!(waiting["status"], "approved");
    rules(&setup, json!({"deny": ["read_file"]})).await;
    setup.connect().await;
    assert_eq!(setup.show(&waiting).await["status"], "denied");
}

/// TL-02.3: HIGH calls are covered only if the user says so.
#[rstest]
#[tokio::test]
async fn all_calls_of_an_agent_can_be_allowed_for_a_session(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let ask = async |agent: &str, tool: &str| {
        let body = json!({"tool_name": tool, "tool_params": {"path": "d"}, "agent_id": agent});
        setup.post("tools/execute", body).await.expect(200)
    };
    let first = ask("coder", "create_directory").await;
    setup.decide(&first, "approve", json!({"scope": "agent"})).await.expect(200);
    assert_eq!(ask("coder", "create_directory").await["status"], "dispatched");
    assert_eq!(ask("writer", "create_directory").await["status"], "pending_approval");
    let high = setup.preview(&ask("coder", "delete_file").await).await;
    assert_eq!(high["status"], "pending_approval");
    setup
        .decide(&high, "approve", json!({"scope": "agent", "include_high": true}))
        .await
        .expect(200);
    assert_eq!(ask("coder", "delete_file").await["status"], "dispatched");
}
