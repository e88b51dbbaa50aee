//! What models have used, and budgets that end tasks.

use crate::{
    build,
    chat::{Chat, priced},
    connect::client::ProjectSetup,
};
use atelier_testkit::{
    Answer, Asked,
    Backend::{self, Postgres, Sqlite},
    Events, Reply, ScriptedModel, User, eventually,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

const MODEL: &str = "openai/gpt-4o";

/// Answers with 10 tokens in and 5 out. A planner gets a plan of one task.
fn answers(asked: &Asked) -> Reply {
    match asked.body["response_format"].is_object() {
        true => Reply::text(
            json!({"tasks": [{"id": "1", "description": "think", "agent": "agent_coder",
                "depends_on": []}]})
            .to_string(),
        ),
        false => Reply::text("Done."),
    }
}

async fn usage(user: &User, query: &str) -> Value {
    user.get(&format!("/my/usage?{query}")).await.expect(200)
}

/// Some fields of each row of a report.
fn rows(report: &Value, fields: &[&str]) -> Vec<Value> {
    let row = |row: &Value| fields.iter().map(|field| row[*field].clone()).collect();
    report["rows"].as_array().unwrap().iter().map(row).collect()
}

fn set(scope: &str, budget: Value) -> Value {
    json!({"scope": scope, "budget": budget})
}

async fn put_budget(user: &User, change: Value) -> Answer {
    user.put("/my/budgets", change).await
}

/// MO-01: every step is counted once, for its day, project, agent, model and person.
#[rstest]
#[tokio::test]
async fn steps_are_summed_by_day_project_agent_model_and_person(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start(|asked: &Asked| match asked.last("user") {
        // The step is written before and after the call.
        "remember" if asked.results().is_empty() => {
            Reply::call("add_context", json!({"text": "tea at four"}))
        }
        _ => answers(asked),
    })
    .await;
    let server = priced(backend, &model).await;
    let root = server.user_with("root", &["--role", "admin"]);
    let other = server.user_with("boss", &["--tenant", "other", "--role", "admin"]);
    let shop = Chat::new(&server, "ann").await;
    let ann = &shop.setup.user;
    let blog = ann.project("=blog").await;
    let setup = ProjectSetup { user: ann.clone(), project: blog, name: "=blog".into() };
    let blog = Chat::of(setup).await;
    shop.ask("remember", Some("coder")).await;
    shop.ask("hello", Some("writer")).await;
    blog.ask("hello", Some("coder")).await;
    shop.ask("think about it", None).await;
    let bob = Chat::new(&server, "bob").await;
    bob.ask("hello", Some("coder")).await;

    let by_day = usage(ann, "").await;
    let today = by_day["to"].clone();
    // Two steps of the coder, one of the writer, one in the other project, and a plan with a task.
    let expected = [json!([today, 6, 60, 30, 0.09])];
    let figures = ["day", "steps", "input_tokens", "output_tokens", "cost"];
    assert_eq!(rows(&by_day, &figures), expected);
    assert_eq!(by_day["total"]["steps"], 6);
    assert_eq!(json!([by_day["group_by"], by_day["may_see"]]), json!([["day"], ["own"]]));
    assert_eq!(rows(&usage(ann, "group_by=model").await, &["model", "steps"]), [json!([MODEL, 6])]);
    let mut by_project = rows(&usage(ann, "group_by=project").await, &["project_name", "steps"]);
    by_project.sort_by_key(Value::to_string);
    assert_eq!(by_project, [json!(["=blog", 1]), json!([shop.setup.name, 5])]);
    let mut by_agent = rows(&usage(ann, "group_by=agent").await, &["agent_name", "steps"]);
    by_agent.sort_by_key(Value::to_string);
    let coder = [json!(["agent_coder", 1]), json!(["agent_coder", 3])];
    assert_eq!(by_agent[..2], coder, "{by_agent:?}");
    assert_eq!(by_agent[2..], [json!(["agent_writer", 1]), json!([null, 1])]);

    // Only admins see what others have used, and only in their own tenant.
    for level in ["tenant", "server"] {
        let refused = ann.get(&format!("/my/usage?level={level}")).await;
        assert_eq!(refused.problem(), (403, "forbidden"));
    }
    assert_eq!(other.get("/my/usage?level=server").await.problem(), (403, "forbidden"));
    assert_eq!(rows(&usage(&other, "level=tenant").await, &["steps"]), Vec::<Value>::new());
    for level in ["tenant", "server"] {
        let people = usage(&root, &format!("level={level}&group_by=person,day")).await;
        assert_eq!(people["total"]["steps"], 7);
        let mut counts = rows(&people, &["tenant", "steps"]);
        counts.sort_by_key(Value::to_string);
        assert_eq!(counts, [json!(["default", 1]), json!(["default", 6])]);
    }
    assert_eq!(usage(&root, "").await["total"]["steps"], 0);

    // Sums outlive what they are about.
    let id = blog.setup.project.rsplit('/').next().unwrap();
    assert_eq!(usage(ann, &format!("project_id={id}")).await["total"]["steps"], 1);
    assert_eq!(ann.delete(&blog.setup.project).await.status, 204);
    assert_eq!(rows(&usage(ann, "").await, &figures), expected);
    assert_eq!(usage(ann, "to=2020-01-31&from=2020-01-01").await["total"]["steps"], 0);
}

/// MO-02: the report is CSV for those who ask for it, and no name in it is a formula.
#[rstest]
#[tokio::test]
async fn usage_is_given_as_csv(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(answers).await;
    let server = priced(backend, &model).await;
    let ann = server.user("ann");
    let project = ann.project("=shop, \"ltd\"").await;
    let setup = ProjectSetup { user: ann.clone(), project, name: "=shop".into() };
    let chat = Chat::of(setup).await;
    chat.ask("hello", Some("coder")).await;
    let id = chat.setup.project.rsplit('/').next().unwrap();
    let expected = format!(
        "project_id,project_name,model,steps,input_tokens,output_tokens,cost\r\n\
         {id},\"'=shop, \"\"ltd\"\"\",{MODEL},1,10,5,0.015\r\n"
    );
    let path = "/my/usage?group_by=project,model";
    let by_header = ann.request(Method::GET, path).header("accept", "text/csv");
    let by_query = ann.request(Method::GET, &format!("{path}&format=csv"));
    for request in [by_header, by_query] {
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/csv; charset=utf-8");
        assert_eq!(response.text().await.unwrap(), expected);
    }
    for (query, problem) in [
        ("group_by=projct", "did you mean project?"),
        ("from=2026-02-01&to=2026-01-01", "must not be after"),
        ("from=2020-01-01&to=2026-01-01", "at most 800 days"),
    ] {
        let refused = ann.get(&format!("/my/usage?{query}")).await;
        assert_eq!(refused.problem(), (422, "invalid_request"), "{query}");
        assert!(refused.body["detail"].as_str().unwrap().contains(problem), "{}", refused.body);
    }
}

/// MO-03: `atelier usage` shows sums and what is left of budgets, as a table, JSON and CSV.
#[tokio::test]
async fn usage_command_shows_sums_and_budgets() {
    let model = ScriptedModel::start(answers).await;
    let server = priced(Sqlite, &model).await;
    let chat = Chat::new(&server, "ann").await;
    chat.ask("hello", Some("coder")).await;
    let ann = &chat.setup.user;
    let budget = set("person", json!({"tokens_per_day": 16, "cost_per_month": 2.5}));
    assert_eq!(put_budget(ann, budget).await.status, 204);
    let run = |arguments: &[&str]| {
        let common = ["usage", "--server", &server.url, "--token", &ann.token];
        let output = server.command(&[&common, arguments].concat());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (_, table, _) = run(&["--by", "agent,model"]);
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["STEPS", "INPUT", "OUTPUT", "COST", "AGENT", "MODEL"]);
    assert_eq!(lines[1], ["1", "10", "5", "$0.0150", "agent_coder", MODEL]);
    assert_eq!(lines[2][..5], ["1", "10", "5", "$0.0150", "total,"]);
    assert!(table.contains("15 of 16 tokens today (nearly used up)"), "{table}");
    assert!(table.contains("$0.0150 of $2.5 this month\n"), "{table}");
    let (_, printed, _) = run(&["--json", "--project", &chat.setup.name]);
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["total"]["steps"], 1);
    let (_, csv, _) = run(&["--csv", "--by", "model"]);
    assert_eq!(
        csv,
        format!("model,steps,input_tokens,output_tokens,cost\r\n{MODEL},1,10,5,0.015\r\n")
    );
    let (code, _, problem) = run(&["--of", "server"]);
    assert_eq!(code, 1);
    assert!(problem.contains("only admins"), "{problem}");
}

/// Sends a message and expects that its task has no budget for a step.
async fn expect_spent(chat: &Chat, whose: &str) {
    let answer = chat.ask("once more", Some("coder")).await;
    let path = format!("{}/tasks/{}", chat.setup.project, answer["task_id"].as_str().unwrap());
    let task = chat.setup.user.get(&path).await.expect(200);
    let ended = json!([task["status"], task["error"]["code"], task["steps"]]);
    assert_eq!(ended, json!(["failed", "budget_exceeded", 0]), "{task}");
    let detail = task["error"]["detail"].as_str().unwrap();
    assert!(detail.starts_with(whose) && detail.contains("00:00 UTC"), "{detail}");
}

/// Who sets a budget: somebody through the API, the settings of the project, or the configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Request,
    Configuration,
}

/// MO-04: budgets of the server, tenants, projects and people are checked before each step, and a
/// task that has none left ends with a clear reason. A task that is resumed later goes on.
#[rstest]
#[case("server", "tokens_per_day", "the server's budget for today is used up;")]
#[case("tenant", "cost_per_month", "the tenant's budget for this month is used up;")]
#[case("person", "tokens_per_month", "your budget of 15 tokens for this month")]
#[case("project", "cost_per_day", "the project's budget of $0.015 for today")]
#[tokio::test]
async fn spent_budgets_end_tasks_before_their_next_step(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(By::Request, By::Configuration)] by: By,
    #[case] scope: &str,
    #[case] number: &str,
    #[case] whose: &str,
) {
    let model = ScriptedModel::start(answers).await;
    // 15 tokens, or 0.015 dollars, are one step.
    let limit = if number.starts_with("cost") { json!(0.015) } else { json!(15) };
    let price = |way: &str| format!("PROVIDERS__OPENAI__MODELS__GPT-4O__{way}_PRICE");
    let mut builder = build(backend).model(&model);
    builder = builder.with(&price("INPUT"), 1000.0).with(&price("OUTPUT"), 1000.0);
    if by == By::Configuration {
        let name = format!("WORK__BUDGETS__{scope}__{number}").to_uppercase();
        builder = builder.with(&name, &limit);
    }
    let server = builder.start().await;
    let root = server.user_with("root", &["--role", "admin"]);
    let chat = Chat::new(&server, "ann").await;
    let budget = async |budget: Value| match scope {
        "project" => chat.set_settings(json!({"budget": budget})).await,
        _ => {
            let user = if scope == "person" { &chat.setup.user } else { &root };
            assert_eq!(put_budget(user, set(scope, budget)).await.status, 204);
        }
    };
    if by == By::Request {
        budget(json!({number: limit})).await;
    }
    assert_eq!(chat.ask("hello", Some("coder")).await["content"], "Done.");
    expect_spent(&chat, whose).await;
    assert_eq!(model.seen().len(), 1);
    if by == By::Request {
        budget(json!({})).await;
        assert_eq!(chat.ask("now?", Some("coder")).await["content"], "Done.");
    }
}

/// MO-04: a budget ends a task in the middle of its work, and a plan before it is made.
#[rstest]
#[tokio::test]
async fn budget_ends_a_task_between_two_steps(#[values(Sqlite, Postgres)] backend: Backend) {
    let model =
        ScriptedModel::start(|_: &Asked| Reply::call("no_such_tool", json!({})).usage(60, 40))
            .await;
    let server = priced(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let budget = set("person", json!({"tokens_per_day": 250}));
    assert_eq!(put_budget(&chat.setup.user, budget).await.status, 204);
    let answer = chat.ask("try", Some("coder")).await;
    assert!(
        answer["content"].as_str().unwrap().contains("250 tokens for today is used up (300 used)")
    );
    let answer = chat.ask("plan it", None).await;
    assert!(
        answer["content"].as_str().unwrap().contains("250 tokens for today is used up (300 used)")
    );
    assert_eq!(model.seen().len(), 3);
}

/// Warnings among the events so far. The events of a task follow the warning about its last step.
async fn warnings(chat: &Chat, events: &mut Events) -> Vec<Value> {
    let mut warnings = Vec::new();
    chat.setup.user.put(&chat.setup.project, json!({"name": "marked"})).await.expect(200);
    loop {
        let event = events.next().await;
        match event.name.as_str() {
            "PROJECT_UPDATED" => return warnings,
            "BUDGET_WARNING" => warnings.push(event.data),
            _ => {}
        }
    }
}

/// MO-05: at 80 % there is one warning for each number of a budget. It does not tell people what
/// others have used.
#[rstest]
#[tokio::test]
async fn nearly_spent_budget_warns_once(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(answers).await;
    let server = priced(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let root = server.user_with("root", &["--role", "admin"]);
    let budget = set("person", json!({"tokens_per_day": 18, "cost_per_month": 1.0}));
    assert_eq!(put_budget(&chat.setup.user, budget).await.status, 204);
    let budget = set("tenant", json!({"cost_per_month": 0.018}));
    assert_eq!(put_budget(&root, budget).await.status, 204);
    let mut events = chat.setup.user.events(&format!("{}/events", chat.setup.project), None).await;
    chat.ask("hello", Some("coder")).await;
    for expected in [
        json!(["tenant", "month", "cost", null, null]),
        json!(["person", "day", "tokens", 18.0, 15.0]),
    ] {
        let warning = events.until("BUDGET_WARNING").await.data;
        let fields = ["scope", "period", "unit", "limit", "used"];
        assert_eq!(json!(fields.map(|name| warning[name].clone())), expected);
    }
    chat.ask("again", Some("coder")).await;
    expect_spent(&chat, "the tenant's budget for this month is used up;").await;
    assert_eq!(warnings(&chat, &mut events).await, Vec::<Value>::new());
    let metric = "atelier_budget_warnings_total{scope=\"person\"}";
    assert_eq!(server.metric(metric).await, 1.0);
}

/// The numbers of a person's budgets, by their scope.
async fn effective(user: &User, scope: &str) -> Value {
    let list = user.get("/my/budgets").await.expect(200);
    let budgets = list["budgets"].as_array().unwrap().clone();
    let found = budgets.iter().find(|budget| budget["scope"] == scope);
    found.map_or(Value::Null, |found| found["budget"]["tokens_per_day"].clone())
}

/// MO-06: people set their own budgets, admins those of their tenant and its people, and admins of
/// the server all. Everybody can set smaller numbers than those above, and nobody larger ones.
#[rstest]
#[tokio::test]
async fn nobody_raises_a_budget_from_above(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = build(backend).with("WORK__BUDGETS__PERSON__TOKENS_PER_DAY", 1000).start().await;
    let root = server.user_with("root", &["--role", "admin"]);
    let boss = server.user_with("boss", &["--tenant", "other", "--role", "admin"]);
    let eve = server.user_with("eve", &["--tenant", "other"]);
    let ann = server.user("ann");
    let eve_id = eve.get("/auth/me").await.expect(200)["user_id"].clone();
    let tokens = |most: u64| json!({"tokens_per_day": most});

    for (user, change) in [
        (&eve, json!({"scope": "tenant", "budget": tokens(5)})),
        (&ann, json!({"scope": "person", "user_id": eve_id, "budget": tokens(5)})),
        (&boss, json!({"scope": "server", "budget": tokens(5)})),
        (&boss, json!({"scope": "tenant", "tenant": "default", "budget": tokens(5)})),
    ] {
        let refused = put_budget(user, change.clone()).await;
        assert_eq!(refused.problem(), (403, "forbidden"), "{change}");
    }
    // A person of another tenant is like nobody.
    for id in [eve_id.clone(), json!(uuid::Uuid::now_v7())] {
        let change = json!({"scope": "person", "user_id": id, "budget": tokens(5)});
        assert_eq!(put_budget(&root, change).await.problem(), (404, "not_found"));
    }
    for change in [
        json!({"scope": "project", "budget": tokens(5)}),
        json!({"scope": "person", "tenant": "other", "budget": tokens(5)}),
        json!({"scope": "person", "budget": tokens(0)}),
        json!({"scope": "person", "budget": {"cost_per_day": -1}}),
    ] {
        assert_eq!(put_budget(&eve, change).await.problem(), (422, "invalid_request"));
    }

    assert_eq!(effective(&eve, "person").await, 1000);
    let steps = [
        (&eve, json!({"scope": "person", "budget": tokens(2000)}), "person", 1000),
        (&eve, json!({"scope": "person", "budget": tokens(500)}), "person", 500),
        (
            &boss,
            json!({"scope": "person", "user_id": eve_id, "budget": tokens(400)}),
            "person",
            400,
        ),
        (&eve, json!({"scope": "person", "budget": {}}), "person", 400),
        (&boss, json!({"scope": "tenant", "budget": tokens(90)}), "tenant", 90),
        (&root, json!({"scope": "tenant", "tenant": "other", "budget": tokens(80)}), "tenant", 80),
        (&boss, json!({"scope": "tenant", "budget": tokens(100)}), "tenant", 80),
        (&root, json!({"scope": "server", "budget": tokens(70)}), "server", 70),
    ];
    for (user, change, scope, expected) in steps {
        assert_eq!(put_budget(user, change.clone()).await.status, 204, "{change}");
        let seen_by = match scope {
            "person" => &eve,
            "tenant" => &boss,
            _ => &root,
        };
        assert_eq!(effective(seen_by, scope).await, expected, "{change}");
    }
    // People see their own budget, admins those of their tenant, and the server's admin all.
    let scopes = async |user: &User| {
        let list = user.get("/my/budgets").await.expect(200);
        let budgets = list["budgets"].as_array().unwrap().clone();
        let of = |budget: &Value| json!([budget["scope"], budget["tenant"]]);
        (budgets.iter().map(of).collect::<Vec<_>>(), list["may_set"].clone())
    };
    assert_eq!(scopes(&eve).await, (vec![json!(["person", null])], json!(["own"])));
    let (seen, may_set) = scopes(&boss).await;
    assert!(seen.contains(&json!(["tenant", "other"])) && seen.len() == 3, "{seen:?}");
    assert_eq!(may_set, json!(["own", "tenant"]));
    let (seen, may_set) = scopes(&root).await;
    for owner in [json!(["server", null]), json!(["tenant", "other"]), json!(["tenant", "default"])]
    {
        assert!(seen.contains(&owner), "{seen:?}");
    }
    assert_eq!(may_set, json!(["own", "tenant", "server"]));
}

/// MO-01: many people's steps at the same time add up in the totals of their tenant, on every node.
#[rstest]
#[tokio::test]
async fn steps_of_many_people_add_up(#[values(Sqlite, Postgres)] backend: Backend) {
    const PEOPLE: usize = 8;
    let model = ScriptedModel::start(answers).await;
    let server = priced(backend, &model).await;
    let second = match backend {
        Sqlite => None,
        Postgres => Some(server.second_node().await),
    };
    let mut chats = Vec::new();
    for n in 0..PEOPLE {
        let chat = Chat::new(&server, &format!("person{n}")).await;
        let elsewhere = second.as_ref().filter(|_| n % 2 == 1);
        chats.push(elsewhere.map_or(chat.clone(), |node| chat.at(node)));
    }
    let asking = chats.iter().map(|chat| async {
        for _ in 0..3 {
            chat.ask("hello", Some("coder")).await;
        }
    });
    futures::future::join_all(asking).await;
    let root = server.user_with("root", &["--role", "admin"]);
    let list = root.get("/my/budgets").await.expect(200);
    for budget in list["budgets"].as_array().unwrap() {
        let tokens = if budget["scope"] == "person" { 0 } else { PEOPLE * 3 * 15 };
        let spent = json!({"tokens": tokens, "cost": tokens as f64 / 1000.0});
        assert_eq!(budget["used"], json!({"today": spent, "this_month": spent}), "{budget}");
    }
    assert_eq!(usage(&root, "level=server").await["total"]["steps"], PEOPLE * 3);
}

/// MO-01: an answer that broke off is counted, as far as it arrived, also if its task is gone.
#[rstest]
#[tokio::test]
async fn broken_answers_are_counted(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(|asked: &Asked| match asked.last("user") {
        "break off" => Reply::text("a b c d e").cut_after(3),
        _ => Reply::text("a b c d e").stall_after(3),
    })
    .await;
    let server = priced(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    let ann = &chat.setup.user;
    let output = async || usage(ann, "").await["total"]["output_tokens"].as_u64().unwrap();
    let accepted = chat.send("break off", Some("coder")).await;
    chat.task_until(&accepted, "failed").await;
    let broken =
        eventually("it is counted", async || Some(output().await).filter(|n| *n > 0)).await;
    let mut events = ann.events(&format!("{}/events", chat.setup.project), None).await;
    chat.send("talk", Some("coder")).await;
    while events.next().await.name != "MESSAGE_DELTA" {}
    assert_eq!(ann.delete(&chat.setup.project).await.status, 204);
    eventually("the other one is counted", async || (output().await > broken).then_some(())).await;
}

/// Old sums are removed after the configured time.
#[rstest]
#[tokio::test]
async fn old_sums_are_removed(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::start(answers).await;
    let server = priced(backend, &model).await;
    let chat = Chat::new(&server, "ann").await;
    chat.ask("hello", Some("coder")).await;
    let mut sql = server.sql().await;
    sql.run("UPDATE usage_days SET day = '2020-02-02'").await;
    sql.run("UPDATE usage_totals SET day = '2020-02-02'").await;
    drop(sql);
    let ann = chat.setup.user.clone();
    let query = "from=2020-02-01&to=2020-02-28";
    assert_eq!(usage(&ann, query).await["total"]["steps"], 1);
    // The server looks for old sums when it starts.
    let server = server.restart().await;
    let ann = ann.at(&server);
    eventually("they are removed", async || {
        (usage(&ann, query).await["total"]["steps"] == 0).then_some(())
    })
    .await;
    assert_eq!(server.sql().await.count("SELECT COUNT(*) FROM usage_totals").await, 0);
}

/// The configuration refuses budgets that are not possible.
#[test]
fn impossible_budgets_are_refused_in_the_configuration() {
    let refused = crate::refused_config(&[("ATELIER_WORK__BUDGETS__TENANT__COST_PER_DAY", "-1")]);
    assert!(refused.contains("work.budgets") && refused.contains("between 0 and"), "{refused}");
}
