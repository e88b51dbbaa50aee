//! Models in a minute: keys, tests, lists and the default model, without a restart.

use crate::{
    build,
    chat::Chat,
    connect::client::{Machine, ProjectSetup},
    start,
};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, Server, User, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    io::Write,
    process::{Output, Stdio},
};

const KEY: &str = "sk-own-0123456789abcdef";
const MODELS: &str = "/my/models";

/// Writes a file, then says so. Refuses every other key.
fn writes_a_file(asked: &Asked) -> Reply {
    let header = |name: &str| asked.headers.get(name).and_then(|value| value.to_str().ok());
    let key = header("x-api-key").or(header("authorization")).unwrap_or("");
    if key.contains("sk-") && !key.ends_with(KEY) {
        return Reply::status(401);
    }
    if asked.body["max_tokens"] == 16 {
        return Reply::text("OK");
    }
    match asked.body.to_string().contains("tool_result") || !asked.results().is_empty() {
        true => Reply::text("I wrote it."),
        false => Reply::call("write_file", json!({"path": "new.txt", "content": "hello"})),
    }
}

async fn default_model(user: &User) -> Value {
    user.get(MODELS).await.expect(200)["default"].clone()
}

/// From the first message to a changed, approved file.
async fn changes_a_file(server: &Server, user: &User) {
    let machine = Machine::new();
    let chat = Chat::of(ProjectSetup::new(user.clone()).await).await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let printed = chat.send("write new.txt: hello", Some("coder")).await;
    let asked = chat.pending(1).await;
    chat.setup.decide(&asked[0], "approve", json!({})).await;
    chat.task_until(&printed, "completed").await;
    assert_eq!(machine.read("new.txt").trim_end(), "hello");
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Newcomer {
    Anthropic,
    Ollama,
    Nothing,
}

/// DY-01 DY-02: a newcomer has only an Anthropic key, only Ollama, or nothing. All of them get to a
/// changed file without a restart and without a word of configuration.
#[rstest]
#[tokio::test]
async fn newcomer_gets_from_nothing_to_a_changed_file(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Newcomer::Anthropic, Newcomer::Ollama, Newcomer::Nothing)] newcomer: Newcomer,
) {
    let model = ScriptedModel::start(writes_a_file).await;
    let mut builder = build(backend).with("PROVIDERS__ANTHROPIC__BASE_URL", model.url());
    if newcomer == Newcomer::Ollama {
        model.list(&["qwen3:8b"]);
        builder = builder.with("PROVIDERS__OLLAMA__BASE_URL", model.url());
    }
    let server = builder.start().await;
    let ann = server.user("ann");
    let answered_by = match newcomer {
        Newcomer::Anthropic => {
            assert_eq!(default_model(&ann).await["answered_by"], "demo");
            let test = format!("{MODELS}/providers/anthropic/test");
            let wrong = ann.post(&test, json!({"key": "sk-wrong-0123456789"})).await.expect(200);
            assert_eq!(
                json!([wrong["success"], wrong["problem"]]),
                json!([false, "anthropic rejected its key: enter a valid one"])
            );
            let right = ann.post(&test, json!({"key": KEY})).await.expect(200);
            assert_eq!(
                json!([right["success"], right["model"]]),
                json!([true, "anthropic/claude-sonnet-4-5"])
            );
            let key = json!({"key": KEY});
            let stored = ann.put(&format!("{MODELS}/providers/anthropic"), key).await;
            assert_eq!(stored.status, 204);
            "anthropic/claude-sonnet-4-5"
        }
        Newcomer::Ollama => "ollama/qwen3:8b",
        Newcomer::Nothing => "demo",
    };
    let default = json!({"answered_by": answered_by, "problem": null, "chosen": null});
    assert_eq!(default_model(&ann).await, default);
    let project = ann.project("garden").await;
    let coder = ann.get(&format!("{project}/agents/coder")).await.expect(200);
    assert_eq!(
        json!([coder["config"]["model"], coder["answered_by"], coder["model_problem"]]),
        json!(["gpt-4", answered_by, null])
    );
    changes_a_file(&server, &ann).await;
    assert!(!server.log().contains(KEY));
}

/// DY-01: a person's key comes before the tenant's, and the tenant's before the server's. Everybody
/// changes only what is theirs.
#[rstest]
#[tokio::test]
async fn keys_are_for_a_person_a_tenant_or_the_server(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    // Nothing listens there, so that no test asks the real provider for its models.
    let server =
        build(backend).with("PROVIDERS__OPENAI__BASE_URL", "http://127.0.0.1:9/v1").start().await;
    let root = server.user_with("root", &["--role", "admin"]);
    let ann = server.user("ann");
    let other = server.user_with("boss", &["--tenant", "other", "--role", "admin"]);
    let openai = format!("{MODELS}/providers/openai");
    let key_of = async |user: &User| {
        let overview = user.get(MODELS).await.expect(200);
        let providers = overview["providers"].as_array().unwrap().clone();
        let openai = providers.iter().find(|provider| provider["name"] == "openai").unwrap();
        json!([openai["key"], openai["stored"].as_array().unwrap().len(), overview["may_change"]])
    };
    assert_eq!(key_of(&ann).await, json!(["missing", 0, ["own"]]));
    assert_eq!(key_of(&other).await, json!(["missing", 0, ["own", "tenant"]]));
    assert_eq!(key_of(&root).await, json!(["missing", 0, ["own", "tenant", "server"]]));

    let put = async |user: &User, level: &str| {
        user.put(&openai, json!({"level": level, "key": KEY})).await
    };
    for (user, level) in [(&ann, "tenant"), (&ann, "server"), (&other, "server")] {
        assert_eq!(put(user, level).await.problem(), (403, "forbidden"), "{level}");
    }
    assert_eq!(put(&root, "server").await.status, 204);
    assert_eq!(key_of(&ann).await[0], "server");
    assert_eq!(key_of(&other).await[0], "server");
    assert_eq!(put(&other, "tenant").await.status, 204);
    assert_eq!(key_of(&other).await, json!(["tenant", 1, ["own", "tenant"]]));
    assert_eq!(put(&ann, "own").await.status, 204);
    assert_eq!(key_of(&ann).await, json!(["own", 1, ["own"]]));
    let bob = server.user("bob");
    assert_eq!(key_of(&bob).await, json!(["server", 0, ["own"]]));

    // Only the server's admins see and change addresses.
    let moved = json!({"base_url": "http://127.0.0.1:9/v2"});
    assert_eq!(ann.put(&openai, moved.clone()).await.problem(), (422, "invalid_request"));
    let test = format!("{openai}/test");
    assert_eq!(ann.post(&test, moved).await.problem(), (422, "invalid_request"));
    let overview = ann.get(MODELS).await.expect(200);
    assert_eq!(overview["providers"][0]["base_url"], Value::Null);

    // The server's admin moves the provider: nobody's key goes to the new address.
    let moved = json!({"level": "server", "base_url": "http://127.0.0.1:9/v2"});
    assert_eq!(root.put(&openai, moved).await.status, 204);
    for (user, key) in [(&ann, "unusable"), (&other, "unusable"), (&bob, "missing")] {
        assert_eq!(key_of(user).await[0], key);
    }
    let removed = ann.delete(&format!("{openai}?level=own")).await;
    assert_eq!(removed.status, 204);
    assert_eq!(key_of(&ann).await[0], "missing");
    let again = ann.delete(&format!("{openai}?level=own")).await;
    assert_eq!(again.problem(), (404, "not_found"));
    assert_eq!(ann.delete(&format!("{openai}?level=server")).await.problem(), (403, "forbidden"));
}

/// DY-01: another node uses a new key and a new provider without a restart.
#[tokio::test]
async fn other_nodes_use_new_keys_without_a_restart() {
    let model = ScriptedModel::start(writes_a_file).await;
    model.list(&["house-1", "house-2"]);
    let one = start(Postgres).await;
    let two = one.second_node().await;
    let root = one.user_with("root", &["--role", "admin"]);
    let house = json!({
        "level": "server", "kind": "open_ai_compatible", "base_url": model.url(), "key": KEY,
        "models": {"house-2": {"context_window": 5000, "input_price": 1.5, "output_price": 3.0}},
    });
    assert_eq!(root.put(&format!("{MODELS}/providers/house"), house).await.status, 204);
    let there = root.at(&two);
    let provider = eventually("the other node has it", async || {
        let overview = there.get(MODELS).await.expect(200);
        let providers = overview["providers"].as_array().unwrap().clone();
        providers.into_iter().find(|provider| provider["name"] == "house")
    })
    .await;
    let listed = json!([
        {"name": "house/house-1", "context_window": 32768, "input_price": null,
            "output_price": null},
        {"name": "house/house-2", "context_window": 5000, "input_price": 1.5, "output_price": 3.0},
    ]);
    assert_eq!(provider["models"], listed);
    let choose = json!({"level": "server", "model": "house/house-1"});
    assert_eq!(root.put(&format!("{MODELS}/default"), choose).await.status, 204);
    let ann = two.user("ann");
    eventually("the other node has the default", async || {
        (default_model(&ann).await["answered_by"] == "house/house-1").then_some(())
    })
    .await;
    changes_a_file(&two, &ann).await;
    assert_eq!(model.seen().last().unwrap().body["model"], "house-1");

    let unknown = json!({"model": "house/house-3"});
    let refused = ann.put(&format!("{MODELS}/default"), unknown).await;
    assert_eq!(refused.problem(), (422, "invalid_request"));
    assert!(refused.body["detail"].as_str().unwrap().contains("did you mean house/house-"));
    let removed = root.delete(&format!("{MODELS}/providers/house?level=server")).await;
    assert_eq!(removed.status, 204);
}

/// DY-04: unknown models, tools and settings are refused, with the nearest known name.
#[tokio::test]
async fn unknown_models_tools_and_settings_are_refused() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    let agents = format!("{project}/agents");
    let coder = format!("{agents}/coder");
    let refused = async |answer: atelier_testkit::Answer, words: &str| {
        assert_eq!(answer.problem(), (422, "invalid_request"), "{words}");
        assert!(answer.body["detail"].as_str().unwrap().contains(words), "{}", answer.body);
    };
    let config = |config: Value| json!({"name": "new", "config": config});
    for (wrong, words) in [
        (json!({"model": "opnai/gpt-4o"}), "did you mean openai/gpt-4o?"),
        (json!({"model": "gpt-4oo"}), "did you mean gpt-4o?"),
        (json!({"tools": ["read_flie"]}), "did you mean read_file?"),
    ] {
        refused(ann.post(&agents, config(wrong.clone())).await, words).await;
        refused(ann.put(&coder, json!({"config": wrong})).await, words).await;
    }
    for (settings, words) in [
        (json!({"planer": {}}), "there is no \"planer\": did you mean planner?"),
        (json!({"planner": {"model": "demmo"}}), "did you mean demo?"),
        (
            json!({"colour": "blue"}),
            "known are policy, planner, limits, budget, approvals, metadata",
        ),
    ] {
        refused(ann.put(&project, json!({"settings": settings})).await, words).await;
        let new = json!({"name": "other", "settings": settings});
        refused(ann.post("/my/projects", new).await, words).await;
    }
    let fine = config(json!({"model": "demo", "tools": ["read_file", "search_context"]}));
    ann.post(&agents, fine).await.expect(201);
    let fine = json!({"settings": {"metadata": {"colour": "blue"}, "planner": {"model": "demo"}}});
    ann.put(&project, fine).await.expect(200);
}

/// Runs `atelier models` on a machine, with this text as its standard input.
async fn models_command(
    machine: &Machine,
    url: &str,
    user: &User,
    arguments: &[&str],
    input: &str,
) -> Output {
    let mut command = machine.program(&["models", "--server", url]);
    command.args(arguments).env("ATELIER_TOKEN", &user.token);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    running.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    tokio::task::spawn_blocking(move || running.wait_with_output().unwrap()).await.unwrap()
}

/// DY-05
#[tokio::test]
async fn models_command_lists_adds_tests_chooses_and_removes() {
    let model = ScriptedModel::start(writes_a_file).await;
    model.list(&["claude-a", "claude-b"]);
    let server = build(Sqlite).with("PROVIDERS__ANTHROPIC__BASE_URL", model.url()).start().await;
    let (machine, ann) = (Machine::new(), server.user("ann"));
    let run = async |arguments: &[&str], input: &str| {
        let output = models_command(&machine, &server.url, &ann, arguments, input).await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (_, list, _) = run(&[], "").await;
    assert!(list.starts_with("default: demo"), "{list}");
    assert!(list.contains("atelier models add openai"), "{list}");

    let (code, _, printed) = run(&["add", "anthropic"], "sk-wrong-0123456789\n").await;
    assert_eq!(code, 1);
    assert!(
        printed.contains("rejected its key") && printed.contains("Nothing was stored"),
        "{printed}"
    );
    let (code, printed, _) = run(&["add", "anthropic"], &format!("{KEY}\n")).await;
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("anthropic/claude-sonnet-4-5 answered in"), "{printed}");
    let (_, list, _) = run(&["list", "--json"], "").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["default"]["answered_by"], "anthropic/claude-sonnet-4-5");
    let (code, printed, _) = run(&["test"], "").await;
    assert_eq!((code, printed.lines().count()), (0, 1), "{printed}");
    let (_, printed, _) = run(&["default", "anthropic/claude-b"], "").await;
    assert_eq!(printed, "default: anthropic/claude-b (chosen: own)\n");
    let (code, _, printed) = run(&["default", "anthropic/claude-c"], "").await;
    assert_eq!(code, 1);
    assert!(printed.contains("did you mean anthropic/claude-"), "{printed}");
    let (_, printed, _) = run(&["default", "--automatic"], "").await;
    assert!(printed.starts_with("default: anthropic/claude-sonnet-4-5"), "{printed}");
    let (code, _, _) = run(&["remove", "anthropic"], "").await;
    assert_eq!(code, 0);
    let (_, list, _) = run(&[], "").await;
    assert!(list.starts_with("default: demo"), "{list}");
}

/// DY-05
#[tokio::test(flavor = "multi_thread")]
async fn doctor_tests_the_keys_of_the_configuration() {
    let model = ScriptedModel::queue([Reply::text("OK"), Reply::status(401)]).await;
    let server = build(Sqlite).model(&model).start().await;
    let doctor = || {
        let output = server.command(&["doctor"]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (healthy, printed) = tokio::task::block_in_place(doctor);
    assert!(healthy && printed.contains("the key for openai works (openai/gpt-4o"), "{printed}");
    let (healthy, printed) = tokio::task::block_in_place(doctor);
    assert!(!healthy && printed.contains("✗ models: openai rejected its key"), "{printed}");
}
