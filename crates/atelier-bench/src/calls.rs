//! A tool call from end to end: requested over HTTP, signalled to the real `atelier connect`,
//! claimed and run there, its result posted, and the request answered.

use crate::{
    Plan,
    durable_server::DurableServer,
    load, reads,
    report::{Aim, Report},
    wire::request,
};
use anyhow::{Context, Result, ensure};
use atelier_testkit::{Server, User};
use serde_json::json;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

pub(crate) async fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let (server, address, user) = plan.server().await?;
    let project = user.project("calls").await;
    let machine = Machine::connect(&plan.binary, &server, &user)?;
    let body = json!({"tool_name": "read_file", "tool_params": {"path": "README.md"}}).to_string();
    let ask = asking(&format!("{project}/tools/execute"), &user.token, &body);
    // The answer has to be a call that ran.
    let answer = crate::wire::Connection::open(address).await?.ask(&ask).await?.body.to_vec();
    let call: serde_json::Value = serde_json::from_slice(&answer)?;
    ensure!(call["result"]["content"] == CONTENT, "the call was not run: {call}");
    let floor = DurableServer::start(plan.backend).await?;
    let commit = request("POST", "/", "", &String::from_utf8(answer)?);

    for &under_way in &plan.calls {
        let (mut paces, mut floors) = (vec![], vec![]);
        for _ in 0..plan.rounds {
            let ask = ask.clone();
            paces
                .push(load::run(address, under_way, plan.window, 200, move |_| ask.clone()).await?);
            let (to, commit) = (floor.process.address, commit.clone());
            let trips =
                load::run_trips(to, under_way, plan.window, 200, 2, move |_| commit.clone())
                    .await?;
            floors.push(trips);
        }
        let most = (under_way == 256).then_some(Aim::AtLeast(2000.0));
        let name = format!("tool call, {under_way} under way");
        reads::add_with(report, &name, &paces, &floors, most, Some(Aim::TimesFloor(3.0)));
    }
    drop(machine);
    Ok(())
}

/// A request that waits until the call is settled.
pub(crate) fn asking(path: &str, token: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\nprefer: \
         wait=25\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

const CONTENT: &str = "# Shop\n\nWhat agents read.\n";

/// A user's machine that runs the real client with default settings. Dropping it ends the client.
struct Machine {
    client: Child,
    _home: TempDir,
}

impl Machine {
    fn connect(binary: &Path, server: &Server, user: &User) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let folder = home.path().join("shop");
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("README.md"), CONTENT)?;
        let mut client = Command::new(binary)
            .args(["connect", "--project", "calls", "--server", &server.url])
            .arg(&folder)
            .env_clear()
            .env("HOME", home.path())
            .env("PATH", "/usr/bin:/bin")
            .env("ATELIER_TOKEN", &user.token)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = client.stdout.take().context("no standard output")?;
        let machine = Self { client, _home: home };
        let mut lines = BufReader::new(output).lines();
        loop {
            let line = lines.next().context("the client ended instead of connecting")??;
            if line.ends_with("this machine runs the calls") {
                break;
            }
        }
        // The output is read, as a terminal would do.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(machine)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The client may have ended by itself.
        drop(self.client.kill());
        drop(self.client.wait());
    }
}
