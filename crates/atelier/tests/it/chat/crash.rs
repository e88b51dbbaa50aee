//! Servers that are killed while agents work.

use super::{Chat, with_model};
use crate::connect::client::{FixedProxy, Machine};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;

/// WS-08.3: where tasks do not go on by themselves, a task whose step was interrupted has failed and
/// says what was done; resuming it repeats nothing. A task that waits for approval continues, and queued tasks run.
#[rstest]
#[tokio::test]
async fn tasks_survive_a_killed_server(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut hangs = true;
    let script = move |asked: &Asked| match (asked.last("user"), asked.results().len()) {
        ("append", 0) => Reply::call(
            "write_file",
            json!({"path": "log.txt", "content": "x\n", "mode": "append"}),
        ),
        ("append", _) if std::mem::take(&mut hangs) => Reply::silence(),
        ("append", _) => Reply::text("appended once"),
        ("ask me", 0) => Reply::call("write_file", json!({"path": "asked.txt", "content": "yes"})),
        ("ask me", _) => Reply::text("written"),
        (other, _) => Reply::text(format!("heard {other}")),
    };
    let model = ScriptedModel::start(script).await;
    let machine = Machine::new();
    machine.write("log.txt", "");
    let builder = crate::build(backend).model(&model).with("WORK__RESUME_INTERRUPTED", false);
    let server = builder.start().await;
    let chat = Chat::new(&server, "ann").await;
    let proxy = FixedProxy::to(&server).await;
    let _client = machine.connect(&chat.setup, &proxy.url).await;

    let appending = chat.send("append", Some("coder")).await;
    let asked = chat.pending(1).await;
    chat.setup.decide(&asked[0], "approve", json!({})).await;
    model.answering(1).await;
    assert_eq!(machine.read("log.txt"), "x\n");
    let asking = chat.send("ask me", Some("writer")).await;
    let asked = chat.pending(1).await;

    let server = server.restart().await;
    proxy.point_to(&server);
    proxy.cut();
    let chat = Chat {
        session: chat.session.clone(),
        setup: crate::connect::client::ProjectSetup {
            user: chat.setup.user.at(&server),
            project: chat.setup.project.clone(),
            name: chat.setup.name.clone(),
        },
    };
    let failed = chat.task_until(&appending, "failed").await;
    assert_eq!(failed["error"]["code"], "interrupted");
    assert!(
        failed["error"]["detail"].as_str().unwrap().contains("1 steps were done before"),
        "{failed}"
    );

    assert_eq!(chat.task(&asking).await["status"], "parked");
    chat.setup.decide(&asked[0], "approve", json!({})).await;
    assert_eq!(chat.task_until(&asking, "completed").await["result"], "written");
    assert_eq!(machine.read("asked.txt"), "yes");

    let path = format!("tasks/{}/resume", appending["task_id"].as_str().unwrap());
    chat.setup.post(&path, json!(null)).await.expect(200);
    eventually("it is done", async || {
        let task = chat.task(&appending).await;
        (task["status"] == "completed").then_some(())
    })
    .await;
    assert_eq!(chat.task(&appending).await["result"], "appended once");
    assert_eq!(machine.read("log.txt"), "x\n", "what was done is not done again");
    assert_eq!(chat.setup.post(&path, json!(null)).await.problem(), (409, "already_settled"));
}

#[rstest]
#[tokio::test]
async fn running_tasks_continue_after_a_regular_stop(#[values(Sqlite, Postgres)] backend: Backend) {
    let mut hangs = true;
    let script = move |_: &Asked| match std::mem::take(&mut hangs) {
        true => Reply::silence(),
        false => Reply::text("here I am again"),
    };
    let model = ScriptedModel::start(script).await;
    let mut server = with_model(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let accepted = chat.send("hello", Some("coder")).await;
    model.answering(1).await;
    assert!(server.terminate().await.success());
    let server = server.restart_killed().await;
    let user = chat.setup.user.at(&server);
    let path = format!("{}/tasks/{}", chat.setup.project, accepted["task_id"].as_str().unwrap());
    eventually("it went on", async || {
        let task = user.get(&path).await.expect(200);
        (task["result"] == "here I am again").then_some(())
    })
    .await;
}

/// Appends once, then does not answer until the next request.
fn appends_and_hangs() -> impl FnMut(&Asked) -> Reply + Send + 'static {
    let mut hangs = true;
    move |asked: &Asked| match asked.results().len() {
        0 => Reply::call(
            "write_file",
            json!({"path": "log.txt", "content": "once\n", "mode": "append"}),
        ),
        _ if std::mem::take(&mut hangs) => Reply::silence(),
        _ => Reply::text("appended"),
    }
}

/// The steps that a task took before a regular stop are not repeated, and their usage is counted.
#[rstest]
#[tokio::test]
async fn continued_task_repeats_no_step(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(appends_and_hangs()).await;
    let mut server = with_model(backend, &model).await;
    let mut chat = Chat::on_own_files(&server, "ann").await;
    let accepted = chat.send("append", Some("coder")).await;
    model.answering(1).await;
    assert!(server.terminate().await.success());
    let server = server.restart_killed().await;
    chat.setup.user = chat.setup.user.at(&server);
    let task = chat.task_until(&accepted, "completed").await;
    assert_eq!(
        json!([
            task["steps"],
            task["usage"]["input_tokens"],
            task["journal"].as_array().unwrap().len()
        ]),
        json!([2, 20, 2])
    );
    let workspace = format!("/api/tenants/default/workspace/{}", chat.session);
    let files = chat.setup.user.get(&workspace).await.expect(200);
    assert_eq!(files["total_size"], 5, "{files}");
}

/// OP-04.3: a task goes on by itself after its server was killed, and does not have to wait for the
/// lease of the killed server on the conversation's files.
#[rstest]
#[tokio::test]
async fn killed_server_does_not_block_conversation_files(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start(appends_and_hangs()).await;
    let server = with_model(backend, &model).await;
    let mut chat = Chat::on_own_files(&server, "ann").await;
    let accepted = chat.send("append", Some("coder")).await;
    model.answering(1).await;
    let server = server.restart().await;
    chat.setup.user = chat.setup.user.at(&server);
    let task = chat.task_until(&accepted, "completed").await;
    assert_eq!(task["result"], "appended");
    let workspace = format!("/api/tenants/default/workspace/{}", chat.session);
    let files = chat.setup.user.get(&workspace).await.expect(200);
    assert_eq!(files["total_size"], 5, "the step before is not repeated: {files}");
}

/// The answer names the accepted message, which the restarted server has.
#[rstest]
#[tokio::test]
async fn waiting_request_is_answered_when_the_server_stops(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let mut server = with_model(backend, &model).await;
    let mut chat = Chat::new(&server, "ann").await;
    let path = format!("{}/chat/{}/message", chat.setup.project, chat.session);
    let request = chat.setup.user.request(Method::POST, &path).header("Prefer", "wait=30");
    let request = request.json(&json!({"content": "hello", "target_agent": "coder"}));
    let stop = async {
        model.answering(1).await;
        server.terminate().await
    };
    let (answer, ended) = tokio::join!(atelier_testkit::answer(request), stop);
    let accepted = answer.expect(202);
    assert!(ended.success());
    let server = server.restart_killed().await;
    chat.setup.user = chat.setup.user.at(&server);
    assert_eq!(chat.task(&accepted).await["message_id"], accepted["message_id"]);
    assert_eq!(chat.messages().await[0]["id"], accepted["message_id"]);
}
