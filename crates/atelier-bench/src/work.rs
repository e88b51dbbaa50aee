//! Agents at work: a message goes through the bus to its answer, with a model that answers
//! immediately.

use crate::{
    Plan,
    calls::asking,
    durable_server::DurableServer,
    load::{self, Pace, quantile},
    process, reads,
    report::{Aim, Report, Unit, milliseconds},
    wire::{Connection, request},
};
use anyhow::{Context, Result, ensure};
use atelier_testkit::{Asked, Reply, ScriptedModel, Server, User};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};
use tokio::task::JoinSet;

/// Enough agents that the limits of single agents have no effect.
const AGENTS: usize = 64;
/// Messages go to these conversations in turn, so that none of them grows long during the
/// measurement.
const CONVERSATIONS: usize = 500;
/// How many more steps the longer of two tasks takes.
const MORE_STEPS: usize = 10;
/// How many requests fill the queues at the same time.
const SENDERS: usize = 16;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    messages(plan, report).await?;
    queues(plan, report).await
}

/// Calls an unknown tool as often as requested, and then answers.
fn script(asked: &Asked) -> Reply {
    let steps = asked.last("user").trim_start_matches("steps ").parse().unwrap_or(0);
    match asked.results().len() < steps {
        true => Reply::call("no_such_tool", json!({})),
        false => Reply::text("done"),
    }
}

/// A server whose agents ask a scripted model.
struct BusyServer {
    model: ScriptedModel,
    program: Server,
    address: SocketAddr,
    user: User,
}

impl BusyServer {
    async fn start(plan: &Plan, model: ScriptedModel) -> Result<Self> {
        let server = Server::build(&plan.binary, plan.backend).model(&model).start().await;
        let (address, user) = (process::address(&server.url)?, server.user("bench"));
        Ok(Self { model, program: server, address, user })
    }

    async fn conversation(&self, project: &str) -> Result<String> {
        let session =
            self.user.post(&format!("{project}/chat/sessions"), json!({})).await.expect(201);
        Ok(session["id"].as_str().context("a conversation has an id")?.to_owned())
    }

    async fn create_agents(&self, project: &str, count: usize, concurrency: u32) {
        for n in 0..count {
            let body =
                json!({"name": format!("a{n}"), "config": {"concurrency_limit": concurrency}});
            self.user.post(&format!("{project}/agents"), body).await.expect(201);
        }
    }
}

async fn messages(plan: &Plan, report: &mut Report) -> Result<()> {
    let server = BusyServer::start(plan, ScriptedModel::forgetful(script).await).await?;
    let project = server.user.project("work").await;
    server.create_agents(&project, AGENTS, 10).await;
    let mut conversations = Vec::new();
    for _ in 0..CONVERSATIONS {
        conversations.push(server.conversation(&project).await?);
    }
    let (token, place) = (server.user.token.clone(), project.clone());
    let say = move |n: u64, steps: usize| {
        let conversation = &conversations[n as usize % CONVERSATIONS];
        let content = format!("steps {steps}");
        let body = json!({"content": content, "target_agent": format!("a{}", n as usize % AGENTS)});
        asking(&format!("{place}/chat/{conversation}/message"), &token, &body.to_string())
    };
    // The response has to be the agent's answer.
    let answer = Connection::open(server.address).await?.ask(&say(0, 1)).await?.body.to_vec();
    let answer: Value = serde_json::from_slice(&answer)?;
    ensure!(answer["content"] == "done", "it was not answered: {answer}");
    warm_up(&server, &project, &say).await?;

    let model = process::address(server.model.url().trim_end_matches("/v1"))?;
    let bare = json!({"model": "gpt-4o", "stream": true, "messages": [{"role": "user", "content": "steps 0"}]});
    let bare = request("POST", "/v1/chat/completions", "", &bare.to_string());
    let floor = DurableServer::start(plan.backend).await?;
    let commit = request("POST", "/", "", &answer.to_string());
    for &under_way in &plan.concurrencies {
        let (mut paces, mut floors) = (vec![], vec![]);
        for _ in 0..plan.rounds {
            let say = say.clone();
            paces.push(
                load::run(server.address, under_way, plan.window, 200, move |n| say(n, 0)).await?,
            );
            let bare = bare.clone();
            floors
                .push(load::run(model, under_way, plan.window, 200, move |_| bare.clone()).await?);
        }
        let most = (under_way == 64).then_some(Aim::AtLeast(1000.0));
        let name = format!("message to its answer, {under_way} under way");
        reads::add_with(report, &name, &paces, &floors, most, None);
        if under_way == 1 {
            step(plan, report, &server, &say, &paces, &floors).await?;
        }
    }
    let commits =
        load::run(floor.process.address, 64, plan.window, 200, move |_| commit.clone()).await?;
    waited(report, &server, &project, &commits).await
}

/// Lets every agent answer once, and waits until all answers are remembered. Creating the files of
/// a memory happens at an agent's first message and is not measured here.
async fn warm_up(
    server: &BusyServer,
    project: &str,
    say: &impl Fn(u64, usize) -> Vec<u8>,
) -> Result<()> {
    let mut connection = Connection::open(server.address).await?;
    for n in 0..AGENTS {
        let answer = connection.ask(&say(n as u64, 0)).await?;
        ensure!(answer.status == 200, "a{n} did not answer: {}", answer.status);
    }
    for n in 0..AGENTS {
        let stats = format!("{project}/agents/a{n}/context/stats");
        while server.user.get(&stats).await.expect(200)["waiting"] != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Measures the cost of a step beyond the model call: compares a task of many steps with a task of
/// one step.
async fn step<S>(
    plan: &Plan,
    report: &mut Report,
    server: &BusyServer,
    say: &S,
    one: &[Pace],
    bare: &[Pace],
) -> Result<()>
where
    S: Fn(u64, usize) -> Vec<u8> + Clone + Send + Sync + 'static,
{
    let mut costs = Vec::new();
    for one in one {
        let say = say.clone();
        let many =
            load::run(server.address, 1, plan.window, 200, move |n| say(n, MORE_STEPS)).await?;
        costs.push((milliseconds(many.p50) - milliseconds(one.p50)) / MORE_STEPS as f64);
    }
    let bare: Vec<f64> = bare.iter().map(|bare| milliseconds(bare.p50)).collect();
    let beyond = costs.iter().zip(&bare).map(|(cost, bare)| cost - bare).collect();
    report.add("a model's step, call included, p50", Unit::Milliseconds, costs, bare.clone(), None);
    report.add("… beyond the call", Unit::Milliseconds, beyond, bare, Some(Aim::AtMost(1.0)));
    Ok(())
}

/// How long the newest tasks waited in their queues, compared with a commit under the same load.
async fn waited(
    report: &mut Report,
    server: &BusyServer,
    project: &str,
    commits: &Pace,
) -> Result<()> {
    let list =
        server.user.get(&format!("{project}/tasks?limit=1000&status=completed")).await.expect(200);
    let time = |task: &Value, field: &str| -> Result<DateTime<Utc>> {
        Ok(task[field].as_str().with_context(|| format!("no {field}: {task}"))?.parse()?)
    };
    let mut waits = Vec::new();
    for task in list["tasks"].as_array().context("a list of tasks")? {
        let wait = time(task, "started_at")? - time(task, "created_at")?;
        waits.push(wait.to_std().unwrap_or(Duration::ZERO));
    }
    ensure!(!waits.is_empty(), "no task was completed");
    for (name, part, floor) in [("p50", 0.5, commits.p50), ("p99", 0.99, commits.p99)] {
        let wait = milliseconds(quantile(&mut waits, part));
        let name = format!("wait in the queue, {name}");
        report.add(name, Unit::Milliseconds, vec![wait], vec![milliseconds(floor)], None);
    }
    Ok(())
}

/// A thousand agents, each with one task that does not end and nine that wait for it. Waiting tasks
/// are in the database and not in memory.
async fn queues(plan: &Plan, report: &mut Report) -> Result<()> {
    // Fewer agents per project than requests that its worker space runs at the same time.
    const AGENTS: usize = 50;
    let projects = if plan.rounds == 1 { 2 } else { 20 };
    let server =
        BusyServer::start(plan, ScriptedModel::forgetful(|_| Reply::silence()).await).await?;
    let mut queues = Vec::new();
    for n in 0..projects {
        let project = server.user.project(&format!("queues {n}")).await;
        server.create_agents(&project, AGENTS, 1).await;
        let conversation = server.conversation(&project).await?;
        queues.extend(
            (0..AGENTS).map(|agent| (format!("{project}/chat/{conversation}/message"), agent)),
        );
    }
    let fill = |times: usize| -> Vec<Vec<u8>> {
        let say = |(path, agent): &(String, usize)| {
            let body = json!({"content": "wait", "target_agent": format!("a{agent}")}).to_string();
            request("POST", path, &server.user.token, &body)
        };
        queues.iter().cycle().take(queues.len() * times).map(say).collect()
    };
    send(server.address, fill(1)).await?;
    // As many tasks as one server runs at the same time.
    server.model.answering(queues.len().min(512)).await;
    let before = process::memory(server.program.pid())?;
    send(server.address, fill(9)).await?;
    let after = process::memory(server.program.pid())?;
    let name = format!("memory, {} agents, {} tasks queued", queues.len(), queues.len() * 10);
    let megabytes = |bytes: u64| vec![bytes as f64 / 1e6];
    report.add(
        name,
        Unit::Megabytes,
        megabytes(after),
        megabytes(before),
        Some(Aim::TimesFloor(1.25)),
    );
    Ok(())
}

/// Sends all requests, several at a time. Each has to be accepted.
async fn send(address: SocketAddr, mut requests: Vec<Vec<u8>>) -> Result<()> {
    let mut hands = JoinSet::new();
    let share = requests.len().div_ceil(SENDERS);
    while !requests.is_empty() {
        let mine = requests.split_off(requests.len().saturating_sub(share));
        hands.spawn(async move {
            let mut connection = Connection::open(address).await?;
            for request in mine {
                let answer = connection.ask(&request).await?;
                let words = String::from_utf8_lossy(answer.body);
                ensure!(answer.status == 202, "answered with {}: {words}", answer.status);
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = hands.join_next().await {
        done??;
    }
    Ok(())
}
