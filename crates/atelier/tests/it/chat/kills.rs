//! Kills the server repeatedly with `kill -9` while many agents work: no accepted task is lost, and
//! no command runs twice.

use super::{Chat, with_model};
use crate::connect::client::{FixedProxy, Machine, ProjectSetup};
use atelier_testkit::{
    Asked,
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, Server, eventually,
};
use futures::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How many kills, and how many agents: a few in every run, more with `make judge`.
fn number(name: &str, few: usize) -> usize {
    std::env::var(name).map_or(few, |number| number.parse().unwrap())
}

const STEPS: usize = 4;

/// For the message "work on NAME", the model writes a mark to that file four times, one call after
/// the other.
fn script(asked: &Asked) -> Reply {
    let name = asked.last("user").trim_start_matches("work on ");
    match asked.results().len() {
        done if done < STEPS => {
            let params = json!({"command": "python3", "args": ["mark.py", name, done.to_string()]});
            Reply::call("execute_command", params)
        }
        _ => Reply::text(format!("{name} is done")),
    }
}

/// A task that the server accepted.
struct Taken {
    id: String,
    name: String,
    /// Whether the task was in flight when a server was killed.
    failed: bool,
}

/// Agents with one conversation each, in which their only command is allowed.
struct Crew {
    setup: ProjectSetup,
    machine: Machine,
    sessions: Vec<String>,
}

impl Crew {
    async fn hire(server: &Server, agents: usize) -> Self {
        let machine = Machine::new();
        let mark = "import sys\nwith open(sys.argv[1], 'a') as f: f.write(sys.argv[2] + '\\n')\n";
        machine.write("mark.py", mark);
        let Chat { setup, session } = Chat::new(server, "ann").await;
        let mut sessions = vec![session];
        for _ in 1..agents {
            let session = setup.post("chat/sessions", json!({})).await.expect(201);
            sessions.push(session["id"].as_str().unwrap().to_owned());
        }
        for n in 0..agents {
            setup.post("agents", json!({"name": format!("a{n}")})).await.expect(201);
        }
        Self { setup, machine, sessions }
    }

    async fn get(&self, rest: &str) -> Value {
        self.setup.user.get(&format!("{}/{rest}", self.setup.project)).await.expect(200)
    }

    /// Approves the first command of each conversation with a permission for its class.
    async fn allow(&self) {
        for agent in 0..self.sessions.len() {
            let name = format!("first-{agent}");
            let first = self.ask(&name, agent).await.expect("the server is there");
            let asked = eventually("it is asked for", async || {
                let list = self.get("approvals?status=pending").await;
                list["approvals"].as_array().unwrap().first().cloned()
            })
            .await;
            self.setup.decide(&asked, "approve", json!({"scope": "class"})).await;
            assert_eq!(self.settled(&first).await["status"], "completed");
        }
    }

    /// Sends a message. Returns the task if the server accepted it.
    async fn ask(&self, name: &str, agent: usize) -> Option<Taken> {
        let path = format!("{}/chat/{}/message", self.setup.project, self.sessions[agent]);
        let body =
            json!({"content": format!("work on {name}"), "target_agent": format!("a{agent}")});
        let answer = self.setup.user.request(Method::POST, &path).json(&body).send().await.ok()?;
        assert_eq!(answer.status(), 202);
        let accepted: Value = answer.json().await.ok()?;
        let id = accepted["task_id"].as_str().unwrap().to_owned();
        Some(Taken { id, name: name.to_owned(), failed: false })
    }

    /// Waits until the task has ended. Many agents with a few hundred commands take a while.
    async fn settled(&self, taken: &Taken) -> Value {
        let since = Instant::now();
        loop {
            let task = self.get(&format!("tasks/{}", taken.id)).await;
            if task["completed_at"].is_string() {
                return task;
            }
            if since.elapsed() > Duration::from_secs(120) {
                let (bus, calls) = (self.get("bus").await, self.get("tools?limit=200").await);
                let calls = calls["tools"].as_array().unwrap();
                let open: Vec<_> =
                    calls.iter().filter(|call| call["completed_at"].is_null()).collect();
                panic!("it does not end: {task}\nbus: {bus}\nopen calls: {open:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The marks of a task, in order.
    fn marks(&self, name: &str) -> Vec<usize> {
        let text = std::fs::read_to_string(self.machine.root().join(name)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

/// Waits until the new server has taken over the tasks of killed servers.
async fn everything_has_an_owner(server: &Server, since: Instant) {
    // The newest lease belongs to the live server, which takes it within its first second.
    let orphans = "SELECT COUNT(*) FROM tasks WHERE status = 'running' \
                   AND node <> (SELECT id FROM nodes ORDER BY lease_until DESC LIMIT 1)";
    let mut sql = server.sql().await;
    loop {
        let count = sql.count(orphans).await;
        if count == 0 && since.elapsed() > Duration::from_secs(1) {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{count} tasks without an owner");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// WS-08.3: every accepted task ends. A task whose step was interrupted has failed and can be
/// resumed; no command runs twice.
#[rstest]
#[tokio::test]
async fn killed_servers_lose_no_task_and_repeat_no_command(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let (kills, agents) = (number("ATELIER_TEST_KILLS", 3), number("ATELIER_TEST_AGENTS", 10));
    let model = ScriptedModel::forgetful(script).await;
    let mut server = with_model(backend, &model).await;
    let proxy = FixedProxy::to(&server).await;
    let mut crew = Crew::hire(&server, agents).await;
    let _client = crew.machine.connect(&crew.setup, &proxy.url).await;
    crew.allow().await;

    for round in 0..kills {
        let names: Vec<String> = (0..agents).map(|agent| format!("n{round}-{agent}")).collect();
        let asking = join_all(names.iter().enumerate().map(|(agent, name)| crew.ask(name, agent)));
        let killing = async {
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..2000))).await;
            server.kill();
        };
        let (asked, ()) = tokio::join!(asking, killing);
        server = server.restart_killed().await;
        let since = Instant::now();
        proxy.point_to(&server);
        crew.setup.user = crew.setup.user.at(&server);
        everything_has_an_owner(&server, since).await;
        // All tasks of this round end before the next round begins, so that the queues stay within
        // their limit.
        let mut taken: Vec<Taken> = asked.into_iter().flatten().collect();
        for task in &mut taken {
            let ended = crew.settled(task).await;
            task.failed = ended["status"] == "failed";
            let end = (&ended["status"], &ended["error"]["code"]);
            let known =
                [(&json!("completed"), &json!(null)), (&json!("failed"), &json!("interrupted"))];
            assert!(known.contains(&end), "{ended}");
        }
        for task in taken.iter().filter(|task| task.failed) {
            crew.setup.post(&format!("tasks/{}/resume", task.id), json!(null)).await.expect(200);
        }
        for task in &taken {
            assert_eq!(crew.settled(task).await["status"], "completed");
            let marks = crew.marks(&task.name);
            match task.failed {
                false => assert_eq!(marks, [0, 1, 2, 3], "{}", task.name),
                true => assert!(marks.is_sorted_by(|a, b| a < b), "{}: {marks:?}", task.name),
            }
        }
        // A message that was never acknowledged may have been handled, but only once.
        for name in names {
            let marks = crew.marks(&name);
            assert!(marks.is_sorted_by(|a, b| a < b), "{name}: {marks:?}");
        }
    }
}
