//! `atelier connect`: connects one folder to one project until it is stopped.

use crate::{
    api_client::ApiClient,
    backoff::Backoff,
    banner,
    calls::{CallRunner, MAX_FILE_CALLS},
    cards::{CardEvent, OpenCards, TextTyped, expires_soon},
    dispatched_call::{DispatchedCall, origin},
    error::{Error, Result},
    journal::Journal,
    keyboard,
    local_workspace::LocalWorkspace,
    machine_api::MachineApi,
    project::ProjectApi,
    rules::ClientRules,
    screen::{OutputStream, Screen},
    sse::{Message, Stream},
    state::State,
    token,
};
use atelier_api::{ProblemCode, events::StreamMessage};
use atelier_core::{
    CallId, Event, FailureCode, Role,
    gate::{CallStatus, GatedCall, LINK},
    isolation::ReportedIsolation,
    policy::verdict::Verdict,
};
use chrono::{DateTime, Utc};
use serde_json::Value;
use std::{
    convert::Infallible,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[derive(Debug)]
pub struct Options {
    pub dir: PathBuf,
    /// The addresses of the server; the first one that answers is used. Without any, the server of
    /// the last login is used.
    pub servers: Vec<String>,
    /// The project, by id or name.
    pub project: String,
    /// The token. Without one, the token that `atelier login` stored.
    pub token: Option<String>,
    /// Do not ask for approvals in this terminal.
    pub no_approve: bool,
    /// Nothing above LOW runs on this machine, even if it is approved.
    pub low_only: bool,
    /// Print nothing: another part of the program shows what happens.
    pub quiet: bool,
}

/// How often the lease is renewed. Another machine takes over after three times as long.
const RENEW: Duration = Duration::from_secs(10);
/// How long running calls may take to end when this program ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How often a server with several addresses is asked whether it answers, and how long its answer
/// may take. An address that does not answer twice is left, in less than ten seconds.
const WATCH: Duration = Duration::from_secs(2);
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the server may refuse the token before this program ends. A node with the wrong keys
/// refuses every token, until it is taken out or repaired.
const REFUSED_TOKEN: Duration = Duration::from_secs(30);
/// How many previews are computed at the same time.
const PREVIEWS: usize = 2;
/// How often layers are looked for that nobody uses any more.
const REVIEW: Duration = Duration::from_secs(24 * 3600);

/// Serves a folder until `stop`, or until the server refuses this machine.
pub async fn connect(options: Options, stop: CancellationToken) -> Result<()> {
    let api = ApiClient::signed_in_to_any("connect", &options.servers, options.token.clone())?;
    let rules = ClientRules::load()?;
    // Report an unusable folder before asking the server for anything.
    LocalWorkspace::open(&options.dir)?;
    api.leave_if_silent(WATCH_TIMEOUT).await;
    let me = api.me().await?;
    if me.role == Role::Agent {
        return Err(Error::AgentToken);
    }
    let policy = api.policy().await?;
    let local = LocalWorkspace::guarded(&options.dir, &rules, &policy.extension)?;
    let project = api.project(&options.project).await?;
    let project = Arc::new(ProjectApi { api, project });
    let asks_here = asks_here(&options, me.role);
    let screen = open_screen(options.quiet);
    let notes = banner::rule_notes(&policy, &rules, &local);
    screen.raw(&banner::banner(
        &local,
        &project,
        approvals_note(asks_here, options.low_only),
        &notes,
    ));
    let mut connection = Connection::open(&options, &rules, local, project, screen, stop)?;
    if asks_here {
        connection.show_cards()?;
    }
    let outcome = connection.run(me.expires_at).await;
    // The terminal is restored before the shutdown, because a second Ctrl-C ends the program
    // immediately.
    if let Some(cards) = connection.cards.take() {
        cards.close().await;
    }
    connection.disconnect().await;
    outcome
}

/// Whether approvals are asked for in this terminal.
fn asks_here(options: &Options, role: Role) -> bool {
    let is_wanted = !options.no_approve && !options.low_only;
    is_wanted && role.is_person() && keyboard::is_attended(&std::io::stdout())
}

fn open_screen(quiet: bool) -> Arc<Screen> {
    let colours =
        keyboard::is_attended(&std::io::stdout()) && std::env::var_os("NO_COLOR").is_none();
    let output = if quiet { OutputStream::Nowhere } else { OutputStream::Standard };
    Arc::new(Screen::on(output, colours))
}

fn approvals_note(asks_here: bool, low_only: bool) -> &'static str {
    match (asks_here, low_only) {
        (_, true) => "none: only calls rated LOW run on this machine",
        (true, _) => "in this terminal, or in the console",
        (false, _) => "in the console, or through the API",
    }
}

struct Connection {
    runner: Arc<CallRunner>,
    state: State,
    isolation: ReportedIsolation,
    /// Present if approvals are asked for in this terminal.
    cards: Option<OpenCards>,
}

impl Connection {
    /// Opens the state and the journal, and finishes the calls that an earlier process left open.
    fn open(
        options: &Options,
        rules: &ClientRules,
        local: LocalWorkspace,
        project: Arc<ProjectApi>,
        screen: Arc<Screen>,
        stop: CancellationToken,
    ) -> Result<Self> {
        let state = State::open(
            local.root(),
            project.api.first_address(),
            &project.project.id.to_string(),
        )?;
        let (journal, open_calls) = Journal::open(state.journal())?;
        let machine =
            MachineApi { project, client: state.client, registered: AtomicBool::new(false) };
        let isolation = ReportedIsolation::from(&local.runner().isolation());
        let runner = Arc::new(CallRunner {
            machine,
            local,
            journal,
            screen,
            up_to: if options.low_only { Verdict::Low } else { Verdict::High },
            command_slots: Semaphore::new(rules.parallel),
            file_call_slots: Semaphore::new(MAX_FILE_CALLS),
            open_file_slots: Semaphore::new(rules.parallel),
            preview_slots: Semaphore::new(PREVIEWS),
            active: Default::default(),
            never_started: Default::default(),
            tasks: TaskTracker::new(),
            stop,
            give_up: CancellationToken::new(),
        });
        runner.finish_earlier_calls(open_calls)?;
        Ok(Self { runner, state, isolation, cards: None })
    }

    fn show_cards(&mut self) -> Result<()> {
        let CallRunner { machine, screen, stop, .. } = &*self.runner;
        let (project, screen) = (machine.project.clone(), screen.clone());
        self.cards = Some(OpenCards::open(project, screen, TextTyped::Lost, stop.clone())?);
        Ok(())
    }

    /// Follows the events, and keeps the lease and the token valid.
    async fn run(&self, token_expires_at: DateTime<Utc>) -> Result<()> {
        let runner = &self.runner;
        tokio::select! {
            outcome = self.follow() => outcome,
            never = self.keep_lease() => match never {},
            never = self.review_layers() => match never {},
            never = self.watch_server() => match never {},
            never = token::keep_fresh(&runner.machine.project.api, token_expires_at, &runner.screen) => {
                match never {}
            }
        }
    }

    /// Says which layers nobody uses any more, as the start does.
    async fn review_layers(&self) -> Infallible {
        loop {
            tokio::time::sleep(REVIEW).await;
            let runner = self.runner.clone();
            let review = runner.tasks.clone().spawn_blocking(move || {
                for words in runner.local.review_layers() {
                    runner.screen.line(&words);
                }
            });
            // Nothing depends on it.
            review.await.ok();
        }
    }

    /// Follows the events, across restarts of the server and failures of the network.
    async fn follow(&self) -> Result<()> {
        let (runner, mut backoff, mut lost) = (&self.runner, Backoff::new(), false);
        let api = &runner.machine.project.api;
        // Since when the server refuses the token.
        let mut refused: Option<Instant> = None;
        loop {
            let server = api.server().to_owned();
            let ended = tokio::select! {
                // First, because an error that leaves the address must not be lost.
                biased;
                ended = self.follow_once(&mut backoff, &mut lost, &mut refused) => ended,
                () = api.left() => Err(Error::Timeout(server)),
                () = runner.stop.cancelled() => return Ok(()),
            };
            self.state.save_cursor();
            let was_refused = refused.is_some();
            let why = match ended {
                Ok(()) => "the connection was lost".to_owned(),
                Err(error @ Error::TokenRejected) => {
                    if refused.get_or_insert_with(Instant::now).elapsed() > REFUSED_TOKEN {
                        return Err(error);
                    }
                    "the server does not accept the token".to_owned()
                }
                Err(error) if error.is_temporary() => error.full_message(),
                // An earlier process with another token. Its lease runs out soon.
                Err(Error::Refused(problem)) if problem.code == ProblemCode::ClientTaken => {
                    problem.detail
                }
                Err(error) if error.status() == Some(404) => return Err(Error::ProjectDeleted),
                Err(error) => return Err(error),
            };
            let is_refused_now = refused.is_some() && !was_refused;
            if !std::mem::replace(&mut lost, true) || is_refused_now {
                runner.screen.line(&format!("{why}; reconnecting"));
            }
            if !backoff.wait(&runner.stop).await {
                return Ok(());
            }
        }
    }

    /// Follows one connection to its end.
    async fn follow_once(
        &self,
        backoff: &mut Backoff,
        lost: &mut bool,
        refused: &mut Option<Instant>,
    ) -> Result<()> {
        let runner = &self.runner;
        // The stream is opened first, so that it contains what happens while the current state is
        // read.
        let mut stream: Stream =
            runner.machine.project.events("events", self.state.cursor().as_deref()).await?;
        runner.machine.register(runner.local.display_path(), &self.isolation).await?;
        self.catch_up().await?;
        backoff.reset();
        let what = if *lost { "connected again" } else { "connected" };
        let api = &runner.machine.project.api;
        match api.has_several_addresses() {
            true => runner.screen.line(&format!("{what} to {}", api.server())),
            false => runner.screen.line(what),
        }
        (*lost, *refused) = (false, None);
        self.report_active_machine().await?;
        while let Some(message) = stream.next().await {
            self.handle_event(&message).await?;
            if !message.id.is_empty() {
                self.state.keep_cursor(&message.id);
            }
        }
        Ok(())
    }

    /// Asks for everything that this machine has to do, in case events were missed.
    async fn catch_up(&self) -> Result<()> {
        let runner = &self.runner;
        let dispatched = runner.machine.project.calls(CallStatus::Dispatched).await?;
        runner.forget_settled_calls(&dispatched)?;
        for call in dispatched {
            if call.client_id == Some(runner.machine.client)
                && (!call.claimed || runner.was_never_started(&call))
            {
                let tool_params = self.full_params(call.tool_id, call.tool_params).await?;
                runner.start(DispatchedCall::from(GatedCall { tool_params, ..call }));
            }
        }
        for call in runner.machine.project.calls(CallStatus::Previewing).await? {
            if call.client_id == Some(runner.machine.client) {
                let params = self.full_params(call.tool_id, call.tool_params).await?;
                let GatedCall { tool_id, session_id, task_id, requested_by, .. } = call;
                let origin =
                    origin(runner.machine.client, tool_id, session_id, task_id, requested_by);
                runner.preview(origin, call.tool_name, params);
            }
        }
        if self.cards.is_some() {
            for call in runner.machine.project.calls(CallStatus::PendingApproval).await? {
                self.notify_cards(CardEvent::CallPending(call.tool_id));
            }
        }
        Ok(())
    }

    /// Says which machine runs the calls. Several may be connected; the first one runs them.
    async fn report_active_machine(&self) -> Result<()> {
        let runner = &self.runner;
        let words = match runner.machine.project.active_client().await? {
            Some(holder) if holder.client_id == runner.machine.client => {
                "this machine runs the calls".to_owned()
            }
            Some(holder) => {
                format!("another machine runs the calls ({}); this one is on standby", holder.root)
            }
            None => return Ok(()),
        };
        runner.screen.line(&words);
        Ok(())
    }

    fn notify_cards(&self, event: CardEvent) {
        if let Some(cards) = &self.cards {
            cards.send(event);
        }
    }

    async fn handle_event(&self, message: &Message) -> Result<()> {
        let runner = &self.runner;
        let event = match StreamMessage::parse(&message.name, &message.data) {
            Ok(StreamMessage::Event(event)) => *event,
            Ok(StreamMessage::Delta(_)) => return Ok(()),
            Ok(StreamMessage::Reset) => return self.catch_up().await,
            // A newer server sends events that this version does not know: ask for the state.
            Err(error) => {
                tracing::debug!(%error, name = message.name, "cannot parse an event");
                return self.catch_up().await;
            }
        };
        match event {
            Event::ClientDisconnected { .. } => return self.report_active_machine().await,
            Event::ProjectDeleted {} => return Err(Error::ProjectDeleted),
            Event::ConversationDeleted { session_id } => runner.end_layer(session_id),
            Event::ToolPreviewRequest {
                tool_id,
                client_id,
                tool_name,
                tool_params,
                session_id,
                task_id,
                requested_by,
            } if client_id == runner.machine.client => {
                let origin = origin(client_id, tool_id, session_id, task_id, requested_by);
                runner.preview(origin, tool_name, self.full_params(tool_id, tool_params).await?);
            }
            Event::ToolExecutionSignal {
                tool_id,
                client_id,
                attempt,
                tool_name,
                tool_params,
                session_id,
                task_id,
                requested_by,
                digest,
                risk_level,
                class,
                base_checksum,
                preview_digest,
                network,
                timeout: _,
            } if client_id == runner.machine.client => runner.start(DispatchedCall {
                tool_id,
                attempt,
                tool_name,
                tool_params: self.full_params(tool_id, tool_params).await?,
                session_id,
                task_id,
                requested_by,
                digest,
                risk_level,
                class,
                base_checksum,
                preview_digest,
                network,
            }),
            Event::ToolApprovalRequest { tool_id, tool_name, tool_params, risk_level, .. } => {
                let what = crate::screen::summary(&tool_name, &tool_params);
                runner.screen.line(&format!("{what}: waits for approval ({risk_level})"));
                self.notify_cards(CardEvent::CallPending(tool_id));
            }
            Event::ToolApprovalWarning { tool_id, expires_at, .. } => match self.cards {
                Some(_) => self.notify_cards(CardEvent::CallExpiresSoon(tool_id, expires_at)),
                None => runner.screen.line(&expires_soon(expires_at)),
            },
            Event::ToolApprovalExtended { tool_id, expires_at, .. } => {
                self.notify_cards(CardEvent::CallExtended(tool_id, expires_at));
            }
            Event::ToolCallUpdated { tool_id, status, error, .. } => {
                self.updated(
                    tool_id,
                    status,
                    error.is_some_and(|error| error.code == FailureCode::Cancelled),
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// The parameters of a call. Events only link to large ones.
    async fn full_params(&self, id: CallId, params: Value) -> Result<Value> {
        match params.get(LINK) {
            Some(_) => Ok(self.runner.machine.project.call(id).await?.tool_params),
            None => Ok(params),
        }
    }

    fn updated(&self, id: CallId, status: CallStatus, cancelled: bool) {
        if cancelled || status == CallStatus::Cancelled {
            self.runner.cancel(id);
        }
        self.notify_cards(CardEvent::CallUpdated(id, status));
    }

    /// Tells the server regularly that this machine is still connected. Never returns.
    async fn keep_lease(&self) -> Infallible {
        let runner = &self.runner;
        let mut rounds = tokio::time::interval_at(tokio::time::Instant::now() + RENEW, RENEW);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let renewed = match runner.machine.renew().await {
                // The server has forgotten this machine, because it was silent for too long.
                Err(error) if error.status() == Some(404) => {
                    runner.machine.register(runner.local.display_path(), &self.isolation).await
                }
                other => other,
            };
            // The stream notices and reports a lost connection as well.
            if let Err(error) = renewed {
                tracing::debug!(%error, "cannot renew the lease");
            }
        }
    }

    /// Leaves an address that has stopped answering, if there are others. Never returns.
    async fn watch_server(&self) -> Infallible {
        loop {
            tokio::time::sleep(WATCH).await;
            self.runner.machine.project.api.leave_if_silent(WATCH_TIMEOUT).await;
        }
    }

    /// Cancels running calls, sends their outcomes, and leaves further calls to the next machine.
    async fn disconnect(&self) {
        let runner = &self.runner;
        self.state.save_cursor();
        runner.stop.cancel();
        runner.cancel_all();
        runner.tasks.close();
        let ended = tokio::time::timeout(SHUTDOWN_GRACE, runner.tasks.wait()).await;
        runner.give_up.cancel();
        if ended.is_err() {
            runner.screen.line("some outcomes were not sent; the next start sends them");
        }
        match runner.machine.leave().await {
            Ok(()) => runner.screen.line("disconnected"),
            Err(error) => runner.screen.line(&format!(
                "disconnected, but the server was not told: {}",
                error.full_message()
            )),
        }
    }
}
