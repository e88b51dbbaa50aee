//! `atelier chat`: says one thing to a project's agents and follows what comes of it, to the answer.

mod room;
pub(crate) mod tree;
mod words;

use crate::{
    api::Api,
    backoff::Backoff,
    cards::{Cards, News},
    credentials::server_address,
    error::{Error, Result},
    keyboard::{self, Keyboard},
    project::ProjectApi,
    screen::{Output, Screen},
    sse::{Message, Stream},
    token,
};
use atelier_core::{Event, gate::CallStatus};
use room::{Room, Standing, Work};
use std::{io::IsTerminal, sync::Arc};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use words::Words;

#[derive(Debug)]
pub struct ChatOptions {
    pub server: String,
    /// By id or name.
    pub project: String,
    /// By id or name; without one, the project plans who does what.
    pub agent: Option<String>,
    /// The conversation to go on with; a new one otherwise.
    pub session: Option<String>,
    /// Otherwise what `atelier login` stored.
    pub token: Option<String>,
    pub message: String,
    /// Events as lines, for programs.
    pub json: bool,
}

/// Says it and waits for the answer; whether the work was completed. `stop` cancels the work.
pub async fn chat(options: ChatOptions, stop: CancellationToken) -> Result<bool> {
    let server = server_address(&options.server)?.to_owned();
    let (token, stored) = token::find(options.token, &server)?;
    let api = Api::new("chat", &server, token)?;
    let me = api.me().await?;
    let project = api.project(&options.project).await?;
    let project = Arc::new(ProjectApi { api, project });
    let room = Room::open(project.clone(), options.session.as_deref()).await?;
    let terminal = std::io::stderr().is_terminal();
    let screen = Arc::new(Screen::on(Output::Error, terminal && std::env::var_os("NO_COLOR").is_none()));
    // Before anything is said: what comes of it is in the stream.
    let stream = room.events(None).await?;
    let work = room.say(&options.message, options.agent.as_deref()).await?;
    if !options.json {
        screen.line(&format!("conversation {} (go on with --session)", room.session));
    }

    let asks = !options.json && keyboard::attended(&std::io::stderr()) && me.role.is_person();
    let (news, told) = mpsc::unbounded_channel();
    let keyboard = match asks {
        true => {
            let (keyboard, keys) = Keyboard::open().map_err(Error::io("read", "the terminal".as_ref()))?;
            let cards = Cards::new(project.clone(), screen.clone(), stop.clone());
            Some((keyboard, tokio::spawn(cards.serve(told, keys))))
        }
        false => None,
    };
    let mut talk = Talk {
        words: Words::new(project.clone(), screen.clone(), work),
        room,
        screen: screen.clone(),
        work,
        json: options.json,
        news: asks.then_some(news),
        cursor: None,
        stop,
        cancelled: false,
    };
    let outcome = tokio::select! {
        outcome = talk.follow(stream) => outcome,
        outcome = async {
            token::keep_fresh(&project.api, me.expires_at, stored, &screen).await;
            std::future::pending().await
        } => outcome,
    };
    if let Some((keyboard, cards)) = keyboard {
        cards.abort();
        drop(keyboard);
        screen.release();
    }
    let standing = outcome?;
    if !options.json {
        talk.words.ended(talk.room.answer(work).await?.as_ref(), &standing);
    }
    Ok(standing.completed)
}

struct Talk {
    room: Room,
    words: Words,
    screen: Arc<Screen>,
    work: Work,
    json: bool,
    /// To the person at the terminal, if one sits there.
    news: Option<mpsc::UnboundedSender<News>>,
    /// The last event that was heard.
    cursor: Option<String>,
    stop: CancellationToken,
    /// The server was told to stop.
    cancelled: bool,
}

impl Talk {
    /// To the end of the work, across restarts of the server and losses of the network.
    async fn follow(&mut self, mut stream: Stream) -> Result<Standing> {
        let (mut backoff, patient) = (Backoff::new(), CancellationToken::new());
        loop {
            let why = match self.listen(&mut stream).await {
                Ok(Some(standing)) => return Ok(standing),
                Ok(None) => "the connection has ended".to_owned(),
                Err(error) if error.passes() => error.told(),
                Err(error) => return Err(error),
            };
            self.screen.line(&format!("{why}; connecting again"));
            stream = loop {
                let interrupted = if self.cancelled { &patient } else { &self.stop };
                if !backoff.wait(interrupted).await {
                    // Who leaves while nobody answers is told that it goes on.
                    self.cancel().await?;
                }
                match self.room.events(self.cursor.as_deref()).await {
                    Ok(stream) => break stream,
                    Err(error) if error.passes() => {}
                    Err(error) => return Err(error),
                }
            };
            backoff.reset();
        }
    }

    /// One connection: how the work ended, or nothing if the connection did first.
    async fn listen(&mut self, stream: &mut Stream) -> Result<Option<Standing>> {
        // Without a place in the stream, what happened before it was opened has to be asked for.
        if self.cursor.is_none()
            && let Some(standing) = self.catch_up().await?
        {
            return Ok(Some(standing));
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
                self.screen.words(&format!("{}\n", message.data));
            }
            let ends = self.hear(&message).await;
            if ends && let Some(standing) = self.catch_up().await? {
                return Ok(Some(standing));
            }
            if !message.id.is_empty() {
                self.cursor = Some(message.id);
            }
        }
    }

    /// Takes note of an event; whether the work may have ended with it.
    async fn hear(&mut self, message: &Message) -> bool {
        match message.name.as_str() {
            "STREAM_RESET" => return true,
            "MESSAGE_DELTA" if self.json => return false,
            "MESSAGE_DELTA" => {
                self.words.said(&message.data);
                return false;
            }
            _ => {}
        }
        let event = match serde_json::from_str(&message.data) {
            Ok(event) => event,
            // A newer server says more than we understand; how things stand can be asked for.
            Err(error) => {
                tracing::debug!(%error, name = message.name, "an event that is not understood");
                return true;
            }
        };
        match &event {
            Event::ToolApprovalRequest { tool_id, .. } => self.tell(News::Asked(*tool_id)),
            Event::ToolCallUpdated { tool_id, status, .. } => self.tell(News::Settled(*tool_id, *status)),
            Event::PlanApprovalRequest { plan, .. } if Some(plan.id) == self.work.plan_id => {
                self.tell(News::PlanAsked(plan.id));
            }
            Event::PlanUpdated { plan } => self.tell(News::PlanMoved(plan.id, plan.status)),
            _ => {}
        }
        if !self.json {
            self.words.happened(&event, self.news.is_some()).await;
        }
        match (event, self.work.plan_id) {
            (Event::ConversationDeleted { .. }, _) => true,
            (Event::PlanUpdated { plan }, Some(ours)) => plan.id == ours && plan.status.is_settled(),
            (
                Event::TaskCompleted { task } | Event::TaskFailed { task } | Event::TaskCancelled { task },
                None,
            ) => task.id == self.work.task_id,
            _ => false,
        }
    }

    fn tell(&self, news: News) {
        if let Some(channel) = &self.news
            && channel.send(news).is_err()
        {
            tracing::debug!("nobody sits at the terminal any more");
        }
    }

    /// How the work ended, if it did; otherwise asks for what waits for a decision.
    async fn catch_up(&self) -> Result<Option<Standing>> {
        let standing = self.room.standing(self.work).await?;
        if standing.settled {
            return Ok(Some(standing));
        }
        if self.news.is_some() {
            // Shown only if it waits.
            self.work.plan_id.into_iter().for_each(|plan| self.tell(News::PlanAsked(plan)));
            for call in self.room.project.calls(CallStatus::PendingApproval).await? {
                if call.session_id == Some(self.room.session) {
                    self.tell(News::Asked(call.tool_id));
                }
            }
        }
        Ok(None)
    }

    async fn cancel(&mut self) -> Result<()> {
        self.cancelled = true;
        self.screen.line("cancelling");
        self.room.cancel(self.work).await
    }
}
