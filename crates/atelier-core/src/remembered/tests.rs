use super::{
    KnownSecrets, WITHHELD, cleaned, is_withheld, of_call, of_message, of_task, without_secrets,
};
use crate::{
    AgentId, CallId, ConversationId, Interaction, InteractionId, InteractionType, Message,
    MessageId, MessageRole, NewInteraction, ProjectId, Task, TaskFailure, TaskFailureCode, TaskId,
    TaskKind, TaskStatus, Usage,
    failure::FailureCode,
    gate::{CallFailure, CallStatus, GatedCall},
    policy::verdict::{Judgement, Verdict},
};
use chrono::DateTime;
use serde_json::{Value, json};
use uuid::Uuid;

const SECRET: &str = "hunter2-and-more";

fn call(tool: &str, params: Value, rule: &str, result: Value) -> GatedCall {
    let judgement = Judgement::new(Verdict::High, rule, "why");
    let id = CallId(Uuid::nil());
    let mut call = GatedCall::new(
        id,
        ProjectId(Uuid::nil()),
        tool.into(),
        params,
        &judgement,
        DateTime::UNIX_EPOCH,
    );
    call.agent_id = Some(AgentId(Uuid::nil()));
    call.status = CallStatus::Completed;
    call.result = serde_json::from_value(result).ok();
    call
}

fn text(call: &GatedCall) -> String {
    of_call(call).expect("a memory").1.text
}

#[test]
fn a_secret_file_is_remembered_as_read_and_not_what_it_held() {
    let content = json!({"success": true, "content": format!("NAME={SECRET}\nOTHER=plain words")});
    let read = call("read_file", json!({"path": ".env"}), "read_file file.secret", content);
    assert_eq!(text(&read), format!("read_file .env\n→ completed {WITHHELD}"));
    let (_, memory) = of_call(&read).expect("a memory");
    assert!(memory.success && memory.error_details.is_none());
}

#[test]
fn what_shows_secrets_is_withheld_through_every_door() {
    let command = |args: &[&str]| json!({"command": args[0], "args": &args[1..]});
    for (tool, params, rule) in [
        ("read_file", json!({"path": "sub/.env.local"}), "read_file"),
        ("read_file", json!({"path": "/home/ann/work/.env"}), "read_file"),
        // A link to a secret file, as the machine rates it.
        ("read_file", json!({"path": "notes.txt"}), "file.secret"),
        ("grep", json!({"pattern": "KEY", "path": ".env"}), "grep file.secret"),
        ("grep", json!({"pattern": "KEY", "glob": "*.pem"}), "grep file.secret"),
        ("execute_command", command(&["cat", ".env"]), "cat file.secret"),
        ("execute_command", command(&["cat", "a.txt", "deploy/id_rsa"]), "cat"),
        ("execute_command", command(&["git", "show", "HEAD:.env"]), "git.show"),
        ("execute_command", command(&["git", "log", "-p"]), "git.log history"),
        ("execute_command", command(&["tar", "cf", "-", "prod.env"]), "tar"),
        ("execute_command", command(&["python", "-c", "print(open('.env').read())"]), "python"),
        ("execute_command", command(&["grep", "--file=.npmrc", "x"]), "grep"),
        ("write_file", json!({"path": ".env", "content": SECRET}), "write_file file.secret"),
        ("edit_file", json!({"path": "a.key", "old_text": SECRET, "new_text": "x"}), "edit_file"),
        ("move_file", json!({"from": ".env", "to": "notes.txt"}), "move_file file.secret"),
    ] {
        let call = call(tool, params.clone(), rule, json!({"success": true, "stdout": SECRET}));
        assert!(is_withheld(&call), "{tool} {params} by {rule}");
        assert!(!text(&call).contains(SECRET), "{}", text(&call));
    }
}

#[test]
fn ordinary_calls_are_remembered_with_their_results() {
    for (tool, params, rule) in [
        ("read_file", json!({"path": "README.md"}), "read_file"),
        (
            "write_file",
            json!({"path": "setup.sh", "content": "cp .env.example .env"}),
            "write_file file.script",
        ),
        ("write_file", json!({"path": "README.md", "content": "Put keys into .env"}), "write_file"),
        ("execute_command", json!({"command": "git", "args": ["status"]}), "git.status"),
        ("execute_command", json!({"command": "cargo", "args": ["test", "env"]}), "cargo.test"),
    ] {
        let call = call(tool, params, rule, json!({"success": true, "stdout": "the quokka"}));
        assert!(!is_withheld(&call));
        assert!(text(&call).contains("the quokka"), "{}", text(&call));
    }
}

#[test]
fn an_exchange_is_remembered_once_with_what_was_wanted_and_what_came_of_it() {
    let secrets = KnownSecrets::default();
    let of_a_task = Message { task_id: Some(TaskId(Uuid::nil())), ..answer("It is done.") };
    assert_eq!(of_message(&of_a_task, &secrets), None);
    assert!(of_message(&answer("By the way"), &secrets).is_some());
    let (_, memory) = of_task(&task("It is done."), &secrets).expect("a memory");
    assert_eq!(memory.text, "Task: look at it\nOutcome: It is done.");
}

#[test]
fn keys_in_ordinary_results_are_masked() {
    let result =
        json!({"success": true, "stdout": "x\nDB_PASSWORD=hunter2\n", "password": "swordfish"});
    let ran = call(
        "execute_command",
        json!({"command": "make", "args": ["--token", "abc123def"]}),
        "make",
        result,
    );
    let kept = text(&ran);
    assert!(kept.contains("DB_PASSWORD=[masked: password]"), "{kept}");
    for value in ["hunter2", "swordfish", "abc123def"] {
        assert!(!kept.contains(value), "{kept}");
    }
}

#[test]
fn failed_calls_tell_no_output_of_secret_files() {
    let mut failed = call(
        "execute_command",
        json!({"command": "cat", "args": [".env", "missing"]}),
        "cat file.secret",
        json!({"success": false, "stdout": SECRET}),
    );
    failed.status = CallStatus::Failed;
    failed.error = Some(CallFailure::new(FailureCode::CommandFailed, format!("exit 1: {SECRET}")));
    let (_, memory) = of_call(&failed).expect("a memory");
    assert!(!memory.text.contains(SECRET), "{}", memory.text);
    assert_eq!(memory.error_details.as_deref(), Some("command_failed"));
    // The reason that a person gave for rejecting a call is not a secret.
    failed.result = None;
    failed.status = CallStatus::Rejected;
    failed.error =
        Some(CallFailure::new(FailureCode::ApprovalRejected, "Rejected by the user: never"));
    assert!(text(&failed).ends_with("→ Rejected by the user: never"), "{}", text(&failed));
}

fn answer(content: &str) -> Message {
    Message {
        id: MessageId(Uuid::nil()),
        project_id: ProjectId(Uuid::nil()),
        session_id: ConversationId(Uuid::nil()),
        role: MessageRole::Assistant,
        content: content.into(),
        attachments: Vec::new(),
        agent_id: Some(AgentId(Uuid::nil())),
        agent_name: None,
        model: None,
        usage: None,
        cost: None,
        task_id: None,
        plan_id: None,
        created_at: DateTime::UNIX_EPOCH,
    }
}

fn task(result: &str) -> Task {
    Task {
        id: TaskId(Uuid::nil()),
        project_id: ProjectId(Uuid::nil()),
        session_id: ConversationId(Uuid::nil()),
        message_id: MessageId(Uuid::nil()),
        plan_id: None,
        kind: TaskKind::Work,
        key: None,
        description: "look at it".into(),
        agent_id: Some(AgentId(Uuid::nil())),
        agent_name: None,
        depends_on: Vec::new(),
        status: TaskStatus::Completed,
        priority: 0,
        steps: 1,
        usage: Usage::default(),
        cost: 0.0,
        ran_ms: 0,
        result: Some(result.into()),
        error: None,
        created_at: DateTime::UNIX_EPOCH,
        started_at: None,
        completed_at: None,
    }
}

#[test]
fn answers_that_quote_a_secret_file_are_masked() {
    let content =
        "# settings\nGREETING=swordfish\nPORT=5432\nMODE=production\nurl: opaque/part-77aa\n";
    let read = call(
        "read_file",
        json!({"path": ".env"}),
        "read_file file.secret",
        json!({"success": true, "content": content, "path": ".env"}),
    );
    let secrets = KnownSecrets::shown_by([&read]);
    let printed = "In .env the greeting is swordfish on port 5432 in production, opaque/part-77aa.";
    let masked =
        "In .env the greeting is [masked: secret] on port 5432 in production, [masked: secret].";
    assert_eq!(of_message(&answer(printed), &secrets).expect("a memory").1.text, masked);
    let (_, memory) = of_task(&task(printed), &secrets).expect("a memory");
    assert_eq!(memory.text, format!("Task: look at it\nOutcome: {masked}"));
    let failed = Task {
        status: TaskStatus::Failed,
        result: None,
        error: Some(TaskFailure::new(TaskFailureCode::ModelFiltered, "withheld after: swordfish")),
        ..task("")
    };
    let (_, memory) = of_task(&failed, &secrets).expect("a memory");
    assert!(!format!("{memory:?}").contains("swordfish"), "{memory:?}");
    // A file without secrets teaches nothing.
    let other = call(
        "read_file",
        json!({"path": "a.txt"}),
        "read_file",
        json!({"success": true, "content": "x=swordfish"}),
    );
    assert!(KnownSecrets::shown_by([&other]).is_empty());
}

#[test]
fn nothing_with_a_key_can_be_added() {
    let mut note = NewInteraction::new(InteractionType::AgentResponse, "the token: \"f3a9c2d871\"")
        .with("env", json!({"API_TOKEN": "a1b2c3d4"}))
        .failed("password=hunter2");
    (note.embedding, note.embedder) = (Some(vec![1.0]), Some("x".into()));
    let kept = without_secrets(note.clone());
    assert_eq!(kept.text, "the token: \"[masked: token]\"");
    assert_eq!(kept.metadata["env"], json!({"API_TOKEN": "[masked: token]"}));
    assert_eq!(kept.error_details.as_deref(), Some("password=[masked: password]"));
    assert_eq!((&kept.embedding, &kept.embedder), (&None, &None), "made of the text with the key");
    let plain = NewInteraction { text: "plain".into(), ..note };
    assert!(without_secrets(plain).embedding.is_some());
    // An export of an older version holds what secret files held.
    let old = format!("read_file {{\"path\":\".env\"}}\n→ {{\"content\":\"{SECRET}\"}}");
    let kept = without_secrets(NewInteraction::new(InteractionType::ToolCall, old)).text;
    assert_eq!(kept, format!("read_file {{\"path\":\".env\"}}\n→ {WITHHELD}"));
}

fn stored(kind: InteractionType, text: &str) -> Interaction {
    Interaction {
        pinned: false,
        id: InteractionId(Uuid::nil()),
        text: text.into(),
        interaction_type: kind,
        success: true,
        error_details: None,
        timestamp: DateTime::UNIX_EPOCH,
        task_id: None,
        session_id: None,
        metadata: serde_json::Map::new(),
    }
}

#[test]
fn memories_of_older_versions_are_cleaned_by_rating_path_and_mask() {
    use InteractionType::{AgentResponse, ToolCall};
    let none = KnownSecrets::default();
    let clean = |kind, text: &str| cleaned(&stored(kind, text), None, &none).text;
    let old = format!("read_file {{\"path\":\".env\"}}\n→ {{\"content\":\"NAME={SECRET}\"}}");
    let new = format!("read_file {{\"path\":\".env\"}}\n→ {WITHHELD}");
    assert_eq!(clean(ToolCall, &old), new);
    assert_eq!(clean(ToolCall, &new), new, "cleaning again changes nothing");
    let write = format!(
        "write_file {{\"content\":\"{SECRET}\",\"path\":\".env\"}}\n→ {{\"success\":true}}"
    );
    assert_eq!(clean(ToolCall, &write), format!("write_file {{\"path\":\".env\"}}\n→ {WITHHELD}"));
    // Parameters that were cut are not JSON any more.
    let cut = format!(
        "write_file {{\"path\":\".env\",\"content\":\"{SECRET}\n[… 9 characters …]\n\n→ ok"
    );
    assert!(!clean(ToolCall, &cut).contains(SECRET), "{}", clean(ToolCall, &cut));
    // By the rating alone.
    let link = format!("read_file {{\"path\":\"notes.txt\"}}\n→ {{\"content\":\"{SECRET}\"}}");
    let rated = call(
        "read_file",
        json!({"path": "notes.txt"}),
        "file.secret",
        json!({"success": true, "content": SECRET}),
    );
    let kept = cleaned(&stored(ToolCall, &link), Some(&rated), &none).text;
    assert_eq!(kept, format!("read_file {{\"path\":\"notes.txt\"}}\n→ {WITHHELD}"));
    assert_eq!(clean(ToolCall, &link), link, "nothing says that it is one");
    // By the mask and by what was quoted.
    assert_eq!(clean(AgentResponse, "password: hunter2"), "password: [masked: password]");
    let secrets = KnownSecrets::shown_by([&call(
        "read_file",
        json!({"path": ".env"}),
        "",
        json!({"success": true, "content": "GREETING=swordfish"}),
    )]);
    let printed = cleaned(&stored(AgentResponse, "It says swordfish."), None, &secrets).text;
    assert_eq!(printed, "It says [masked: secret].");
    let plain = stored(ToolCall, "grep {\"pattern\":\"x\"}\n→ {\"matches\":[]}");
    assert_eq!(cleaned(&plain, None, &none), plain);
}
