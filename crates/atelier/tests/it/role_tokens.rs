//! Tokens that are given away: an agent's or a client's token reaches the project, or the
//! conversation, that it is for, and by every door only what the rules of the place give to a
//! program.

use crate::{
    build, conversation,
    mcp::project_of,
    openapi::{Operation, operations},
    provider::claims,
    start,
};
use atelier_testkit::{
    Answer,
    Backend::{self, Postgres, Sqlite},
    Server, User, eventually,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

/// One project of a user, with a conversation and an agent.
struct ProjectIds {
    project: String,
    agent: String,
    conversation: String,
}

impl ProjectIds {
    async fn make(owner: &User, name: &str) -> Self {
        let path = owner.project(name).await;
        let agents = owner.get(&format!("{path}/agents")).await.expect(200);
        Self {
            agent: agents["agents"][0]["id"].as_str().unwrap().to_owned(),
            conversation: conversation(owner, &path).await.to_string(),
            project: path.rsplit('/').next().unwrap().to_owned(),
        }
    }

    fn unknown() -> Self {
        let id = || Uuid::now_v7().to_string();
        Self { project: id(), agent: id(), conversation: id() }
    }

    fn in_path(&self, operation: &Operation) -> String {
        operation.fill(|name| match name {
            "project" => self.project.clone(),
            "agent" => self.agent.clone(),
            "session" | "conversation" => self.conversation.clone(),
            "tenant" => "default".into(),
            "provider" => "openai".into(),
            "number" => "1".into(),
            _ => Uuid::now_v7().to_string(),
        })
    }
}

async fn ask(user: &User, operation: &Operation, path: &str) -> Answer {
    let request = user.request(operation.method.clone(), path);
    let request = if operation.takes_body { request.json(&json!({})) } else { request };
    let response = request.send().await.unwrap();
    let (status, mut headers) = (response.status(), response.headers().clone());
    headers.remove("date");
    let streams = headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
    let bytes = if streams { Default::default() } else { response.bytes().await.unwrap() };
    Answer { status, headers, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

/// WS-09.2 TL-07.1: every route, with ids of another project and of another conversation of the
/// same user.
#[rstest]
#[tokio::test]
async fn role_token_reaches_only_what_it_is_for(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let (shop, blog) = (ProjectIds::make(&ann, "shop").await, ProjectIds::make(&ann, "blog").await);
    let second = conversation(&ann, &shop.project).await.to_string();
    let second = ProjectIds {
        project: shop.project.clone(),
        agent: shop.agent.clone(),
        conversation: second,
    };
    let bound = ["--role", "agent", "--project", "shop", "--conversation", &shop.conversation];
    let tokens = [
        (
            "an agent of the project",
            server.user_with("ann", &["--role", "agent", "--project", "shop"]),
        ),
        ("a client of the project", server.program("ann", "client", &shop.project)),
        ("an agent of the conversation", server.user_with("ann", &bound)),
    ];
    let mut tried = 0;
    for operation in operations(&server).await {
        let names = |name: &str| operation.parameters.iter().any(|parameter| parameter == name);
        if !names("project") && !names("conversation") {
            continue;
        }
        for (who, token) in &tokens {
            let unknown = ask(token, &operation, &ProjectIds::unknown().in_path(&operation)).await;
            assert!(matches!(unknown.status.as_u16(), 403 | 404), "{who}: {}", operation.label());
            let mut foreign = vec![&blog];
            if who.ends_with("conversation") && !operation.path.contains("/tools/{tool}") {
                // Not even the project of the conversation, or its other conversations.
                let session = names("session") || names("conversation");
                if session || !operation.path.ends_with("/tools/execute") {
                    foreign.push(&second);
                }
            }
            for place in foreign {
                let answer = ask(token, &operation, &place.in_path(&operation)).await;
                assert_eq!(answer, unknown, "{who}: {}", operation.label());
                tried += 1;
            }
        }
    }
    assert!(tried > 200, "{tried}");

    // Lists show only what the token is for.
    let ids = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect()
    };
    let conversations = "/api/tenants/default/conversations";
    for ((who, token), (project, own)) in tokens.iter().zip([
        (Some(&shop.project), vec![&second.conversation, &shop.conversation]),
        (Some(&shop.project), vec![&second.conversation, &shop.conversation]),
        (None, vec![&shop.conversation]),
    ]) {
        let projects = token.get("/my/projects").await.expect(200);
        assert_eq!(ids(&projects["projects"]), Vec::from_iter(project.cloned()), "{who}");
        let listed = token.get(conversations).await.expect(200);
        assert_eq!(
            ids(&listed["conversations"]),
            Vec::from_iter(own.into_iter().cloned()),
            "{who}"
        );
        assert_eq!(token.get("/my/events").await.problem(), (403, "forbidden"), "{who}");
    }
    // The conversation itself is there for its token, by each of its routes.
    let (_, bound) = &tokens[2];
    let chat = format!("/my/projects/{}/chat", shop.project);
    bound.get(&format!("{conversations}/{}", shop.conversation)).await.expect(200);
    bound.get(&format!("{chat}/sessions/{}/messages", shop.conversation)).await.expect(200);
    bound.get(&format!("/api/tenants/default/workspace/{}", shop.conversation)).await.expect(200);
    let mut events =
        bound.events(&format!("{chat}/{}/events", shop.conversation), Some("999999")).await;
    let reset = events.until("STREAM_RESET").await.data;
    assert_eq!(reset["snapshot"]["agents"], json!([]), "{reset}");
    // Its calls belong to the conversation, whether it says so or not.
    let execute = format!("/my/projects/{}/tools/execute", shop.project);
    let read = |session: Option<&str>| {
        let params = json!({"path": "a"});
        json!({"tool_name": "read_file", "tool_params": params, "session_id": session})
    };
    let call = bound.post(&execute, read(None)).await.expect(200);
    assert_eq!(call["session_id"], shop.conversation);
    let other = bound.post(&execute, read(Some(&second.conversation))).await;
    assert_eq!(other.problem(), (404, "not_found"));
    let owners = ann.post(&execute, read(Some(&second.conversation))).await.expect(200);
    for (call, status) in [(&call, 200), (&owners, 404)] {
        let path =
            format!("/my/projects/{}/tools/{}", shop.project, call["tool_id"].as_str().unwrap());
        assert_eq!(bound.get(&path).await.status, status);
    }
}

/// WS-09.2
#[tokio::test]
async fn role_token_without_a_project_is_refused() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let key = EncodingKey::from_secret(&std::fs::read(server.data().join("secret.key")).unwrap());
    let user: Uuid = ann.claims()["sub"].as_str().unwrap().parse().unwrap();
    for role in ["agent", "client"] {
        for project in [Value::Null, json!("shop"), json!(7)] {
            let mut claims = claims(user);
            (claims["role"], claims["project"]) = (json!(role), project);
            claims["tenant"] = json!("default");
            let token =
                jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
            let refused = server.bearer(token).get("/my/projects").await;
            assert_eq!(refused.problem(), (401, "unauthorized"), "{role}");
            let detail = refused.body["detail"].as_str().unwrap();
            assert!(detail.contains("project"), "{detail}");
            if claims["project"].is_null() {
                assert!(
                    detail.contains("atelier token --user NAME --role ROLE --project"),
                    "{detail}"
                );
            }
        }
    }
    // What an identity provider means by `project` in a person's token is its own business.
    let mut claims = claims(user);
    (claims["project"], claims["tenant"]) = (json!(7), json!("default"));
    let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
    server.bearer(token).get("/my/projects").await.expect(200);
}

/// A project, a machine that the test plays, and an agent's token for the project.
struct TokenSetup {
    ann: User,
    agent: User,
    project: String,
    client: Uuid,
}

impl TokenSetup {
    async fn new(server: &Server) -> Self {
        let ann = server.user("ann");
        let project = ann.project("shop").await;
        let client = Uuid::now_v7();
        let machine =
            json!({"client_id": client, "root": "/home/ann/shop", "os": "linux", "isolation": {}});
        ann.post(&format!("{project}/clients"), machine).await.expect(200);
        Self { agent: server.program("ann", "agent", &project), ann, project, client }
    }

    async fn execute(&self, who: &User, body: Value) -> Value {
        who.post(&format!("{}/tools/execute", self.project), body).await.expect(200)
    }

    async fn decide(&self, call: &Value, how: &str, body: Value) -> Value {
        let approval = call["approval_id"].as_str().unwrap();
        self.ann
            .post(&format!("{}/approvals/{approval}/{how}", self.project), body)
            .await
            .expect(200)
    }

    fn call(&self, call: &Value) -> String {
        format!("{}/tools/{}", self.project, call["tool_id"].as_str().unwrap())
    }

    async fn finish(&self, call: &Value, result: Value) -> Value {
        let body = json!({"client_id": self.client, "attempt": 1, "result": result});
        self.ann.post(&format!("{}/result", self.call(call)), body).await.expect(200)
    }
}

/// TL-02.3: the permissions of a conversation are for its own agents and its owner.
#[rstest]
#[tokio::test]
async fn agent_token_does_not_borrow_the_permissions_of_a_conversation(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = start(backend).await;
    let setup = TokenSetup::new(&server).await;
    let session = conversation(&setup.ann, &setup.project).await;
    let params = json!({"path": "d"});
    let ask =
        json!({"tool_name": "create_directory", "tool_params": params, "session_id": session});
    let first = setup.execute(&setup.ann, ask.clone()).await;
    setup.decide(&first, "approve", json!({"scope": "class"})).await;
    assert_eq!(setup.execute(&setup.ann, ask.clone()).await["status"], "dispatched");
    let (project, session) = (setup.project.rsplit('/').next().unwrap(), session.to_string());
    let bound = ["--role", "agent", "--project", project, "--conversation", &session];
    for token in [&setup.agent, &server.user_with("ann", &bound)] {
        assert_eq!(setup.execute(token, ask.clone()).await["status"], "pending_approval");
    }
    // A permission that is given later does not let them run either.
    let other = json!({"tool_name": "execute_command", "session_id": session,
        "tool_params": {"command": "mkdir", "args": ["b"]}});
    let waiting = setup.execute(&setup.agent, other.clone()).await;
    let owners = setup.execute(&setup.ann, other).await;
    setup.decide(&owners, "approve", json!({"scope": "class"})).await;
    assert_eq!(
        setup.ann.get(&setup.call(&waiting)).await.expect(200)["status"],
        "pending_approval"
    );
}

/// TL-07.1: what only the owner approved is not for programs, by any route.
#[rstest]
#[tokio::test]
async fn agent_token_does_not_read_calls_that_the_owner_approved(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    const SECRET: &str = "the merger was called off";
    let server = start(backend).await;
    let setup = TokenSetup::new(&server).await;
    let mut events = setup.agent.events(&format!("{}/events", setup.project), Some("0")).await;
    let read = json!({"tool_name": "read_file", "tool_params": {"path": ".env"}});
    let write = json!({"tool_name": "execute_command",
        "tool_params": {"command": "git", "args": ["commit", "-m", SECRET]}});
    let secret = setup.execute(&setup.ann, read.clone()).await;
    assert_eq!(
        (&secret["risk_level"], &secret["status"]),
        (&json!("HIGH"), &json!("pending_approval"))
    );
    setup.decide(&secret, "approve", json!({})).await;
    setup.finish(&secret, json!({"success": true, "content": SECRET})).await;
    let command = setup.execute(&setup.ann, write).await;
    assert_eq!(command["status"], "pending_approval");

    // What an agent of the server remembers of such a call is not for programs either.
    let context = format!("{}/agents/coder/context", setup.project);
    let params = json!({"command": "git", "args": ["commit", "-m", SECRET]});
    let body = json!({"tool_name": "execute_command", "tool_params": params, "agent_id": "coder"});
    let remembered = setup.execute(&setup.ann, body).await;
    setup.decide(&remembered, "approve", json!({})).await;
    setup.finish(&remembered, json!({"success": true, "stdout": SECRET})).await;
    let search = async |who: &User| {
        let query = json!({"query": SECRET, "mode": "lexical"});
        who.post(&format!("{context}/search"), query).await.expect(200)["results"].clone()
    };
    let found = eventually("the owner finds the memory", async || {
        search(&setup.ann).await.as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(search(&setup.agent).await, json!([]));
    let path = format!("{context}/interactions/{}", found["id"].as_str().unwrap());
    assert_eq!(setup.agent.get(&path).await.problem(), (404, "not_found"));

    // The owner sees all of it; the program sees that there was something.
    assert_eq!(setup.ann.get(&setup.call(&secret)).await.expect(200)["result"]["content"], SECRET);
    let seen = setup.agent.get(&setup.call(&secret)).await.expect(200);
    assert_eq!(
        json!([seen["status"], seen["result"], seen["tool_params"]]),
        json!(["completed", null, {}])
    );
    for path in ["tools", "approvals?status=all", "approvals", "audit", "grants"] {
        let path = format!("{}/{path}", setup.project);
        let printed = setup.agent.get(&path).await.expect(200).to_string();
        assert!(!printed.contains(SECRET) && !printed.contains(".env"), "{path}: {printed}");
    }
    let printed = setup.agent.get("/my/approvals").await.expect(200);
    assert_eq!(printed["total"], 1);
    assert!(!printed.to_string().contains(SECRET), "{printed}");
    let mut lost = setup.agent.events(&format!("{}/events", setup.project), Some("99999")).await;
    let snapshot = lost.until("STREAM_RESET").await.data.to_string();
    assert!(!snapshot.contains(SECRET), "{snapshot}");

    // Its own calls, and those that needed no approval, are open to it.
    let own = setup.execute(&setup.agent, read).await;
    setup.decide(&own, "approve", json!({})).await;
    setup.finish(&own, json!({"success": true, "content": "mine"})).await;
    assert_eq!(setup.agent.get(&setup.call(&own)).await.expect(200)["result"]["content"], "mine");
    let plain = json!({"tool_name": "read_file", "tool_params": {"path": "README.md"}});
    let plain = setup.execute(&setup.ann, plain).await;
    setup.finish(&plain, json!({"success": true, "content": "# Shop"})).await;
    assert_eq!(
        setup.agent.get(&setup.call(&plain)).await.expect(200)["result"]["content"],
        "# Shop"
    );
    // Another token of the same kind is another program.
    let other = server.program("ann", "agent", &setup.project);
    assert_eq!(other.get(&setup.call(&own)).await.expect(200)["result"], Value::Null);

    // The stream told of every call, and of no secret.
    let mut reported = Vec::new();
    while !reported.iter().any(|event: &Value| event["tool_params"]["path"] == "README.md") {
        reported.push(events.next().await.data);
    }
    let requests =
        reported.iter().filter(|event| event["tool_params"]["$link"].is_string()).count();
    assert!(requests >= 3, "{reported:?}");
    let reported = json!(reported).to_string();
    assert!(!reported.contains(SECRET) && !reported.contains(".env"), "{reported}");
}

/// TL-07.1: what an owner and their agents quote from a secret file is masked for programs, as it is
/// in memories.
#[rstest]
#[tokio::test]
async fn role_token_does_not_read_quoted_secrets(#[values(Sqlite, Postgres)] backend: Backend) {
    const VALUE: &str = "plum-orchard-77-gate";
    let server = start(backend).await;
    let setup = TokenSetup::new(&server).await;
    let session = conversation(&setup.ann, &setup.project).await.to_string();
    let read = json!({"tool_name": "read_file", "tool_params": {"path": ".env"},
        "session_id": session, "agent_id": "coder"});
    let call = setup.execute(&setup.ann, read).await;
    setup.decide(&call, "approve", json!({})).await;
    setup.finish(&call, json!({"success": true, "content": format!("DOOR={VALUE}\n")})).await;
    let project = setup.project.rsplit('/').next().unwrap();
    let bound = ["--role", "agent", "--project", project, "--conversation", &session];
    let programs = [
        ("an agent", server.program("ann", "agent", &setup.project)),
        ("a client", server.program("ann", "client", &setup.project)),
        ("an agent of the conversation", server.user_with("ann", &bound)),
    ];
    let stream = format!("{}/chat/{session}/events", setup.project);
    let mut streams = Vec::new();
    for (_, program) in &programs {
        streams.push(program.events(&stream, Some("0")).await);
    }
    let printed =
        json!({"content": format!("The door opens with {VALUE}."), "target_agent": "coder"});
    let path = format!("{}/chat/{session}/message", setup.project);
    setup.ann.post(&path, printed).await.expect(202);
    let tasks = format!("{}/tasks", setup.project);
    let task = eventually("the task ends", async || {
        let task = setup.ann.get(&tasks).await.expect(200)["tasks"][0].clone();
        matches!(task["status"].as_str(), Some("completed" | "failed")).then_some(task)
    })
    .await;
    // What the owner says is remembered without the value as well.
    let search = format!("{}/agents/coder/context/search", setup.project);
    let query = json!({"query": "door opens", "mode": "lexical", "types": ["task_execution"]});
    let found = eventually("the message is remembered", async || {
        let found = setup.ann.post(&search, query.clone()).await.expect(200)["results"].clone();
        (found != json!([])).then_some(found.to_string())
    })
    .await;
    assert!(found.contains("The door opens with [masked") && !found.contains(VALUE), "{found}");
    let messages = format!("{}/chat/sessions/{session}/messages", setup.project);
    assert!(setup.ann.get(&messages).await.expect(200).to_string().contains(VALUE));
    let (details, result) =
        (format!("{tasks}/{}", task["id"].as_str().unwrap()), setup.call(&call));
    for (who, program) in &programs {
        for path in [&messages, &tasks, &details, &result] {
            let answer = program.get(path).await;
            // A token for the conversation does not reach the tasks of the project.
            assert!(matches!(answer.status.as_u16(), 200 | 404), "{who}: {path}");
            let shown = answer.body.to_string();
            assert!(!shown.contains(VALUE), "{who}: {path}: {shown}");
        }
        assert!(program.get(&messages).await.expect(200).to_string().contains("[masked"), "{who}");
    }
    for (mut events, (who, _)) in streams.into_iter().zip(&programs) {
        let mut reported = Vec::new();
        while !reported.iter().any(|(name, _)| name == "TASK_COMPLETED" || name == "TASK_FAILED") {
            let event = events.next().await;
            reported.push((event.name, event.data));
        }
        assert!(reported.iter().any(|(name, _)| name == "MESSAGE_CREATED"), "{who}: {reported:?}");
        assert!(!format!("{reported:?}").contains(VALUE), "{who}: {reported:?}");
    }
}

/// WS-11.3: what the mount of a conversation refuses is refused by every other door.
#[rstest]
#[tokio::test]
async fn agent_token_reads_by_rest_what_the_mount_gives_it(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let server = build(backend).start().await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let project = project_of(&ann, &workspace).await;
    let mut files = Vec::new();
    for (name, content) in [
        (".env", "KEY=1"),
        ("plain.txt", "plain"),
        ("private/plan.txt", "plan"),
        (".atelierignore", "private/\n"),
    ] {
        let form = reqwest::multipart::Form::new()
            .text("path", name)
            .part("file", atelier_testkit::file("x", content));
        files.push(ann.send_form(&workspace, form).await.expect(201)["files"][0].clone());
        let again = reqwest::multipart::Form::new()
            .text("path", name)
            .part("file", atelier_testkit::file("x", format!("{content} ")));
        ann.send_form(&workspace, again).await.expect(201);
    }
    for role in ["agent", "client"] {
        let program = server.program("ann", role, &project);
        for (file, status) in files.iter().zip([200, 200, 404]) {
            let path = format!("{workspace}/files/{}", file["file_id"].as_str().unwrap());
            for rest in ["", "?inline=true", "/versions/1", "/diff"] {
                let (found, _, _) = program.download(&format!("{path}{rest}")).await;
                assert_eq!(found, status, "{role}: {}{rest}", file["file_path"]);
                assert_eq!(ann.download(&format!("{path}{rest}")).await.0, 200);
            }
        }
        let listed = program.get(&workspace).await.expect(200)["files"].clone();
        let names: Vec<&str> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|file| file["file_path"].as_str().unwrap())
            .collect();
        assert_eq!(names, [".atelierignore", ".env", "plain.txt"]);
        let (status, _, zip) = program.download(&format!("{workspace}/archive.zip")).await;
        assert_eq!(status, 200);
        let zip = String::from_utf8_lossy(&zip.unwrap()).into_owned();
        assert!(
            zip.contains("plain.txt") && zip.contains("KEY=1") && !zip.contains("plan.txt"),
            "{zip}"
        );
    }
    // What the mount would ask about is refused by REST, where nobody can be asked.
    let policy = json!({"settings": {"policy": {"at_least": {"read_file": "MEDIUM"}}}});
    ann.put(&format!("/my/projects/{project}"), policy).await.expect(200);
    let program = server.program("ann", "agent", &project);
    let path = format!("{workspace}/files/{}", files[1]["file_id"].as_str().unwrap());
    assert_eq!(program.download(&path).await.0, 403);
    assert_eq!(ann.download(&path).await.0, 200);
    // Switching the workspace off closes this door like the others.
    let path = workspace.replace("/workspace/", "/conversations/");
    ann.patch(&path, json!({"workspace_enabled": false})).await.expect(200);
    let program = server.program("ann", "agent", &project);
    assert_eq!(program.get(&workspace).await.problem(), (403, "workspace_disabled"));
    ann.get(&workspace).await.expect(200);
}
