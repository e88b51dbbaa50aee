//! `atelier connect`: one folder, one project, for as long as it is wanted.

use crate::{
    api::Api,
    backoff::Backoff,
    calls::{Client, UNDER_WAY},
    cards::{Cards, News, expires_soon},
    credentials::server_address,
    desk::Desk,
    error::{Error, Result},
    greeting,
    journal::Journal,
    keyboard::{self, Keyboard},
    local::Local,
    project::ProjectApi,
    rules::ClientRules,
    screen::{Output, Screen},
    signal::Signal,
    sse::{Message, Stream},
    state::State,
    token,
};
use atelier_core::{
    CallId, Event, Role,
    gate::{CallStatus, GatedCall, LINK},
    policy::verdict::Verdict,
};
use serde_json::Value;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[derive(Debug)]
pub struct Options {
    pub dir: PathBuf,
    pub server: String,
    /// By id or name.
    pub project: String,
    /// Otherwise what `atelier login` stored.
    pub token: Option<String>,
    /// Approvals are decided elsewhere, even in a terminal.
    pub no_approve: bool,
    /// Nothing above LOW runs on this machine, whoever approves it.
    pub low_only: bool,
}

/// A third of the time after which another client takes over.
const RENEW: Duration = Duration::from_secs(10);
/// How long calls that are running may take to end when we do.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves until `stop`, or until the server does not want us any more.
pub async fn connect(options: Options, stop: CancellationToken) -> Result<()> {
    let server = server_address(&options.server)?.to_owned();
    let (token, stored) = token::find(options.token, &server)?;
    let rules = ClientRules::load()?;
    // A folder that cannot be used is said before anybody is asked for anything.
    Local::open(&options.dir)?;
    let api = Api::new("connect", &server, token)?;
    let me = api.me().await?;
    if me.role == Role::Agent {
        return Err(Error::AgentToken);
    }
    let policy = api.policy().await?;
    let local = Local::guarded(&options.dir, &rules, &policy.extension)?;
    let project = api.project(&options.project).await?;
    let state = State::open(local.root(), &server, &project.id.to_string())?;
    let (journal, open) = Journal::open(state.journal())?;
    let project = Arc::new(ProjectApi { api, project });
    let desk = Desk { project: project.clone(), client: state.client, known: AtomicBool::new(false) };
    let asks = keyboard::attended(&std::io::stdout())
        && me.role.is_person()
        && !options.no_approve
        && !options.low_only;
    let screen = Arc::new(Screen::on(
        Output::Standard,
        keyboard::attended(&std::io::stdout()) && std::env::var_os("NO_COLOR").is_none(),
    ));
    let approvals = approvals_in_words(asks, options.low_only);
    screen.raw(&greeting::greeting(&local, &desk, approvals, &greeting::added(&policy, &rules, &local)));
    let client = Arc::new(Client {
        desk,
        local,
        journal,
        screen,
        up_to: if options.low_only { Verdict::Low } else { Verdict::High },
        slots: Semaphore::new(rules.parallel.clamp(1, 64)),
        under_way: Semaphore::new(UNDER_WAY),
        hands: Semaphore::new(rules.parallel.clamp(1, 64)),
        looks: Semaphore::new(2),
        active: Default::default(),
        unbegun: Default::default(),
        tasks: TaskTracker::new(),
        stop,
        abandon: CancellationToken::new(),
    });
    client.settle(open)?;
    let (news, told) = mpsc::unbounded_channel();
    let mut connection = Connection {
        isolation: greeting::isolation(&client.local),
        client: client.clone(),
        state,
        news: None,
    };
    let keyboard = match asks {
        true => {
            let (keyboard, keys) = Keyboard::open().map_err(Error::io("read", "the terminal".as_ref()))?;
            connection.news = Some(news);
            let cards = Cards::new(project, client.screen.clone(), client.stop.clone());
            Some((keyboard, tokio::spawn(cards.serve(told, keys))))
        }
        false => None,
    };
    let outcome = tokio::select! {
        outcome = connection.follow() => outcome,
        () = connection.keep_lease() => Ok(()),
        () = async {
            token::keep_fresh(&client.desk.project.api, me.expires_at, stored, &client.screen).await;
            std::future::pending::<()>().await;
        } => Ok(()),
    };
    if let Some((keyboard, cards)) = keyboard {
        cards.abort();
        // Before the farewell: a second Ctrl-C ends it at once, and the terminal has to be itself again.
        drop(keyboard);
        client.screen.release();
    }
    connection.say_goodbye().await;
    outcome
}

fn approvals_in_words(asks: bool, low_only: bool) -> &'static str {
    match (asks, low_only) {
        (_, true) => "none: only what is LOW runs here",
        (true, _) => "here, in this terminal (or in the console)",
        (false, _) => "elsewhere (in the console, or by the API)",
    }
}

struct Connection {
    client: Arc<Client>,
    state: State,
    isolation: Value,
    /// To the person at the terminal, if one sits there.
    news: Option<mpsc::UnboundedSender<News>>,
}

impl Connection {
    /// Stays in the stream, across restarts of the server and losses of the network.
    async fn follow(&self) -> Result<()> {
        let (client, mut backoff, mut lost) = (&self.client, Backoff::new(), false);
        loop {
            let listening = tokio::select! {
                listening = self.listen(&mut backoff, &mut lost) => listening,
                () = client.stop.cancelled() => return Ok(()),
            };
            self.state.save_cursor();
            let why = match listening {
                Ok(()) => "the connection has ended".to_owned(),
                Err(error) if error.passes() => error.told(),
                Err(error) if error.status() == Some(404) => return Err(Error::ProjectGone),
                Err(error) => return Err(error),
            };
            if !std::mem::replace(&mut lost, true) {
                client.screen.line(&format!("{why}; connecting again"));
            }
            if !backoff.wait(&client.stop).await {
                return Ok(());
            }
        }
    }

    /// One connection, to its end.
    async fn listen(&self, backoff: &mut Backoff, lost: &mut bool) -> Result<()> {
        let client = &self.client;
        // The stream first: what happens while we ask how things stand is in it.
        let mut stream: Stream = client.desk.project.events("events", self.state.cursor().as_deref()).await?;
        client.desk.register(client.local.shown(), &self.isolation).await?;
        self.catch_up().await?;
        backoff.reset();
        client.screen.line(if *lost { "connected again" } else { "connected" });
        *lost = false;
        self.tell_holder().await?;
        while let Some(message) = stream.next().await {
            self.hear(&message).await?;
            if !message.id.is_empty() {
                self.state.keep_cursor(&message.id);
            }
        }
        Ok(())
    }

    /// Asks for everything that is meant for us, whatever we have heard of it.
    async fn catch_up(&self) -> Result<()> {
        let client = &self.client;
        let dispatched = client.desk.project.calls(CallStatus::Dispatched).await?;
        client.forget_settled(&dispatched)?;
        for call in dispatched {
            if call.client_id == Some(client.desk.client) && (!call.claimed || client.never_began(&call)) {
                let tool_params = self.whole(call.tool_id, call.tool_params).await?;
                client.take(Signal::from(GatedCall { tool_params, ..call }));
            }
        }
        for call in client.desk.project.calls(CallStatus::Previewing).await? {
            if call.client_id == Some(client.desk.client) {
                let params = self.whole(call.tool_id, call.tool_params).await?;
                client.preview(call.tool_id, call.tool_name, params);
            }
        }
        if self.news.is_some() {
            for call in client.desk.project.calls(CallStatus::PendingApproval).await? {
                self.tell(News::Asked(call.tool_id));
            }
        }
        Ok(())
    }

    /// Several machines may be connected; the first runs the calls.
    async fn tell_holder(&self) -> Result<()> {
        let client = &self.client;
        let words = match client.desk.project.holder().await? {
            Some(holder) if holder.client_id == client.desk.client => {
                "this machine runs the calls".to_owned()
            }
            Some(holder) => format!("another machine runs the calls ({}); this one stands by", holder.root),
            None => return Ok(()),
        };
        client.screen.line(&words);
        Ok(())
    }

    fn tell(&self, news: News) {
        if let Some(channel) = &self.news
            && channel.send(news).is_err()
        {
            tracing::debug!("nobody sits at the terminal any more");
        }
    }

    async fn hear(&self, message: &Message) -> Result<()> {
        let client = &self.client;
        let ours = match message.name.as_str() {
            "STREAM_RESET" => return self.catch_up().await,
            "CLIENT_DISCONNECTED" => return self.tell_holder().await,
            "PROJECT_DELETED" => return Err(Error::ProjectGone),
            "TOOL_PREVIEW_REQUEST"
            | "TOOL_EXECUTION_SIGNAL"
            | "TOOL_APPROVAL_REQUEST"
            | "TOOL_APPROVAL_WARNING"
            | "TOOL_CALL_UPDATED" => serde_json::from_str(&message.data),
            _ => return Ok(()),
        };
        match ours {
            Ok(Event::ToolPreviewRequest { tool_id, client_id, tool_name, tool_params })
                if client_id == client.desk.client =>
            {
                client.preview(tool_id, tool_name, self.whole(tool_id, tool_params).await?);
            }
            Ok(Event::ToolExecutionSignal {
                tool_id,
                client_id,
                attempt,
                tool_name,
                tool_params,
                digest,
                risk_level,
                base_checksum,
                network,
                timeout: _,
            }) if client_id == client.desk.client => client.take(Signal {
                tool_id,
                attempt,
                tool_name,
                tool_params: self.whole(tool_id, tool_params).await?,
                digest,
                risk_level,
                base_checksum,
                network,
            }),
            Ok(Event::ToolApprovalRequest { tool_id, tool_name, tool_params, risk_level, .. }) => {
                let what = crate::screen::summary(&tool_name, &tool_params);
                client.screen.line(&format!("{what}: waits for a decision ({risk_level})"));
                self.tell(News::Asked(tool_id));
            }
            Ok(Event::ToolApprovalWarning { tool_id, expires_at, .. }) => match self.news {
                Some(_) => self.tell(News::Warned(tool_id, expires_at)),
                None => client.screen.line(&expires_soon(expires_at)),
            },
            Ok(Event::ToolCallUpdated { tool_id, status, error, .. }) => {
                self.updated(tool_id, status, error.is_some_and(|error| error.code == "cancelled"));
            }
            Ok(_) => {}
            // A newer server says more than we understand; what it means for us can be asked for.
            Err(error) => {
                tracing::debug!(%error, name = message.name, "an event that is not understood");
                return self.catch_up().await;
            }
        }
        Ok(())
    }

    /// The parameters of a call, also where the event only links to them.
    async fn whole(&self, id: CallId, told: Value) -> Result<Value> {
        match told.get(LINK) {
            Some(_) => Ok(self.client.desk.project.call(id).await?.tool_params),
            None => Ok(told),
        }
    }

    fn updated(&self, id: CallId, status: CallStatus, cancelled: bool) {
        if cancelled || status == CallStatus::Cancelled {
            self.client.cancel(id);
        }
        self.tell(News::Settled(id, status));
    }

    /// Says every now and then that we are still here.
    async fn keep_lease(&self) {
        let client = &self.client;
        let mut rounds = tokio::time::interval_at(tokio::time::Instant::now() + RENEW, RENEW);
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let renewed = match client.desk.renew().await {
                // Silent for too long, and forgotten.
                Err(error) if error.status() == Some(404) => {
                    client.desk.register(client.local.shown(), &self.isolation).await
                }
                other => other,
            };
            // The stream notices a lost connection as well, and says so.
            if let Err(error) = renewed {
                tracing::debug!(%error, "the lease is not renewed");
            }
        }
    }

    /// Ends what runs, says what came of it, and leaves the calls to the next client.
    async fn say_goodbye(&self) {
        let client = &self.client;
        self.state.save_cursor();
        client.stop.cancel();
        client.cancel_all();
        client.tasks.close();
        let ended = tokio::time::timeout(FAREWELL, client.tasks.wait()).await;
        client.abandon.cancel();
        if ended.is_err() {
            client.screen.line("some results were not delivered; the next start does that");
        }
        match client.desk.leave().await {
            Ok(()) => client.screen.line("disconnected"),
            Err(error) => client.screen.line(&format!("left without saying so: {}", error.told())),
        }
    }
}
