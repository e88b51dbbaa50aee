//! `atelier chat` from a terminal and from a script, with the demo model.

use super::Chat;
use crate::connect::{
    client::{ConnectProcess, FixedProxy, Machine},
    terminal::{KEYS, Person},
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Reply, ScriptedModel, eventually,
};
use rstest::rstest;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

/// The command `atelier chat` on the machine, not started yet.
fn chat_command(machine: &Machine, chat: &Chat, url: &str, arguments: &[&str]) -> Command {
    let mut command = machine.program(&["chat", "--project", &chat.setup.name, "--server", url]);
    command.args(arguments).env("ATELIER_TOKEN", &chat.setup.user.token);
    command
}

/// Runs the command to its end, in parallel with the test.
async fn run_chat(machine: &Machine, chat: &Chat, url: &str, arguments: &[&str]) -> Output {
    let mut command = chat_command(machine, chat, url, arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn chat_without_a_machine_says_how_to_connect_one() {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n");
    let server = crate::start(Sqlite).await;
    let chat = Chat::new(&server, "ann").await;
    let mut command =
        chat_command(&machine, &chat, &server.url, &["--agent", "coder", "read README.md"]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let hint = format!("atelier connect . --server {} --project '{}'", server.url, chat.setup.name);
    let reported =
        tokio::task::spawn_blocking(move || (lines.any(|line| line.ends_with(&hint)), lines)).await;
    let (reported, rest) = reported.unwrap();
    assert!(reported);
    let _client = machine.connect(&chat.setup, &server.url).await;
    let rest: Vec<String> = tokio::task::spawn_blocking(move || rest.collect()).await.unwrap();
    assert!(running.wait().unwrap().success(), "{rest:?}");
}

/// TL-06.2 TL-06.3: the answer is on standard output and the progress on standard error. Without a
/// terminal it says where to decide.
#[rstest]
#[tokio::test]
async fn chat_command_follows_a_message_to_its_answer(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n");
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;

    let read =
        run_chat(&machine, &chat, &server.url, &["--agent", "coder", "read README.md"]).await;
    let (answer, steps) =
        (String::from_utf8(read.stdout).unwrap(), String::from_utf8(read.stderr).unwrap());
    assert!(read.status.success(), "{steps}");
    assert_eq!(answer.matches("# Shop").count(), 1, "said once: {answer}");
    assert!(!answer.contains("read_file README.md: completed"), "{answer}");
    for words in ["agent_coder: working", "read_file README.md: completed", "completed; 2 steps"] {
        assert!(steps.contains(words), "{words}: {steps}");
    }

    // The conversation continues, and the project makes a plan.
    let session = ["--session", &chat.session, "write notes.txt: hello"];
    let (written, ()) = tokio::join!(run_chat(&machine, &chat, &server.url, &session), async {
        let asked = &chat.pending(1).await[0];
        chat.setup.decide(asked, "approve", json!({})).await;
    });
    let steps = String::from_utf8(written.stderr).unwrap();
    assert!(written.status.success(), "{steps}");
    for words in
        ["the plan: working", "waits for approval (MEDIUM); decide in the console", "completed; "]
    {
        assert!(steps.contains(words), "{words}: {steps}");
    }
    assert_eq!(machine.read("notes.txt").trim_end(), "hello");
    assert_eq!(chat.messages().await.len(), 2, "in the conversation that was named");

    // For programs: the unchanged events, one per line.
    let arguments = ["--json", "--agent", "coder", "read README.md"];
    let events =
        String::from_utf8(run_chat(&machine, &chat, &server.url, &arguments).await.stdout).unwrap();
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    for name in ["TASK_STARTED", "TASK_PROGRESS", "TOOL_CALL_UPDATED", "MESSAGE_DELTA"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert_eq!(names.last(), Some(&"TASK_COMPLETED"));

    let nobody = run_chat(&machine, &chat, &server.url, &["--agent", "nobody", "hi"]).await;
    assert_eq!(nobody.status.code(), Some(1));
}

/// TL-06.3: the card is the same as in `atelier connect`.
#[rstest]
#[tokio::test]
async fn approvals_are_decided_in_the_chat_terminal(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let words = ["--agent", "writer", "write notes.txt: hello"];
    let mut ann = Person::starts(chat_command(&machine, &chat, &server.url, &words));
    let card = ann.sees(KEYS).await;
    for words in ["MEDIUM", "writer", "notes.txt", "+hello"] {
        assert!(card.contains(words), "{words}: {card}");
    }
    ann.presses("y");
    ann.sees("approved once").await;
    ann.sees("completed; ").await;
    assert_eq!(machine.read("notes.txt").trim_end(), "hello");
    let audit = chat.get("audit").await;
    let via = audit["audit"][0]["via"].as_str().unwrap();
    assert!(via.starts_with("atelier-chat/"), "{via}");
}

/// A failure is in the exit code, and a restarted server is found again.
#[rstest]
#[tokio::test]
async fn interrupting_the_chat_cancels_its_work(#[values(Sqlite, Postgres)] backend: Backend) {
    let model = ScriptedModel::queue([Reply::silence(), Reply::silence()]).await;
    let server = super::with_model(backend, &model).await;
    let machine = Machine::new();
    let mut chat = Chat::new(&server, "ann").await;
    let proxy = FixedProxy::to(&server).await;
    let words = ["--session", &chat.session.clone(), "--agent", "coder", "think"];

    let mut thinking = ConnectProcess::start(chat_command(&machine, &chat, &proxy.url, &words));
    model.answering(1).await;
    thinking.signal();
    assert_eq!(thinking.ended().await.code(), Some(1));
    thinking.prints("agent_coder: cancelled").await;
    model.left(1).await;

    // The step in flight fails with the server, and the next server reports that.
    let mut thinking = ConnectProcess::start(chat_command(&machine, &chat, &proxy.url, &words));
    model.answering(1).await;
    let server = server.restart().await;
    proxy.point_to(&server);
    chat.setup.user = chat.setup.user.at(&server);
    assert_eq!(thinking.ended().await.code(), Some(1));
    thinking.prints("reconnecting").await;
    thinking.prints("not completed").await;
    let tasks = eventually("both tasks", async || {
        let list = chat.get("tasks").await;
        (list["total"] == 2).then_some(list)
    })
    .await;
    let ends: Vec<&Value> =
        tasks["tasks"].as_array().unwrap().iter().map(|task| &task["status"]).collect();
    assert_eq!(ends, ["failed", "cancelled"]);
}

/// The plan is shown once.
#[rstest]
#[tokio::test]
async fn plan_is_approved_in_the_chat_terminal(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n");
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    chat.set_settings(json!({"planner": {"approve_above": 0}})).await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let mut ann = Person::starts(chat_command(&machine, &chat, &server.url, &["read README.md"]));
    let card = ann.sees(KEYS).await;
    assert_eq!(card.matches("1: read README.md").count(), 1, "{card}");
    assert!(card.contains("the plan waits for your approval"), "{card}");
    ann.presses("y");
    ann.sees("approved; the plan runs").await;
    ann.sees("completed; ").await;

    let mut ann = Person::starts(chat_command(&machine, &chat, &server.url, &["read README.md"]));
    ann.sees(KEYS).await;
    ann.presses("n");
    ann.sees("Reason for the agent").await;
    ann.presses("not today\r");
    ann.sees("not completed: the plan was rejected: not today").await;
}

/// The command `atelier chat` in the machine's folder.
fn in_folder(machine: &Machine, chat: &Chat, url: &str, arguments: &[&str]) -> Command {
    let mut command = machine.program(&["chat", "--server", url]);
    command.args(arguments).env("ATELIER_TOKEN", &chat.setup.user.token);
    command.current_dir(machine.root()).env("TERM", "xterm-256color");
    command
}

/// DY-06: from a folder to a changed file in one terminal: the folder is connected, approvals are
/// answered in place, and the conversation can be continued.
#[rstest]
#[tokio::test]
async fn session_leads_from_a_folder_to_a_changed_file(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n\nSome **strong** words.\n");
    let server = crate::start(backend).await;
    let chat = Chat::new(&server, "ann").await;
    let mut ann = Person::starts(in_folder(&machine, &chat, &server.url, &[]));
    ann.sees("Connect it? [Y/n]").await;
    ann.presses("\r");
    ann.sees("Connected ").await;
    ann.presses("/hlep\r");
    ann.sees("did you mean /help?").await;
    ann.presses("/agent writer\r");
    ann.sees("You talk to agent_writer now.").await;
    ann.sees("agent_writer › ").await;
    ann.presses("write notes.txt: one\\\rtwo\r");
    let card = ann.sees(KEYS).await;
    for words in ["MEDIUM", "writer", "notes.txt", "+one", "+two"] {
        assert!(card.contains(words), "{words}: {card}");
    }
    ann.presses("y");
    ann.sees("write_file notes.txt: completed after ").await;
    ann.sees("completed; ").await;
    assert_eq!(machine.read("notes.txt").trim_end(), "one\ntwo");
    ann.sees("agent_writer › ").await;
    // The name of a file is completed, and the answer's Markdown is rendered.
    ann.presses("read @REA\t");
    ann.sees("@README.md").await;
    ann.presses("\u{3}read README.md\r");
    ann.sees("\u{1b}[36mSome **strong** words.\u{1b}[0m").await;
    ann.sees("completed; ").await;
    ann.presses("/cost\r");
    ann.sees("This session: ").await;
    ann.presses("/model\r");
    ann.sees("The default model is demo.").await;
    ann.sees("agent_writer › ").await;
    ann.presses("\u{3}");
    ann.sees("Press Ctrl-C again to leave.").await;
    ann.sees("agent_writer › ").await;
    ann.presses("\u{3}");
    assert!(ann.left().await.success());

    // The folder is known now, and so is its conversation. The arrow key brings back what was typed.
    let mut ann = Person::starts(in_folder(&machine, &chat, &server.url, &["--continue"]));
    ann.sees("Connected ").await;
    ann.sees("Continuing conversation ").await;
    ann.sees("you: write notes.txt: one").await;
    ann.presses("\u{1b}[A\u{1b}[A");
    ann.sees("/cost").await;
    ann.presses("\u{3}\u{4}");
    assert!(ann.left().await.success());
    assert_eq!(chat.get("chat/sessions").await["total"], 2, "one of them began in the terminal");
}

/// DY-06: Escape interrupts the agents, and the session goes on.
#[tokio::test]
async fn escape_interrupts_the_agents_of_a_session() {
    let model = ScriptedModel::queue([Reply::silence(), Reply::text("Here I am.")]).await;
    let server = super::with_model(Sqlite, &model).await;
    let (machine, chat) = (Machine::new(), Chat::new(&server, "ann").await);
    let words = ["--no-connect", "--agent", "coder"];
    let mut ann = Person::starts(in_folder(&machine, &chat, &server.url, &words));
    ann.sees("coder › ").await;
    ann.presses("think\r");
    model.answering(1).await;
    ann.presses("\u{1b}");
    ann.sees("not completed").await;
    model.left(1).await;
    ann.sees("coder › ").await;
    ann.presses("hello\r");
    ann.sees("Here I am.").await;
    ann.sees("completed; ").await;
    ann.presses("/quit\r");
    assert!(ann.left().await.success());
}

/// DY-06: what is typed while agents work is neither lost nor an answer: it is the next message.
#[tokio::test]
async fn text_typed_while_agents_work_is_the_next_message() {
    let model = ScriptedModel::queue([Reply::silence(), Reply::text("Here I am.")]).await;
    let server = super::with_model(Sqlite, &model).await;
    let (machine, chat) = (Machine::new(), Chat::new(&server, "ann").await);
    let words = ["--no-connect", "--agent", "coder"];
    let mut ann = Person::starts(in_folder(&machine, &chat, &server.url, &words));
    ann.sees("coder › ").await;
    ann.presses("think\r");
    model.answering(1).await;
    ann.sees("coder: working").await;
    ann.presses("q");
    ann.presses("uestion, please\r\u{1b}[200~/qu\u{1b}[201~");
    ann.presses("it");
    ann.presses("\r");
    ann.presses("\u{1b}");
    ann.sees("not completed").await;
    model.left(1).await;
    ann.sees("› question, please").await;
    ann.sees("Here I am.").await;
    ann.sees("› /quit").await;
    assert!(ann.left().await.success());
    let asked = chat.get("chat/sessions?limit=1").await["sessions"][0]["id"].clone();
    let messages = chat.get(&format!("chat/sessions/{}/messages", asked.as_str().unwrap())).await;
    assert_eq!(messages["messages"][2]["content"], "question, please", "{messages}");
}

/// DY-06: a command that needs an approval shows its card in place, and Escape or Ctrl-C cancels it.
#[tokio::test]
async fn command_shows_its_card_and_can_be_cancelled() {
    let machine = Machine::new();
    machine.write("a.txt", "old\n");
    let server = crate::start(Sqlite).await;
    let chat = Chat::new(&server, "ann").await;
    let mut ann = Person::starts(in_folder(&machine, &chat, &server.url, &["--agent", "writer"]));
    ann.sees("Connect it? [Y/n]").await;
    ann.presses("y\r");
    ann.sees("Connected ").await;
    ann.sees("writer › ").await;
    ann.presses("/undo\r");
    ann.sees("There is no change to undo.").await;
    ann.sees("writer › ").await;
    ann.presses("write a.txt: new\r");
    ann.sees(KEYS).await;
    ann.presses("y");
    ann.sees("completed; ").await;
    for escapes in [true, false] {
        ann.sees("writer › ").await;
        ann.presses("/undo\r");
        ann.sees("+old").await;
        ann.sees(KEYS).await;
        match escapes {
            true => ann.presses("\u{1b}"),
            false => ann.interrupts(),
        }
        ann.sees("Cancelled.").await;
        assert_eq!(machine.read("a.txt").trim_end(), "new");
    }
    ann.sees("writer › ").await;
    ann.presses("/undo\r");
    ann.sees(KEYS).await;
    ann.presses("y");
    ann.sees("approved once").await;
    ann.sees("The last change is taken back.").await;
    assert_eq!(machine.read("a.txt"), "old\n");
    ann.sees("writer › ").await;
    ann.presses("/diff\r");
    ann.sees("This folder is not in a git repository").await;
    ann.presses("/quit\r");
    assert!(ann.left().await.success());
}

/// DY-06: standard input is the message, and without a terminal there are no colours.
#[tokio::test]
async fn standard_input_is_the_message() {
    let machine = Machine::new();
    machine.write("README.md", "# Shop\n");
    let server = crate::start(Sqlite).await;
    let chat = Chat::new(&server, "ann").await;
    let _client = machine.connect(&chat.setup, &server.url).await;
    let piped = async |input: &str| {
        let mut command = in_folder(&machine, &chat, &server.url, &["--agent", "coder"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().unwrap();
        std::io::Write::write_all(&mut running.stdin.take().unwrap(), input.as_bytes()).unwrap();
        tokio::task::spawn_blocking(move || running.wait_with_output().unwrap()).await.unwrap()
    };
    let read = piped("read README.md\n").await;
    let (answer, steps) =
        (String::from_utf8(read.stdout).unwrap(), String::from_utf8(read.stderr).unwrap());
    assert!(read.status.success() && answer.contains("# Shop"), "{answer}{steps}");
    assert!(!answer.contains('\u{1b}') && !steps.contains('\u{1b}'), "{answer}{steps}");
    let empty = piped("  \n").await;
    assert_eq!(empty.status.code(), Some(1));
}
