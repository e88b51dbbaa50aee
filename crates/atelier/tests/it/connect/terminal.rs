//! Approvals in a terminal, tested with a pseudo terminal.

use super::client::{Machine, ProjectSetup};
use crate::start;
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    eventually,
};
use rstest::rstest;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
    process::{Child, Command},
    sync::{Arc, Mutex},
};

/// A person at a terminal in which the program runs.
pub(crate) struct Person {
    process: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// How much of the output the test has handled.
    seen: usize,
}

impl Person {
    async fn sits_down(machine: &Machine, setup: &ProjectSetup, url: &str) -> Self {
        let mut person = Self::starts(machine.command(setup, url, &[]));
        person.sees("  connected").await;
        person
    }

    pub(crate) fn starts(mut command: Command) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let path = std::ffi::OsStr::from_bytes(name.to_bytes());
        let side = File::options().read(true).write(true).open(path).unwrap();
        command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        let process = command.spawn().unwrap();
        // Otherwise the command would keep the other end open.
        drop(command);
        let keyboard = File::from(terminal);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, sink) = (keyboard.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                sink.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { process, keyboard, screen, seen: 0 }
    }

    /// Waits for new output that contains the words, and returns the output up to them.
    pub(crate) async fn sees(&mut self, words: &str) -> String {
        let (seen, screen) = (self.seen, self.screen.clone());
        let end = eventually(words, async || {
            let screen = screen.lock().unwrap();
            screen[seen..].find(words).map(|at| seen + at + words.len())
        })
        .await;
        self.seen = end;
        self.screen.lock().unwrap()[seen..end].to_owned()
    }

    /// Waits until the program has ended.
    pub(crate) async fn left(&mut self) -> std::process::ExitStatus {
        let process = std::cell::RefCell::new(&mut self.process);
        eventually("the program ends", async || process.borrow_mut().try_wait().unwrap()).await
    }

    /// Ctrl-C while agents work. The program has no controlling terminal that would send the signal.
    pub(crate) fn interrupts(&self) {
        let process = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    }

    pub(crate) fn presses(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            eprintln!("--- the terminal\n{}\n---", self.screen.lock().unwrap());
        }
    }
}

pub(crate) const KEYS: &str = "[q] quit";

/// TL-06.3 TL-02.3: the card shows what will happen, and one key decides.
#[rstest]
#[tokio::test]
async fn one_key_decides_a_card(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    machine.write("a.txt", "old\n");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    let session = crate::conversation(&setup.user, &setup.project).await;
    let ask = async |tool: &str, params: Value| {
        let body = json!({"tool_name": tool, "tool_params": params, "agent_id": "coder", "session_id": session});
        setup.post("tools/execute", body).await.expect(200)
    };
    let write = ask("write_file", json!({"path": "a.txt", "content": "new \u{1b}[2J\n"})).await;
    let card = ann.sees(KEYS).await;
    for words in ["MEDIUM", "coder", "a.txt", "\u{1b}[31m-old", "\u{1b}[32m+new \\u{1b}[2J"] {
        assert!(card.contains(words), "{words}: {card}");
    }
    ann.presses("y");
    ann.sees("approved once").await;
    setup.until(&write, "completed").await;
    assert_eq!(machine.read("a.txt"), "new \u{1b}[2J\n");

    let delete = ask("delete_file", json!({"path": "a.txt"})).await;
    let card = ann.sees(KEYS).await;
    assert!(card.contains("HIGH"), "{card}");
    ann.presses("n");
    ann.sees("Reason for the agent").await;
    ann.presses("not yetr\u{7f}!\r");
    ann.sees("rejected").await;
    assert_eq!(setup.show(&delete).await["error"]["detail"], "Rejected by the user: not yet!");

    let command = json!({"command": "git", "args": ["init", "-q", "x y"]});
    let init = ask("execute_command", command.clone()).await;
    let card = ann.sees(KEYS).await;
    for words in ["git init -q \"x y\"", "network", "sandbox", "every “git init”"] {
        assert!(card.contains(words), "{words}: {card}");
    }
    ann.presses("s");
    ann.sees("this class is allowed").await;
    setup.until(&init, "completed").await;
    assert!(ask("execute_command", command).await["grant_id"].is_string(), "of the same class");

    // Trusting an agent takes two keys, with a warning in between.
    ask("create_directory", json!({"path": "d"})).await;
    ann.sees(KEYS).await;
    ann.presses("a");
    ann.sees("Warning").await;
    ann.presses("x");
    ann.sees("Nothing was decided").await;
    ann.sees(KEYS).await;
    ann.presses("a");
    ann.sees("Warning").await;
    ann.presses("a");
    ann.sees("this agent is trusted").await;
    let granted = ask("create_directory", json!({"path": "e"})).await;
    assert!(granted["grant_id"].is_string(), "{granted}");
    setup.until(&granted, "completed").await;
    assert!(machine.root().join("e").is_dir());

    // If a card is decided elsewhere, it closes and the next card is shown.
    let first = ask("delete_file", json!({"path": "a.txt"})).await;
    let first = setup.until(&first, "pending_approval").await;
    ann.sees(KEYS).await;
    let second = ask("delete_file", json!({"path": "a.txt"})).await;
    setup.decide(&first, "reject", json!({})).await;
    ann.sees("decided elsewhere: rejected").await;
    ann.sees(KEYS).await;
    ann.presses("y");
    ann.sees("approved once").await;
    setup.until(&second, "completed").await;
    ann.presses("q");
    ann.sees("disconnected").await;
    assert_eq!(setup.clients().await, Vec::<Value>::new());
}

#[tokio::test]
async fn keys_pressed_before_a_card_do_not_decide_it() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    let first = setup.execute("write_file", json!({"path": "one.txt", "content": "1"})).await;
    let second =
        setup.execute("write_file", json!({"path": "Makefile", "content": "all:\n"})).await;
    setup.until(&second, "pending_approval").await;
    ann.sees(KEYS).await;
    ann.presses("yyyyyy");
    ann.sees("Only a single key answers: nothing was decided.").await;
    assert_eq!(setup.show(&first).await["status"], "pending_approval");
    ann.sees(KEYS).await;
    ann.presses("y");
    ann.sees("approved once").await;
    setup.until(&first, "completed").await;
    let card = ann.sees(KEYS).await;
    assert!(card.contains("Makefile"), "{card}");
    assert_eq!(setup.show(&second).await["status"], "pending_approval");
    ann.presses("y");
    setup.until(&second, "completed").await;
}

/// TL-06.3: neither a message nor pasted text decides a card, whatever letters it has.
#[tokio::test]
async fn text_typed_or_pasted_at_a_card_does_not_decide() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    let before = ann.sees(KEYS).await;
    assert!(!before.contains("approved"), "{before}");
    for text in
        ["say thanks\r", "\u{1b}[200~hey there\u{1b}[201~y", "\u{1b}[200~y\u{1b}[201~", "nay"]
    {
        ann.presses(text);
        ann.sees("Only a single key answers: nothing was decided.").await;
        ann.sees(KEYS).await;
        assert_eq!(setup.show(&call).await["status"], "pending_approval", "{text:?}");
    }
    ann.presses("y");
    ann.sees("approved once").await;
    setup.until(&call, "completed").await;
}

/// Letters in the sequences of arrow and keypad keys do not decide, and Escape cancels a rejection.
#[tokio::test]
async fn escape_sequences_of_other_keys_do_not_decide() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    ann.sees(KEYS).await;
    ann.presses("\u{1b}Oy\u{1b}[s\u{1b}[1;5y\u{1b}yn");
    ann.sees("Reason for the agent").await;
    ann.presses("because\u{1b}");
    ann.sees("Nothing was decided").await;
    ann.sees(KEYS).await;
    assert_eq!(setup.show(&call).await["status"], "pending_approval");
    ann.presses("y");
    ann.sees("approved once").await;
    setup.until(&call, "completed").await;
}

#[tokio::test]
async fn long_change_is_shown_to_its_end_before_it_can_be_approved() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    let content = "line\n".repeat(404) + "the last\r\n";
    let write = setup.execute("write_file", json!({"path": "long.txt", "content": content})).await;
    let card = ann.sees(KEYS).await;
    assert!(card.contains("more lines") && !card.contains("the last"), "{card}");
    for key in ["y", "s"] {
        ann.presses(key);
        ann.sees("press v first").await;
        ann.sees(KEYS).await;
    }
    assert_eq!(setup.show(&write).await["status"], "pending_approval");
    ann.presses("v");
    ann.sees("the last\\r").await;
    ann.sees(KEYS).await;
    ann.presses("y");
    ann.sees("approved once").await;
    setup.until(&write, "completed").await;
    assert_eq!(machine.read("long.txt"), content);
}

/// Agent text is always indented, and the subject of the card is repeated below it.
#[tokio::test]
async fn agent_text_cannot_pass_for_a_card() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    let fake = "── LOW · coder wants write_file ──";
    let content = format!("{}{fake}\n", "x".repeat(77));
    let path = format!("{}{fake}/Makefile", "x".repeat(62));
    let params = json!({"path": path, "content": content, "create_dirs": true});
    setup.execute("write_file", params).await;
    let card = ann.sees(KEYS).await;
    let card = card.split_once("── HIGH").unwrap().1;
    let plain: Vec<&str> = card.lines().collect();
    let edge = |line: &&&str| line.contains("LOW") && !line.starts_with("  ");
    assert_eq!(plain.iter().find(edge), None, "{card}");
    assert!(card.contains("  › "), "{card}");
    let last = plain.iter().rposition(|line| line.contains("── HIGH · write_file xxx")).unwrap();
    assert!(last > plain.iter().rposition(|line| line.contains("@@")).unwrap(), "{card}");
}

/// With a client's token, the terminal does not ask for approvals.
#[tokio::test]
async fn client_token_cannot_approve() {
    let machine = Machine::new();
    let server = start(Sqlite).await;
    let mut setup = ProjectSetup::new(server.user("ann")).await;
    let owner = setup.user.clone();
    setup.user = server.program("ann", "client", &setup.project);
    let mut robot = Person::sits_down(&machine, &setup, &server.url).await;
    setup.user = owner;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    robot.sees("waits for approval").await;
    robot.presses("y");
    setup.decide(&call, "approve", json!({})).await;
    setup.until(&call, "completed").await;
    assert!(!robot.screen.lock().unwrap().contains(KEYS));
}

/// TL-02.4 TL-02.5
#[tokio::test]
async fn card_warns_before_it_expires() {
    let machine = Machine::new();
    let server = crate::build(Sqlite).with("GATE__APPROVAL_MEDIUM", "6s").start().await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let client = machine.connect_with(&setup, &server.url, &["--no-approve"]).await;
    let call = setup.execute("create_directory", json!({"path": "d"})).await;
    client.prints("Nobody has decided yet").await;
    setup.until(&call, "expired").await;
    // If a card is shown, the warning appears there in time.
    drop(client);
    let mut ann = Person::sits_down(&machine, &setup, &server.url).await;
    setup.execute("create_directory", json!({"path": "e"})).await;
    ann.sees(KEYS).await;
    ann.sees("Nobody has decided yet").await;
    ann.sees(KEYS).await;
    ann.sees("nobody decided in time; press r to be asked again").await;
    // One key asks again, and one lets the question wait.
    ann.presses("r");
    ann.sees("asked again").await;
    let card = ann.sees(KEYS).await;
    assert!(card.contains("[w] keep waiting"), "{card}");
    ann.presses("w");
    ann.sees("The question waits until you answer it.").await;
    let keys = ann.sees(KEYS).await;
    assert!(!keys.contains("[w]"), "{keys}");
    ann.presses("y");
    ann.sees("approved once").await;
    eventually("it is made", async || machine.root().join("e").is_dir().then_some(())).await;
}
