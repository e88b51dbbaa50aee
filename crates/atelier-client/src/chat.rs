//! `atelier chat`: sends one message to a project's agents and follows the work until the answer.

mod conversation_api;
mod transcript;
pub(crate) mod tree;

use crate::{
    api_client::ApiClient,
    backoff::Backoff,
    cards::{CardEvent, OpenCards, TextTyped},
    error::Result,
    keyboard,
    project::ProjectApi,
    screen::{OutputStream, Screen},
    sse::{Message, Stream},
    token,
};
use atelier_api::{chat::Accepted, events::StreamMessage};
use atelier_core::{Event, gate::CallStatus};
pub(crate) use conversation_api::{ConversationApi, RunOut, WorkStatus};
use std::{io::IsTerminal, sync::Arc};
use tokio_util::sync::CancellationToken;
use transcript::Transcript;

#[derive(Debug)]
pub struct ChatOptions {
    /// The address [default: that of the last login].
    pub server: Option<String>,
    /// The project, by id or name. Without one, the only project.
    pub project: Option<String>,
    /// The agent, by id or name. Without one, the project plans which agents do what.
    pub agent: Option<String>,
    /// The conversation to continue. Without one, a new conversation starts.
    pub session: Option<String>,
    /// The token. Without one, the token that `atelier login` stored.
    pub token: Option<String>,
    pub message: String,
    /// Print events as lines of JSON, for programs.
    pub json: bool,
}

/// Sends the message and waits for the answer. Returns whether the work was completed. `stop`
/// cancels the work.
pub async fn chat(options: ChatOptions, stop: CancellationToken) -> Result<bool> {
    let api = ApiClient::signed_in("chat", options.server.as_deref(), options.token)?;
    let me = api.me().await?;
    let project = api.project_or_only(options.project.as_deref()).await?;
    let project = Arc::new(ProjectApi { api, project });
    let conversation = ConversationApi::open(project.clone(), options.session.as_deref()).await?;
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let screen = Arc::new(Screen::on(OutputStream::Error, colours));
    let how = Following {
        asks_here: !options.json
            && keyboard::is_attended(&std::io::stderr())
            && me.role.is_person(),
        text: TextTyped::Lost,
        json: options.json,
        announces: !options.json,
        renders: false,
    };
    let talking = converse(
        conversation,
        screen.clone(),
        Opening::Message { text: &options.message, agent: options.agent.as_deref() },
        how,
        stop,
    );
    let (status, _) = tokio::select! {
        outcome = talking => outcome?,
        never = token::keep_fresh(&project.api, me.expires_at, &screen) => match never {},
    };
    Ok(status.completed)
}

/// How work is followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Following {
    /// Whether approvals are asked for in this terminal.
    pub(crate) asks_here: bool,
    /// What happens to text that is typed meanwhile.
    pub(crate) text: TextTyped,
    /// Print events as lines of JSON, for programs.
    pub(crate) json: bool,
    /// Whether to say how the conversation can be continued.
    pub(crate) announces: bool,
    /// Whether to render the answer's Markdown.
    pub(crate) renders: bool,
}

/// What work begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Opening<'a> {
    Message {
        text: &'a str,
        agent: Option<&'a str>,
    },
    /// A question that ran out is asked again, and its task goes on.
    AskAgain(RunOut),
}

/// Sends a message or asks again, and follows the work to its end. `stop` cancels the work.
pub(crate) async fn converse(
    conversation: ConversationApi,
    screen: Arc<Screen>,
    opening: Opening<'_>,
    how: Following,
    stop: CancellationToken,
) -> Result<(WorkStatus, Accepted)> {
    // The stream is opened before the work begins, so that it contains everything that follows.
    let stream = conversation.events(None).await?;
    let work = match opening {
        Opening::Message { text, agent } => conversation.send_message(text, agent).await?,
        Opening::AskAgain(question) => conversation.ask_again(question).await?,
    };
    if how.announces {
        screen.line(&format!("conversation {0} (continue it with --session {0})", conversation.id));
    }
    let project = conversation.project.clone();
    let open_cards = || OpenCards::open(project.clone(), screen.clone(), how.text, stop.clone());
    let mut follower = Follower {
        cards: how.asks_here.then(open_cards).transpose()?,
        transcript: Transcript::new(project.clone(), screen.clone(), work, how.renders),
        conversation,
        screen: screen.clone(),
        work,
        json: how.json,
        cursor: None,
        stop: stop.clone(),
        cancelled: false,
    };
    let outcome = follower.follow(stream).await;
    if let Some(cards) = follower.cards.take() {
        cards.close().await;
    }
    let status = outcome?;
    if !how.json {
        let answer = follower.conversation.answer(work).await?;
        follower.transcript.finish(answer.as_ref(), &status);
    }
    Ok((status, work))
}

/// Follows the work that a message has started.
struct Follower {
    conversation: ConversationApi,
    transcript: Transcript,
    screen: Arc<Screen>,
    work: Accepted,
    json: bool,
    /// Present if approvals are asked for in this terminal.
    cards: Option<OpenCards>,
    /// The id of the last event that was handled.
    cursor: Option<String>,
    stop: CancellationToken,
    /// Whether the server was asked to cancel the work.
    cancelled: bool,
}

impl Follower {
    /// Follows the work to its end, across restarts of the server and failures of the network.
    async fn follow(&mut self, mut stream: Stream) -> Result<WorkStatus> {
        let (mut backoff, patient) = (Backoff::new(), CancellationToken::new());
        loop {
            let why = match self.follow_once(&mut stream).await {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => "the connection was lost".to_owned(),
                Err(error) if error.is_temporary() => error.full_message(),
                Err(error) => return Err(error),
            };
            self.screen.line(&format!("{why}; reconnecting"));
            stream = loop {
                let interrupted = if self.cancelled { &patient } else { &self.stop };
                if !backoff.wait(interrupted).await {
                    // If the server cannot be reached, the error says that the work was not
                    // cancelled.
                    self.cancel().await?;
                }
                match self.conversation.events(self.cursor.as_deref()).await {
                    Ok(stream) => break stream,
                    Err(error) if error.is_temporary() => {}
                    Err(error) => return Err(error),
                }
            };
            backoff.reset();
        }
    }

    /// Follows one connection. Returns how the work ended, or `None` if the connection ended first.
    async fn follow_once(&mut self, stream: &mut Stream) -> Result<Option<WorkStatus>> {
        // Without a cursor, events from before the stream was opened are missing.
        if self.cursor.is_none()
            && let Some(status) = self.catch_up().await?
        {
            return Ok(Some(status));
        }
        loop {
            let message = tokio::select! {
                biased;
                () = self.stop.cancelled(), if !self.cancelled => {
                    self.cancel().await?;
                    continue;
                }
                message = stream.next() => message,
            };
            let Some(message) = message else { return Ok(None) };
            if self.json {
                self.screen.answer(&format!("{}\n", message.data));
            }
            let ends = self.handle_event(&message).await;
            if ends && let Some(status) = self.catch_up().await? {
                return Ok(Some(status));
            }
            if !message.id.is_empty() {
                self.cursor = Some(message.id);
            }
        }
    }

    /// Handles an event. Returns whether the work may have ended with it.
    async fn handle_event(&mut self, message: &Message) -> bool {
        let event = match StreamMessage::parse(&message.name, &message.data) {
            Ok(StreamMessage::Event(event)) => *event,
            Ok(StreamMessage::Reset) => return true,
            Ok(StreamMessage::Delta(delta)) => {
                if !self.json {
                    self.transcript.add_delta(delta);
                }
                return false;
            }
            // A newer server sends events that this version does not know: ask for the status.
            Err(error) => {
                tracing::debug!(%error, name = message.name, "cannot parse an event");
                return true;
            }
        };
        match &event {
            Event::ToolApprovalRequest { tool_id, .. } => {
                self.notify_cards(CardEvent::CallPending(*tool_id));
            }
            Event::ToolCallUpdated { tool_id, status, .. } => {
                self.notify_cards(CardEvent::CallUpdated(*tool_id, *status));
            }
            Event::ToolApprovalExtended { tool_id, expires_at, .. } => {
                self.notify_cards(CardEvent::CallExtended(*tool_id, *expires_at));
            }
            Event::ToolApprovalWarning { tool_id, expires_at, .. } => {
                self.notify_cards(CardEvent::CallExpiresSoon(*tool_id, *expires_at));
            }
            Event::PlanApprovalRequest { plan, .. } if Some(plan.id) == self.work.plan_id => {
                self.notify_cards(CardEvent::PlanPending(plan.id));
            }
            Event::PlanUpdated { plan } => {
                self.notify_cards(CardEvent::PlanUpdated(plan.id, plan.status));
            }
            _ => {}
        }
        if !self.json {
            self.transcript.show_event(&event, self.cards.is_some()).await;
        }
        match (event, self.work.plan_id) {
            (Event::ConversationDeleted { .. }, _) => true,
            (Event::PlanUpdated { plan }, Some(ours)) => {
                plan.id == ours && plan.status.is_settled()
            }
            (
                Event::TaskCompleted { task }
                | Event::TaskFailed { task }
                | Event::TaskCancelled { task },
                None,
            ) => task.id == self.work.task_id,
            _ => false,
        }
    }

    fn notify_cards(&self, event: CardEvent) {
        if let Some(cards) = &self.cards {
            cards.send(event);
        }
    }

    /// Returns how the work ended, if it has. Otherwise shows cards for everything that waits for a
    /// decision.
    async fn catch_up(&self) -> Result<Option<WorkStatus>> {
        let status = self.conversation.status(self.work).await?;
        if status.settled {
            return Ok(Some(status));
        }
        if self.cards.is_some() {
            // A card is shown only if the plan waits for approval.
            self.work
                .plan_id
                .into_iter()
                .for_each(|plan| self.notify_cards(CardEvent::PlanPending(plan)));
            for call in self.conversation.project.calls(CallStatus::PendingApproval).await? {
                if call.session_id == Some(self.conversation.id) {
                    self.notify_cards(CardEvent::CallPending(call.tool_id));
                }
            }
        }
        Ok(None)
    }

    async fn cancel(&mut self) -> Result<()> {
        self.cancelled = true;
        self.screen.line("cancelling");
        self.conversation.cancel(self.work).await
    }
}
