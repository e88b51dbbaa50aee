//! Adds a tool with a definition and a function, and nothing else. ARCHITECTURE.md promises that
//! this is enough.

#![allow(clippy::unwrap_used, reason = "a test that fails says so")]

use std::io::{Read, Write};
use std::net::TcpStream;

use atelier_core::digest::CallDigest;
use atelier_core::gate::ToolOutcome;
use atelier_core::path::Roots;
use atelier_core::policy::verdict::Verdict;
use atelier_core::policy::{Access, Policy};
use atelier_core::tools::{
    CardRow, Effect, Kind, McpForm, Offered, Output, OutputKind, Param, Rating, ToolDef, ToolTable,
};
use atelier_executor::{
    Approval, Cancel, Error, Functions, Options, Origin, Part, ReadyCall, Tools, Workspace,
};
use atelier_mcp::hosts::AllowedHosts;
use atelier_mcp::{ServedWorkspace, Settings, WorkspaceServer, http};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

static COUNT_LINES: ToolDef = ToolDef {
    name: "count_lines",
    title: "Count lines",
    description: "Count the lines of a file.",
    params: &[
        Param::required("path", Kind::File(Access::Read), "File path relative to {root}"),
        Param::default("skip_empty", Kind::Flag, "Leave out empty lines").aliases(&["skip_blank"]),
    ],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only reads a file of the workspace.",
    has_preview: false,
    card: &[CardRow::new("path", "{path}")],
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "Count the lines of a text file.",
        walks: false,
        output: &[Output::new("path", OutputKind::Text), Output::new("lines", OutputKind::Number)],
    }),
};

fn count_lines(ready: &ReadyCall<'_>) -> Result<ToolOutcome, Error> {
    let path = ready.call.path("path")?;
    let content = ready.tools.workspace.read(path, Part::Whole)?;
    let text = String::from_utf8_lossy(&content.bytes).into_owned();
    let skip_empty = ready.call.flag("skip_empty");
    let lines = text.lines().filter(|line| !skip_empty || !line.is_empty()).count();
    let fields = json!({ "path": path.as_str(), "lines": lines });
    Ok(ToolOutcome::succeeded(fields.as_object().cloned().unwrap_or_default()))
}

fn policy() -> Policy {
    Policy::builtin().with_tools(ToolTable::builtin().with(&COUNT_LINES))
}

#[test]
fn a_defined_tool_is_parsed_rated_digested_listed_and_shown() {
    let (policy, roots) = (policy(), Roots::relative_only());
    let judge = |params: Value| policy.judge_request("count_lines", params, &roots);

    // Its parameters are checked, also in their other spellings, and have one canonical form.
    let (call, judgement) = judge(json!({"path": "./src//a.rs", "skip_blank": true}));
    let call = call.unwrap();
    assert_eq!((judgement.verdict, judgement.rule.as_str()), (Verdict::Low, "count_lines"));
    let canonical = json!({"path": "src/a.rs", "skip_empty": true});
    assert_eq!(call.clone().into_params(), canonical);
    let error = judge(json!({"skip_empty": "yes", "env": 1})).0.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Invalid parameters: Missing required parameters: path; \
         Parameter 'skip_empty' must be true or false; Unknown parameters: env"
    );

    // Rules about files and restrictions hold for it.
    let (_, secret) = judge(json!({"path": ".env"}));
    assert_eq!((secret.verdict, secret.rule.as_str()), (Verdict::High, "count_lines file.secret"));
    assert_eq!(policy.paths(&call, &roots)[0].access, Access::Read);
    let restricted = serde_json::from_value(json!({"deny": ["count_lines"]})).unwrap();
    assert_eq!(policy.check_restrictions(&restricted), Ok(()));
    assert!(Policy::builtin().check_restrictions(&restricted).is_err());

    // Its digest covers every parameter.
    let digest = |params: Value| CallDigest::of(&judge(params).0.unwrap());
    assert_eq!(digest(canonical), CallDigest::of(&call));
    assert_ne!(digest(json!({"path": "src/a.rs"})), CallDigest::of(&call));
    assert_ne!(digest(json!({"path": "src/b.rs", "skip_empty": true})), CallDigest::of(&call));

    // `tools/available` serves this list.
    let available = policy.tools().available(policy.limits());
    let listed = serde_json::to_value(available.last().unwrap()).unwrap();
    let path = json!({"type": "string", "description": "File path relative to the workspace"});
    let flag = json!({"type": "boolean", "default": false, "description": "Leave out empty lines"});
    let expected = json!({
        "name": "count_lines",
        "title": "Count lines",
        "description": "Count the lines of a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": path, "skip_empty": flag},
            "required": ["path"],
            "additionalProperties": false,
        },
        "usual_risk": "LOW",
        "requires_approval": false,
        "runs_commands": false,
        "card": [{"label": "path", "value": "{path}"}],
        "summary": "{path}",
    });
    assert_eq!(listed, expected);

    // Cards in the terminal show these rows.
    let rows = COUNT_LINES.card_rows(&json!({"path": "src/a.rs"}));
    assert_eq!(rows, [("path", "src/a.rs".to_owned())]);
}

#[test]
fn a_defined_tool_runs_with_its_function() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("poem.txt"), "one\n\ntwo\n").unwrap();
    let workspace = Workspace::open(dir.path(), Options::default()).unwrap();
    let (policy, roots, cancel) = (policy(), Roots::relative_only(), Cancel::new().unwrap());
    let functions = Functions::builtin().with("count_lines", count_lines);
    let tools = |functions| Tools {
        workspace: &workspace,
        runner: None,
        policy: &policy,
        roots: &roots,
        functions,
        layers: None,
        origin: Origin::local(),
    };
    let call = |params: Value| policy.judge_request("count_lines", params, &roots).0.unwrap();
    let run =
        |functions, params| tools(functions).execute(&call(params), &Approval::none(), &cancel);

    let counted = run(&functions, json!({"path": "poem.txt"}));
    assert_eq!(Value::Object(counted.fields), json!({"path": "poem.txt", "lines": 3}));
    let counted = run(&functions, json!({"path": "poem.txt", "skip_empty": true}));
    assert_eq!(counted.fields["lines"], 2);
    // The machine judges it again, like every other tool.
    let refused = run(&functions, json!({"path": ".env"})).failure.unwrap();
    assert_eq!(refused.code.as_str(), "approval_required");
    let absent = run(&functions, json!({"path": "absent.txt"})).failure.unwrap();
    assert_eq!(absent.code.as_str(), "not_found");
    // A definition alone cannot run.
    let missing = run(Functions::builtin(), json!({"path": "poem.txt"})).failure.unwrap();
    assert_eq!(missing.code.as_str(), "unknown_tool");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_defined_tool_is_listed_and_called_over_mcp() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("poem.txt"), "one\n\ntwo\n").unwrap();
    let settings = Settings {
        root_name: "/workspace".to_owned(),
        extra_tools: false,
        read_only: true,
        max_file_size: 1 << 20,
        durable: false,
        policy: Some(std::sync::Arc::new(policy())),
        functions: Some(Functions::builtin().with("count_lines", count_lines)),
        host_asks: false,
        utf8_only: true,
    };
    let served = ServedWorkspace::open(dir.path(), settings).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let settings = http::Settings {
        allowed_hosts: AllowedHosts::any(),
        allowed_origins: Vec::new(),
        token: None,
        max_body: 1 << 20,
        session_idle: std::time::Duration::from_secs(60),
    };
    let stop = CancellationToken::new();
    let make = move |_| WorkspaceServer::stateless(served.clone());
    let server = tokio::spawn(http::serve(listener, make, settings, stop.clone()));

    let listed = request(&address, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let tool = tools.iter().find(|tool| tool["name"] == "count_lines").unwrap();
    assert_eq!(tool["title"], "Count lines");
    assert_eq!(tool["description"], "Count the lines of a text file.");
    assert_eq!(tool["annotations"]["readOnlyHint"], true);
    let path = &tool["inputSchema"]["properties"]["path"];
    assert_eq!(path["description"], "File path relative to /workspace");
    assert_eq!(tool["outputSchema"]["required"], json!(["path", "lines"]));

    let call = |arguments: Value| json!({"name": "count_lines", "arguments": arguments});
    let counted =
        request(&address, "tools/call", call(json!({"path": "/workspace/poem.txt"}))).await;
    assert_eq!(counted["result"]["isError"], false, "{counted}");
    assert_eq!(counted["result"]["structuredContent"], json!({"path": "poem.txt", "lines": 3}));
    let wrong = request(&address, "tools/call", call(json!({"lines": 3}))).await;
    let text = "Error: Missing required parameters: path; Unknown parameters: lines";
    assert_eq!(wrong["result"]["content"][0]["text"], text);
    let outside = request(&address, "tools/call", call(json!({"path": "../x"}))).await;
    let text = "Error: Access denied. Path must be within /workspace";
    assert_eq!(outside["result"]["content"][0]["text"], text);

    stop.cancel();
    server.await.unwrap().unwrap();
}

/// Sends one request, as curl would.
async fn request(address: &str, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let message = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let address = address.to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(message.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = answer.await.unwrap();
    // The body comes in chunks, and the JSON is in one of them.
    let body = answer.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}
