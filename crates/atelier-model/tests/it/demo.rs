//! The demo model as the agent loop and the orchestrator use it.

use atelier_model::{
    Answer, CallResult, Finish, JsonFormat, Message, Model, ModelAccess, ModelsConfig, Request,
    ToolSchema,
};
use serde_json::{Value, json};

const TOOLS: [&str; 5] = ["read_file", "write_file", "execute_command", "grep", "list_directory"];

async fn demo(name: &str) -> Model {
    crate::models(&ModelsConfig::default(), &crate::names::local())
        .resolve(name, &ModelAccess::default())
        .await
        .expect("a model")
}

async fn ask(model: &Model, request: &Request) -> Answer {
    let mut streamed = String::new();
    let answer = model.ask(request, |word| streamed.push_str(word)).await.expect("an answer");
    assert_eq!(answer.text, streamed);
    answer
}

/// Sends a message, answers the calls with `results`, and returns the calls and the final text.
async fn run(
    model: &Model,
    message: &str,
    results: &[(&str, bool)],
) -> (Vec<(String, Value)>, String) {
    let tool = |name: &&str| ToolSchema::new(*name, "", json!({"type": "object"}));
    let mut request = Request {
        messages: vec![
            Message::User("list everything".into()),
            Message::Assistant { text: "An older answer.".into(), calls: vec![] },
            Message::User(message.into()),
        ],
        tools: TOOLS.iter().map(tool).collect(),
        ..Request::default()
    };
    let (mut calls, mut results) = (Vec::new(), results.iter());
    loop {
        let answer = ask(model, &request).await;
        if answer.calls.is_empty() {
            assert_eq!(answer.finish, Finish::Stop);
            return (calls, answer.text);
        }
        assert_eq!(answer.finish, Finish::Calls);
        let mut answers = Vec::new();
        for call in &answer.calls {
            calls.push((call.name.clone(), serde_json::from_str(&call.arguments).expect("JSON")));
            let &(content, is_error) = results.next().expect("no more calls than results");
            answers.push(CallResult { id: call.id.clone(), content: content.into(), is_error });
        }
        request.messages.push(Message::Assistant { text: answer.text, calls: answer.calls });
        request.messages.push(Message::Results(answers));
    }
}

#[tokio::test]
async fn demo_calls_the_tool_and_quotes_the_result() {
    let (calls, text) =
        run(&demo("demo").await, "read README.md", &[(r##"{"content": "# Shop"}"##, false)]).await;
    assert_eq!(calls, [("read_file".into(), json!({"path": "README.md"}))]);
    assert_eq!(
        text,
        "(This is Atelier's built-in demo model, not an AI.)\n\nDone: read README.md\n```\n# \
         Shop\n```"
    );
}

#[tokio::test]
async fn demo_reports_a_denial_and_starts_nothing_after_it() {
    let message = "run rm -rf / then read README.md";
    let (calls, text) = run(&demo("demo").await, message, &[("Command not allowed", true)]).await;
    assert_eq!(calls, [("execute_command".into(), json!({"command": "rm", "args": ["-rf", "/"]}))]);
    assert!(
        text.contains("That did not work: run rm -rf /\n```\nCommand not allowed\n```"),
        "{text}"
    );
    assert!(text.ends_with("Not started because of this: read README.md"), "{text}");
}

#[tokio::test]
async fn several_requests_become_several_calls() {
    let message = "read a.txt then write b.txt: x";
    let (calls, text) =
        run(&demo("demo").await, message, &[("one", false), ("written", false)]).await;
    let tools: Vec<&str> = calls.iter().map(|(tool, _)| tool.as_str()).collect();
    assert_eq!(tools, ["read_file", "write_file"]);
    assert!(text.contains("one") && text.contains("written"), "{text}");
}

#[tokio::test]
async fn demo_explains_what_it_understands_and_which_model_it_replaces() {
    let (calls, text) = run(&demo("gpt-4").await, "make the shop faster", &[]).await;
    assert_eq!(calls, []);
    let reason = "It stands in for gpt-4 until a model provider has a key: enter one under Models in \
        the console, or with `atelier models add`.";
    assert!(text.contains(reason), "{text}");
    assert!(text.contains("- read README.md"), "{text}");
    let (_, text) = run(&demo("demo").await, "ускорь магазин", &[]).await;
    assert!(text.contains("прочитай README.md"), "{text}");
    let (_, text) = run(&demo("demo").await, "お店を速くして", &[]).await;
    assert!(text.contains("README.mdを読んで"), "{text}");
}

#[tokio::test]
async fn tool_that_the_agent_lacks_is_not_called() {
    let (calls, text) = run(&demo("demo").await, "delete old.txt", &[]).await;
    assert_eq!(calls, []);
    assert!(text.contains("the tool delete_file"), "{text}");
}

#[tokio::test]
async fn demo_plans_for_the_agents_in_the_schema() {
    let agent =
        json!({"enum": ["agent_coder", "agent_analyzer", "agent_writer", "agent_researcher"]});
    let schema = json!({"properties": {"tasks": {"items": {"properties": {"agent": agent}}}}});
    let format = Some(JsonFormat { name: "plan".into(), schema });
    let plan = async |message: &str| -> Value {
        let request = Request { format: format.clone(), ..crate::question(message) };
        serde_json::from_str(&ask(&demo("demo").await, &request).await.text).expect("JSON")
    };
    let task = |id: &str, description: &str, agent: &str, depends_on: &[&str]| json!({"id": id, "description": description, "agent": agent, "depends_on": depends_on});
    assert_eq!(
        plan("add a /health route").await,
        json!({"tasks": [task("1", "add a /health route", "agent_coder", &[])]})
    );
    assert_eq!(
        plan("read a.txt and search for main, then write notes.md: done").await,
        json!({"tasks": [
            task("1", "read a.txt", "agent_analyzer", &[]),
            task("2", "search for main", "agent_researcher", &[]),
            task("3", "write notes.md: done", "agent_writer", &["1", "2"]),
        ]})
    );
}

#[tokio::test]
async fn demo_plans_for_the_agents_in_the_prompt() {
    let system = "Plan for these agents:\n- `tester`: runs tests\n- fixer, repairs".into();
    let format = Some(JsonFormat { name: "plan".into(), schema: json!({"type": "object"}) });
    let request = Request { system, format, ..crate::question("run cargo test") };
    let plan: Value =
        serde_json::from_str(&ask(&demo("demo").await, &request).await.text).expect("JSON");
    assert_eq!(plan["tasks"][0]["agent"], "tester");
}
