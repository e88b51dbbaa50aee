//! The tools and rules of a project, as its members see and set them.

use super::*;

/// Isolation is checked before a user is asked, and again when a machine connects later.
#[rstest]
#[tokio::test]
async fn isolation_can_be_required_for_commands(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("GATE__DEMAND_ISOLATION", "true").start().await;
    let mut setup = GateSetup::new(server.user("ann")).await;
    let list = json!({"command": "ls", "args": []});
    let refused = setup.execute("execute_command", list.clone()).await;
    assert_eq!(
        (&refused["status"], &refused["error"]["code"]),
        (&json!("denied"), &json!("isolation_required"))
    );
    assert_eq!(setup.execute("read_file", json!({"path": "a"})).await["status"], "dispatched");

    assert_eq!(
        setup.user.delete(&setup.path(&format!("clients/{}", setup.client))).await.status,
        204
    );
    let waiting = setup.execute("execute_command", list.clone()).await;
    assert_eq!(waiting["status"], "approved");
    setup.connect().await;
    let late = setup.show(&waiting).await;
    assert_eq!(
        (&late["status"], &late["error"]["code"]),
        (&json!("failed"), &json!("isolation_required"))
    );

    let isolation = json!({"enforces_read_only": true});
    let body = json!({"client_id": setup.client, "root": "/home/ann/shop", "os": "linux", "isolation": isolation});
    setup.post("clients", body).await.expect(200);
    assert_eq!(setup.execute("execute_command", list).await["status"], "dispatched");
    assert_eq!(setup.user.get("/my/policy").await.expect(200)["demand_isolation"], true);
}

/// Rules that cannot be read or that protect nothing are refused.
#[rstest]
#[tokio::test]
async fn invalid_project_rules_are_refused(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    for policy in
        [json!({"deny": "everything"}), json!({"bogus": 1}), json!({"deny": ["toch"]}), json!(null)]
    {
        let settings = json!({"settings": {"policy": policy}});
        assert_eq!(
            setup.user.put(&setup.project, settings.clone()).await.status,
            422,
            "{settings}"
        );
        let project = json!({"name": "another", "settings": settings["settings"]});
        assert_eq!(setup.user.post("/my/projects", project).await.status, 422, "{settings}");
    }
    let settings = json!({"settings": {"policy": {"deny": ["read_file"]}}});
    setup.user.put(&setup.project, settings).await.expect(200);
    let call = setup.execute("read_file", json!({"path": "a"})).await;
    assert_eq!(
        call["error"]["detail"],
        "Command not allowed: This project does not allow read_file."
    );
}

/// TL-04.4: every tool's schema, usual risk and approval flag are listed, and an ordinary call of
/// the tool is treated that way.
#[rstest]
#[tokio::test]
async fn available_tools_have_schema_risk_and_approval_flag(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = GateSetup::new(server.user("ann")).await;
    let available = setup.user.get(&setup.path("tools/available")).await.expect(200);
    let edits = json!([{"old_text": "a", "new_text": "b"}]);
    // Tool, risk, required parameters, optional parameters, and an ordinary call.
    let expected = [
        ("read_file", "LOW", "path", "head tail", json!({"path": "a"})),
        (
            "write_file",
            "MEDIUM",
            "path content",
            "create_dirs if_checksum mode",
            json!({"path": "a", "content": "x"}),
        ),
        ("edit_file", "MEDIUM", "path edits", "if_checksum", json!({"path": "a", "edits": edits})),
        ("list_directory", "LOW", "", "path pattern recursive", json!({})),
        ("search_files", "LOW", "pattern", "max_results path", json!({"pattern": "*"})),
        (
            "grep",
            "LOW",
            "pattern",
            "context glob ignore_case literal max_results path",
            json!({"pattern": "x"}),
        ),
        ("create_directory", "MEDIUM", "path", "", json!({"path": "d"})),
        ("get_file_info", "LOW", "path", "", json!({"path": "a"})),
        (
            "move_file",
            "MEDIUM",
            "source destination",
            "",
            json!({"source": "a", "destination": "b"}),
        ),
        ("delete_file", "HIGH", "path", "", json!({"path": "a"})),
        (
            "execute_command",
            "MEDIUM",
            "command",
            "args cwd timeout",
            json!({"command": "npm", "args": ["install"]}),
        ),
        ("shell", "LOW", "script", "background network timeout", json!({"script": "ls | wc"})),
        ("changes", "LOW", "", "", json!({})),
        ("diff", "LOW", "", "paths", json!({"paths": ["a"]})),
        ("land", "MEDIUM", "", "paths replace", json!({})),
        ("discard", "LOW", "", "paths", json!({})),
        ("undo", "MEDIUM", "", "session_id task_id tool_id", json!({})),
        ("jobs", "LOW", "", "", json!({})),
        ("job_output", "LOW", "job_id", "limit offset", json!({"job_id": "1"})),
        ("job_stop", "LOW", "job_id", "", json!({"job_id": "1"})),
    ];
    let tools = available["tools"].as_array().unwrap();
    assert_eq!(tools.len(), expected.len());
    for (name, risk, required, optional, params) in expected {
        let tool = tools.iter().find(|tool| tool["name"] == name).unwrap();
        let asks = risk != "LOW";
        let required: Vec<&str> = required.split_whitespace().collect();
        let mut names: Vec<&str> =
            optional.split_whitespace().chain(required.iter().copied()).collect();
        names.sort_unstable();
        let schema = &tool["parameters"];
        let mut properties: Vec<&String> =
            schema["properties"].as_object().unwrap().keys().collect();
        properties.sort_unstable();
        assert_eq!(properties, names, "{name}");
        assert!(tool["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        assert_eq!(
            json!([
                tool["name"],
                tool["usual_risk"],
                tool["requires_approval"],
                schema["type"],
                schema["required"],
                schema["additionalProperties"],
            ]),
            json!([name, risk, asks, "object", required, false]),
        );
        let call = setup.execute(name, params).await;
        // Nobody knows the sandbox of this machine, so scripts are asked about there.
        let (risk, asks) = if name == "shell" { ("MEDIUM", true) } else { (risk, asks) };
        assert_eq!(
            json!([call["tool_name"], call["risk_level"], call["requires_approval"]]),
            json!([name, risk, asks]),
            "{call}"
        );
    }
}
