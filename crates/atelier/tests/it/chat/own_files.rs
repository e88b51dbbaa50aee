//! Agents that work on the files of their conversation, which are on the server.

use super::{Chat, with_model};
use crate::connect::client::ProjectSetup;
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

async fn workspace(chat: &Chat) -> Value {
    let path = format!("/api/tenants/default/workspace/{}", chat.session);
    chat.setup.user.get(&path).await.expect(200)
}

/// The lines about the workspace in the system prompt that the model got, without the instructions.
fn workspace_block(asked: &Asked) -> Vec<String> {
    let prompt = asked.last("system");
    let (_, block) = prompt.split_once("<workspace>\n").unwrap_or_else(|| panic!("{prompt}"));
    let (block, instructions) = block.split_once("\ninstructions: ").unwrap();
    assert!(instructions.contains("present_files"), "{instructions}");
    block.lines().map(str::to_owned).collect()
}

/// FS-03 FS-05 FS-06 FS-11 FS-15: the prompt lists the conversation's files, the agent works on
/// them without approval and presents the result, and each file says who made it. Without the
/// workspace the agent has no tools for them.
#[rstest]
#[tokio::test]
async fn agent_works_on_the_files_of_its_conversation(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let script = |asked: &Asked| match asked.results().len() {
        _ if asked.last("system").contains("is switched off") => {
            let tools = asked.body["tools"].as_array().unwrap();
            let names = tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap());
            Reply::text(names.collect::<Vec<_>>().join(" "))
        }
        0 if asked.last("user").contains("list them") => Reply::text("Listed."),
        0 => Reply::call("read_file", json!({"path": "data.csv"})),
        1 => Reply::call("write_file", json!({"path": "sum.txt", "content": "3"}))
            .and_call(
                "edit_file",
                json!({"path": "data.csv", "edits": [{"old_text": "1", "new_text": "one"}]}),
            )
            .and_call("delete_file", json!({"path": "data.csv"}))
            .and_call("present_files", json!({"paths": ["sum.txt"], "description": "The sum"})),
        _ => Reply::text("Summed up."),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let user = server.user("ann");
    let project = user
        .post("/my/projects", json!({"name": "sheets", "workspace": "conversation"}))
        .await
        .expect(201);
    let project = format!("/my/projects/{}", project["id"].as_str().unwrap());
    let chat = Chat::of(ProjectSetup { user, project, name: "sheets".into() }).await;
    let form = reqwest::multipart::Form::new()
        .part("file", reqwest::multipart::Part::bytes(&b"1,2"[..]).file_name("my data.csv"))
        .text("path", "data.csv");
    let path = format!("/api/tenants/default/workspace/{}/files", chat.session);
    let put = chat.setup.user.request(Method::POST, &path).multipart(form).send().await.unwrap();
    assert_eq!(put.status(), 201);

    let answer = chat.ask("sum it up", Some("analyzer")).await;
    assert_eq!(answer["content"], "Summed up.");
    let seen = model.seen();
    let folder = server.data().join("workspaces").join(&chat.session);
    let path = format!("workspace_path: {}", folder.display());
    assert_eq!(
        workspace_block(&seen[0]),
        [&path, "files: 1", r#"- "data.csv" (original name "my data.csv", 3 bytes, user_upload)"#]
    );
    assert!(seen[1].results()[0].contains("1,2"));
    let results = seen[2].results();
    assert!(results[3].contains(r#""success":true"#), "{}", results[3]);
    assert!(results[4].contains("sum.txt"), "{}", results[4]);

    let files = workspace(&chat).await;
    let file = |path: &str| {
        let files = files["files"].as_array().unwrap();
        files
            .iter()
            .find(|file| file["file_path"] == path)
            .unwrap_or_else(|| panic!("{path}: {files:?}"))
            .clone()
    };
    let sum = file("sum.txt");
    assert_eq!(files["file_count"], 1);
    assert_eq!(
        json!([sum["source"], sum["is_presented"], sum["version"], sum["description"]]),
        json!(["ai_created", true, 1, "The sum"])
    );
    assert_eq!(chat.get("approvals?status=pending").await["total"], 0, "nobody was asked");
    assert_eq!(chat.ask("list them", Some("analyzer")).await["content"], "Listed.");
    assert_eq!(
        workspace_block(model.seen().last().unwrap()),
        [
            &path,
            "files: 1",
            r#"- "sum.txt" (original name "sum.txt", 1 bytes, ai_created, presented)"#,
        ]
    );

    let session = format!("{}/chat/sessions/{}", chat.setup.project, chat.session);
    let off =
        chat.setup.user.request(Method::PATCH, &session).json(&json!({"workspace_enabled": false}));
    assert_eq!(off.send().await.unwrap().status(), 200);
    assert_eq!(
        chat.ask("and now?", Some("analyzer")).await["content"],
        "search_context add_context",
        "memory does not depend on the workspace"
    );
}

/// A change since the agent's last read is a conflict and is not lost; the agent's own changes are
/// no conflict. Each step is announced once.
#[rstest]
#[tokio::test]
async fn change_by_another_user_is_a_conflict(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut waits = true;
    let script = move |asked: &Asked| match asked.results().len() {
        0 => Reply::call("read_file", json!({"path": "shared.txt"})),
        1 if std::mem::take(&mut waits) => Reply::silence(),
        1 => Reply::call("write_file", json!({"path": "shared.txt", "content": "mine"})),
        2 => Reply::call("read_file", json!({"path": "shared.txt"})),
        3 => Reply::call(
            "edit_file",
            json!({"path": "shared.txt", "edits": [{"old_text": "two", "new_text": "2"}]}),
        )
        .and_call(
            "edit_file",
            json!({"path": "./shared.txt", "edits": [{"old_text": "2", "new_text": "II"}]}),
        )
        .and_call("tool_present_files", json!({"paths": ["shared.txt"]})),
        _ => Reply::text("done"),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::on_own_files(&server, "ann").await;
    let path = format!("/api/tenants/default/workspace/{}", chat.session);
    chat.setup.user.upload(&path, "shared.txt", "one").await.expect(201);
    let mut events = chat.setup.user.events(&format!("{}/events", chat.setup.project), None).await;
    let accepted = chat.send("change it", Some("writer")).await;
    model.answering(1).await;
    chat.setup.user.upload(&path, "shared.txt", "two").await;
    let task = format!("tasks/{}", accepted["task_id"].as_str().unwrap());
    for what in ["cancel", "resume"] {
        chat.setup.post(&format!("{task}/{what}"), json!(null)).await.expect(200);
    }
    let task = chat.task_until(&accepted, "completed").await;

    let result = |step: usize, call: usize| &task["journal"][step]["calls"][call]["result"];
    assert_eq!(result(1, 0)["is_error"], true, "{}", result(1, 0));
    for (step, call) in [(3, 0), (3, 1), (3, 2)] {
        assert_eq!(result(step, call)["is_error"], false, "{}", result(step, call));
    }
    let files = workspace(&chat).await;
    let file = files["files"][0]["file_id"].as_str().unwrap();
    let (status, _, text) = chat.setup.user.download(&format!("{path}/files/{file}")).await;
    assert_eq!((status.as_u16(), text.unwrap().as_slice()), (200, &b"II"[..]));
    let mut reported = Vec::new();
    loop {
        let event = events.next().await;
        match event.name.as_str() {
            "USAGE" | "TASK_PROGRESS" => reported.push(event.name),
            "TASK_COMPLETED" => break,
            _ => {}
        }
    }
    let count = |name: &str| reported.iter().filter(|reported| *reported == name).count();
    assert_eq!((count("USAGE"), count("TASK_PROGRESS")), (5, 4), "{reported:?}");
}

/// The prompt says so only where tools act on a machine by default.
#[rstest]
#[tokio::test]
async fn prompt_says_how_to_reach_the_conversation_files(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let script = |asked: &Asked| match asked.results().len() {
        0 => Reply::call("read_file", json!({"path": "data.csv", "workspace": "conversation"})),
        _ => Reply::text("read"),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let on_a_machine = Chat::new(&server, "ann").await;
    let on_own_files = Chat::on_own_files(&server, "ann").await;
    for (chat, needs_it) in [(on_a_machine, true), (on_own_files, false)] {
        let path = format!("/api/tenants/default/workspace/{}", chat.session);
        chat.setup.user.upload(&path, "data.csv", "1,2").await.expect(201);
        assert_eq!(chat.ask("read it", Some("coder")).await["content"], "read");
        let seen = model.seen();
        let asked = seen.last().unwrap();
        let reported = asked.last("system");
        assert!(reported.contains("data.csv"), "{reported}");
        assert_eq!(
            reported.contains(r#"Pass "workspace": "conversation" in every call"#),
            needs_it,
            "{reported}"
        );
        assert!(asked.results()[0].contains("1,2"), "{}", asked.results()[0]);
    }
}

/// An id that is not a file of the conversation is refused.
#[rstest]
#[tokio::test]
async fn attachment_ids_become_paths_in_the_prompt(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|_: &Asked| Reply::text("seen")).await;
    let server = with_model(backend, &model).await;
    let (chat, other) = (Chat::new(&server, "ann").await, Chat::new(&server, "ann").await);
    let upload = async |chat: &Chat, name: &str| {
        let path = format!("/api/tenants/default/workspace/{}", chat.session);
        let saved = chat.setup.user.upload(&path, name, "1,2").await.expect(201);
        saved["files"][0]["file_id"].as_str().unwrap().to_owned()
    };
    let (data, theirs) = (upload(&chat, "data.csv").await, upload(&other, "theirs.csv").await);
    upload(&chat, "more.csv").await;
    let say = async |attachments: Value| {
        let body = json!({"content": "look", "target_agent": "coder", "attachments": attachments});
        chat.setup.post(&format!("chat/{}/message", chat.session), body).await
    };
    let refused = say(json!([data, theirs])).await;
    assert_eq!(refused.problem(), (422, "invalid_request"));
    assert!(refused.body["detail"].as_str().unwrap().contains(&theirs), "{}", refused.body);
    let stranger = Chat::new(&server, "bob").await;
    for id in [&data, &theirs] {
        let body = json!({"content": "look", "target_agent": "coder", "attachments": [id]});
        let nothing = stranger.setup.post(&format!("chat/{}/message", chat.session), body).await;
        assert_eq!(nothing.problem(), (404, "not_found"), "whether it is a file is not told");
    }
    assert_eq!(chat.messages().await, Vec::<Value>::new());

    let accepted = say(json!([data, "more.csv"])).await.expect(202);
    chat.task_until(&accepted, "completed").await;
    assert_eq!(model.seen()[0].last("user"), "look\n\nAttached: data.csv, more.csv");
}

/// FS-17: where a project's rules want a question about a change, the person is asked, and the
/// agent goes on with their answer. The question shows the change.
#[rstest]
#[tokio::test]
async fn agent_waits_for_the_person_where_the_project_wants_it(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let script = |asked: &Asked| match asked.results().len() {
        0 => Reply::call("write_file", json!({"path": "plan.txt", "content": "theirs\n"}))
            .and_call("read_file", json!({"path": "plan.txt"})),
        2 => Reply::call("delete_file", json!({"path": "plan.txt"})),
        _ => Reply::text("done"),
    };
    let model = ScriptedModel::start(script).await;
    let server = with_model(backend, &model).await;
    let chat = Chat::on_own_files(&server, "ann").await;
    let rules = json!({"at_least": {"write_file": "MEDIUM", "delete_file": "HIGH"}});
    chat.setup
        .user
        .put(&chat.setup.project, json!({"settings": {"policy": rules}}))
        .await
        .expect(200);
    let path = format!("/api/tenants/default/workspace/{}", chat.session);
    chat.setup.user.upload(&path, "plan.txt", "mine\n").await.expect(201);
    let accepted = chat.send("change it", Some("writer")).await;
    let mut seen = Vec::new();
    for (decision, tool) in [("approve", "write_file"), ("reject", "delete_file")] {
        let pending = atelier_testkit::eventually("the person is asked", async || {
            let list = chat.get("approvals?status=pending").await;
            list["approvals"].get(0).cloned()
        })
        .await;
        seen.push(json!([pending["tool_name"], pending["risk_level"]]));
        assert_eq!(pending["tool_name"], tool, "{pending}");
        chat.setup.decide(&pending, decision, json!({})).await;
    }
    let task = chat.task_until(&accepted, "completed").await;
    assert_eq!(seen, [json!(["write_file", "MEDIUM"]), json!(["delete_file", "HIGH"])]);
    let asked = model.seen();
    let results = asked.last().unwrap().results();
    assert!(results[0].contains(r#""success":true"#), "{}", results[0]);
    assert!(results[2].contains("Rejected by the user"), "{}", results[2]);
    let files = workspace(&chat).await;
    assert_eq!(
        json!([files["file_count"], files["files"][0]["version"], files["files"][0]["source"]]),
        json!([1, 2, "ai_modified"]),
        "{task}"
    );
}
