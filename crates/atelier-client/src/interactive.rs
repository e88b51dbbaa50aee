//! A conversation in the terminal: `atelier` or `atelier chat` without a message, in a folder.

mod calls;
mod commands;
mod memory;

use crate::{
    api_client::{ApiClient, which_project},
    cards::TextTyped,
    chat::{ConversationApi, Following, Opening, WorkStatus, converse},
    connection::{Options, connect},
    editor::{Editor, Entered},
    error::{Error, Result},
    local_workspace::LocalWorkspace,
    project::ProjectApi,
    screen::{OutputStream, Screen},
    state::State,
    token,
};
use atelier_api::Me;
use atelier_core::{Conversation, MessageRole, PlanId, Project, Usage, visible::visible};
use commands::Command;
use memory::FolderMemory;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub struct InteractiveOptions {
    /// The address [default: that of the last login].
    pub server: Option<String>,
    /// The project, by id or name. Without one: the last one of this folder, or the only one.
    pub project: Option<String>,
    pub agent: Option<String>,
    pub token: Option<String>,
    /// The folder that agents get access to.
    pub dir: PathBuf,
    /// Whether to connect the folder.
    pub connect: bool,
    pub start: Start,
}

/// Which conversation a session begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    New,
    /// The last one in this folder.
    Last,
    /// The person chooses one from a list.
    Choose,
    Id(String),
}

/// How long to wait until the server knows this machine.
const CONNECTING: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long running calls may take to end when the person leaves.
const DISCONNECTING: Duration = Duration::from_secs(6);

/// Serves the folder in a thread of its own, because calls may block it. Returns what the connection
/// ended with.
fn serve_folder(
    options: Options,
    stop: CancellationToken,
) -> Result<oneshot::Receiver<Result<()>>> {
    let (ended, outcome) = oneshot::channel();
    let failed = || Error::io("start", "the connection of the folder".as_ref());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(failed())?;
    let serve = move || {
        let outcome = runtime.block_on(connect(options, stop));
        runtime.shutdown_background();
        if ended.send(outcome).is_err() {
            tracing::debug!("the session has ended before the connection of its folder");
        }
    };
    std::thread::Builder::new().name("folder".to_owned()).spawn(serve).map_err(failed())?;
    Ok(outcome)
}

/// Talks with agents until the person leaves.
pub async fn interactive(options: InteractiveOptions) -> Result<()> {
    let api = ApiClient::signed_in("chat", options.server.as_deref(), options.token.clone())?;
    let me = api.me().await?;
    let mut memory = FolderMemory::open(&options.dir, api.server())?;
    let project = choose_project(&api, &options, &memory).await?;
    let project = Arc::new(ProjectApi { api, project });
    let colours = std::env::var_os("NO_COLOR").is_none();
    let screen = Arc::new(Screen::on(OutputStream::Standard, colours));
    let mut session = Session {
        me,
        project,
        screen,
        agent: options.agent.clone(),
        conversation: None,
        history: memory.history(),
        plan: None,
        used: Usage::default(),
        cost: 0.0,
    };
    session.greet();
    let stop = CancellationToken::new();
    let machine = session.connect_folder(&options, stop.clone()).await?;
    let outcome = {
        let (api, screen) = (session.project.clone(), session.screen.clone());
        let expires_at = session.me.expires_at;
        tokio::select! {
            outcome = session.run(&options, &mut memory) => outcome,
            never = token::keep_fresh(&api.api, expires_at, &screen) => match never {},
        }
    };
    stop.cancel();
    // Calls that still run are in the journal, and the next start reports them.
    if let Some(machine) = machine
        && !matches!(tokio::time::timeout(DISCONNECTING, machine).await, Ok(Ok(Ok(()))))
    {
        tracing::debug!("the connection of the folder did not end in order");
    }
    outcome
}

/// The project that was named, the last one of this folder, or the only one.
async fn choose_project(
    api: &ApiClient,
    options: &InteractiveOptions,
    memory: &FolderMemory,
) -> Result<Project> {
    if let Some(wanted) = &options.project {
        return api.project(wanted).await;
    }
    let mut projects = api.projects().await?;
    let last = memory.project();
    if let Some(at) = projects.iter().position(|one| Some(one.id.to_string()) == last) {
        return Ok(projects.swap_remove(at));
    }
    if projects.len() == 1 {
        return Ok(projects.swap_remove(0));
    }
    Err(which_project(&projects))
}

/// A person at the terminal, and the conversation.
struct Session {
    me: Me,
    project: Arc<ProjectApi>,
    screen: Arc<Screen>,
    /// The agent to talk to. Without one, the project plans which agents do what.
    agent: Option<String>,
    /// Started with the first message.
    conversation: Option<ConversationApi>,
    history: Vec<String>,
    /// The plan of the last message.
    plan: Option<PlanId>,
    used: Usage,
    cost: f64,
}

/// Whether the session goes on.
enum Next {
    Continue,
    Leave,
}

impl Session {
    fn say(&self, text: &str) {
        let text: Vec<String> = text.split('\n').map(visible).collect();
        self.screen.raw(&format!("{}\n", text.join("\n")));
    }

    fn greet(&self) {
        let name = self.project.project.name.as_str();
        self.say(&format!("Atelier · project {name} · {}", self.project.api.server()));
        self.say("Write a message. /help shows the commands, Ctrl-C twice leaves.");
    }

    async fn ask(&self, prompt: &str) -> Result<Entered> {
        Editor::new(prompt, &[]).read(&|_| Vec::new()).await
    }

    /// Gives the project's agents access to the folder. The first time, the person is asked.
    async fn connect_folder(
        &self,
        options: &InteractiveOptions,
        stop: CancellationToken,
    ) -> Result<Option<oneshot::Receiver<Result<()>>>> {
        if !options.connect {
            return Ok(None);
        }
        let root = LocalWorkspace::open(&options.dir)?.root().to_owned();
        let project = &self.project.project;
        if !State::exists(&root, self.project.api.server(), &project.id.to_string())? {
            self.say(&format!(
                "Agents of this project will read this folder, and change it with your approval:\n  \
                 {}",
                root.display()
            ));
            match self.ask("Connect it? [Y/n] ").await? {
                Entered::Text(answer) if matches!(answer.as_str(), "" | "y" | "Y" | "yes") => {}
                _ => return Ok(None),
            }
        }
        let connection = Options {
            dir: options.dir.clone(),
            servers: vec![self.project.api.server().to_owned()],
            project: project.id.to_string(),
            token: options.token.clone(),
            no_approve: true,
            low_only: false,
            quiet: true,
        };
        let mut machine = serve_folder(connection, stop)?;
        let known = async {
            while self.project.active_client().await?.is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok::<(), Error>(())
        };
        tokio::select! {
            known = tokio::time::timeout(CONNECTING, known) => known.unwrap_or(Ok(()))?,
            ended = &mut machine => match ended {
                Ok(Err(Error::Busy)) => {
                    self.say("Another program has already connected this folder.");
                    return Ok(None);
                }
                Ok(Err(error)) => return Err(error),
                Ok(Ok(())) | Err(_) => return Ok(None),
            },
        }
        self.say(&format!("Connected {}", root.display()));
        Ok(Some(machine))
    }

    async fn run(&mut self, options: &InteractiveOptions, memory: &mut FolderMemory) -> Result<()> {
        match &options.start {
            Start::New => {}
            Start::Last => match memory.conversation(self.project.project.id) {
                Some(id) => self.open(&id).await?,
                None => {
                    self.say("There is no earlier conversation in this folder: this is a new one.");
                }
            },
            Start::Choose => self.choose_conversation().await?,
            Start::Id(id) => self.open(id).await?,
        }
        let mut warned = false;
        loop {
            match self.read_message(options).await? {
                Entered::Text(text) if text.is_empty() => {}
                Entered::Text(text) => {
                    warned = false;
                    memory.add_to_history(&text);
                    self.history.push(text.clone());
                    if let Next::Leave = self.handle(&text, memory).await? {
                        return Ok(());
                    }
                }
                Entered::Interrupted if !warned => {
                    warned = true;
                    self.say("Press Ctrl-C again to leave.");
                }
                Entered::Interrupted | Entered::End => return Ok(()),
            }
        }
    }

    async fn read_message(&self, options: &InteractiveOptions) -> Result<Entered> {
        let prompt = match &self.agent {
            Some(agent) => format!("{} › ", visible(agent)),
            None => "› ".to_owned(),
        };
        let dir = options.dir.clone();
        let complete = move |word: &str| commands::completions(word, &dir);
        Editor::new(&prompt, &self.history).read(&complete).await
    }

    /// Sends a message or runs a command. An error of the server does not end the session.
    async fn handle(&mut self, text: &str, memory: &mut FolderMemory) -> Result<Next> {
        let outcome = match Command::parse(text) {
            Some(Ok(Command::Quit)) => return Ok(Next::Leave),
            Some(Ok(Command::Again)) => return self.ask_again().await,
            Some(Ok(command)) => self.command(command).await,
            Some(Err(problem)) => {
                self.say(&problem);
                Ok(())
            }
            None => return self.send(text, memory).await,
        };
        match outcome {
            Ok(()) => Ok(Next::Continue),
            Err(error) => self.report(error),
        }
    }

    /// Prints an error, unless the session cannot go on after it.
    fn report(&self, error: Error) -> Result<Next> {
        match error {
            Error::TokenRejected | Error::ProjectDeleted => Err(error),
            error => {
                self.say(&error.full_message());
                Ok(Next::Continue)
            }
        }
    }

    /// Sends a message and follows the work.
    async fn send(&mut self, text: &str, memory: &mut FolderMemory) -> Result<Next> {
        let opened = match self.conversation.clone() {
            Some(open) => Ok(open),
            None => ConversationApi::open(self.project.clone(), None).await,
        };
        let conversation = match opened {
            Ok(conversation) => conversation,
            Err(error) => return self.report(error),
        };
        memory.keep(self.project.project.id, conversation.id);
        self.conversation = Some(conversation.clone());
        let agent = self.agent.clone();
        let opening = Opening::Message { text, agent: agent.as_deref() };
        self.follow(conversation, opening, WorkStatus::default()).await
    }

    /// Asks the newest question again that nobody answered in time, and follows the work that goes
    /// on with it.
    async fn ask_again(&mut self) -> Result<Next> {
        let Some(conversation) = self.conversation.clone() else {
            self.say("There is no conversation yet.");
            return Ok(Next::Continue);
        };
        let found = async {
            Ok(match conversation.newest_run_out().await? {
                Some(question) => Some((question, conversation.status_of(question).await?)),
                None => None,
            })
        };
        match found.await {
            Ok(Some((question, before))) => {
                self.follow(conversation.clone(), Opening::AskAgain(question), before).await
            }
            Ok(None) => {
                self.say("No question of this conversation has expired.");
                Ok(Next::Continue)
            }
            Err(error) => self.report(error),
        }
    }

    /// Follows work to its end. Escape or Ctrl-C interrupts it, a second Ctrl-C leaves. `before` is
    /// what the work had used before.
    async fn follow(
        &mut self,
        conversation: ConversationApi,
        opening: Opening<'_>,
        before: WorkStatus,
    ) -> Result<Next> {
        let stop = CancellationToken::new();
        let mut interrupts = signal(SignalKind::interrupt())
            .map_err(Error::io("listen to", "the keyboard".as_ref()))?;
        let how = Following {
            asks_here: self.me.role.is_person(),
            text: TextTyped::Kept,
            json: false,
            announces: false,
            renders: self.screen.colours,
        };
        let screen = self.screen.clone();
        let outcome = {
            let talking = converse(conversation, screen, opening, how, stop.clone());
            let mut talking = std::pin::pin!(talking);
            loop {
                tokio::select! {
                    outcome = &mut talking => break outcome,
                    _ = interrupts.recv() => {
                        if stop.is_cancelled() {
                            return Ok(Next::Leave);
                        }
                        stop.cancel();
                    }
                }
            }
        };
        match outcome {
            Ok((status, work)) => {
                self.plan = work.plan_id;
                let more = |now: u64, before: u64| now.saturating_sub(before);
                self.used += Usage {
                    input_tokens: more(status.usage.input_tokens, before.usage.input_tokens),
                    output_tokens: more(status.usage.output_tokens, before.usage.output_tokens),
                };
                self.cost += (status.cost - before.cost).max(0.0);
                Ok(Next::Continue)
            }
            Err(error) => self.report(error),
        }
    }

    async fn open(&mut self, id: &str) -> Result<()> {
        let conversation = ConversationApi::open(self.project.clone(), Some(id)).await?;
        self.say(&format!("Continuing conversation {}.", conversation.id));
        for message in conversation.last_messages(4).await? {
            let who = if message.role == MessageRole::User { "you" } else { "agent" };
            let line: String =
                message.content.lines().next().unwrap_or("").chars().take(70).collect();
            self.say(&format!("  {who}: {line}"));
        }
        self.conversation = Some(conversation);
        Ok(())
    }

    /// Lists the newest conversations and opens the one that the person chooses.
    async fn choose_conversation(&mut self) -> Result<()> {
        let recent: Vec<Conversation> = self.project.conversations(10).await?;
        if recent.is_empty() {
            self.say("This project has no conversation yet.");
            return Ok(());
        }
        for (number, one) in recent.iter().enumerate() {
            let title = one.title.as_deref().unwrap_or("(no title)");
            let time = one.updated_at.with_timezone(&chrono::Local).format("%Y-%m-%d %H:%M");
            self.say(&format!("  {}  {time}  {title}", number + 1));
        }
        let Entered::Text(answer) = self.ask("Which one? [number] ").await? else { return Ok(()) };
        let chosen =
            answer.parse::<usize>().ok().and_then(|number| recent.get(number.wrapping_sub(1)));
        match chosen {
            Some(one) => self.open(&one.id.to_string()).await,
            None => {
                self.say("Nothing was chosen: the next message goes on as before.");
                Ok(())
            }
        }
    }
}
