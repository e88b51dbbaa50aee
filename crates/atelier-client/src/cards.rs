//! Approvals in the terminal: one card at a time, answered with one key.

mod time;
mod typing;

use crate::{
    chat::tree::tree,
    error::{Error, Result},
    keyboard::{ESCAPE, Keyboard, Typed, keep_for_later},
    project::ProjectApi,
    screen::{Screen, summary, wrapped},
};
use atelier_api::{clients::Client as MachineInfo, work::PlanDetails};
use atelier_core::{
    CallId, PlanId, PlanStatus, TaskKind,
    gate::{CallStatus, GatedCall, GrantScope, LOCAL_GIT},
    policy::verdict::Verdict,
    tools::ToolDef,
    visible::visible,
};
use chrono::{DateTime, Utc};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
pub(crate) use time::expires_soon;
use time::{KEEP_WAITING, expiry, has_end};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use typing::Typing;

/// What the event stream says about approvals.
pub(crate) enum CardEvent {
    CallPending(CallId),
    /// The approval expires soon.
    CallExpiresSoon(CallId, DateTime<Utc>),
    /// The question waits longer, or without an end.
    CallExtended(CallId, Option<DateTime<Utc>>),
    CallUpdated(CallId, CallStatus),
    PlanPending(PlanId),
    PlanUpdated(PlanId, PlanStatus),
}

/// What a person is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Call(CallId),
    Plan(PlanId),
}

const ASK_REASON: &str = "Reason for the agent (Enter rejects, Esc goes back): ";
const CONFIRM: &str = "Press a again to confirm. ";
const NOT_ONE_KEY: &str = "Only a single key answers: nothing was decided.";
/// The terminal marks pasted text, so that it is not taken for keys.
const MARK_PASTES: &str = "\x1b[?2004h";
const MARK_NO_PASTES: &str = "\x1b[?2004l";
const PLAN_KEYS: &str = "[y] run the plan  [n] reject  [q] quit ";
/// How long a card ignores keys after it is shown.
const KEY_DELAY: Duration = Duration::from_millis(250);
/// How many lines of a diff a card shows. The rest is shown on request.
const MAX_LINES: usize = 400;

/// What the next key means.
enum Mode {
    Choosing,
    /// `a` has to be pressed twice.
    Confirming,
    Reason(String),
}

enum Subject {
    Call(Box<GatedCall>),
    Plan(PlanId),
}

struct Card {
    subject: Subject,
    mode: Mode,
    /// Whether the whole diff was on the screen.
    fully_shown: bool,
}

impl Card {
    fn question(&self) -> Question {
        match &self.subject {
            Subject::Call(call) => Question::Call(call.tool_id),
            Subject::Plan(id) => Question::Plan(*id),
        }
    }

    fn keys(&self) -> String {
        self.subject.keys()
    }
}

impl Subject {
    /// The keys that answer the card. A permission is offered only if it can be given.
    fn keys(&self) -> String {
        let Subject::Call(call) = self else { return PLAN_KEYS.to_owned() };
        let git = if call.is_local_git() { "[g] allow local git  " } else { "" };
        let agent = if call.agent_id.is_some() { "[a] trust agent  " } else { "" };
        let wait = if has_end(call) { KEEP_WAITING } else { "" };
        format!("[y] approve  [s] allow class  {git}{agent}[n] reject  {wait}[q] quit ")
    }
}

/// What happens to text that is typed while no card is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextTyped {
    /// It is lost, and `q` quits.
    Lost,
    /// It is kept for the next message.
    Kept,
}

/// The terminal while it shows cards.
pub(crate) struct OpenCards {
    task: JoinHandle<()>,
    events: mpsc::UnboundedSender<CardEvent>,
    screen: Arc<Screen>,
    /// Restores the terminal.
    _keyboard: Keyboard,
}

impl OpenCards {
    /// Reads keys and shows cards until `close`. Escape cancels `stop`, and so does the key `q`,
    /// unless it is text.
    pub(crate) fn open(
        project: Arc<ProjectApi>,
        screen: Arc<Screen>,
        text: TextTyped,
        stop: CancellationToken,
    ) -> Result<Self> {
        let (keyboard, keys) =
            Keyboard::open().map_err(Error::io("read", "the terminal".as_ref()))?;
        screen.raw(MARK_PASTES);
        let (events, received) = mpsc::unbounded_channel();
        let cards = Cards::new(project, screen.clone(), keys, text, stop);
        let task = tokio::spawn(cards.serve(received));
        Ok(Self { _keyboard: keyboard, task, events, screen })
    }

    pub(crate) fn send(&self, event: CardEvent) {
        if self.events.send(event).is_err() {
            tracing::debug!("the terminal no longer shows cards");
        }
    }

    /// Restores the terminal and prints the lines that were held back while a card was shown.
    pub(crate) async fn close(mut self) {
        self.task.abort();
        // It keeps the text that was typed last.
        if (&mut self.task).await.is_ok() {
            tracing::debug!("the cards had ended before");
        }
    }
}

impl Drop for OpenCards {
    fn drop(&mut self) {
        self.task.abort();
        self.screen.raw(MARK_NO_PASTES);
        self.screen.release();
    }
}

/// The cards that wait for an answer, and the one that is shown.
struct Cards {
    project: Arc<ProjectApi>,
    screen: Arc<Screen>,
    keys: mpsc::UnboundedReceiver<Typed>,
    typing: Typing,
    text: TextTyped,
    /// Cancelled by Escape, and by the key `q` unless it is text.
    stop: CancellationToken,
    queue: VecDeque<Question>,
    card: Option<Card>,
    /// The call whose question ran out last, while it can be asked again.
    ran_out: Option<CallId>,
}

impl Drop for Cards {
    fn drop(&mut self) {
        self.keys.close();
        while let Ok(typed) = self.keys.try_recv() {
            self.type_without_card(&typed);
        }
    }
}

impl Cards {
    fn new(
        project: Arc<ProjectApi>,
        screen: Arc<Screen>,
        keys: mpsc::UnboundedReceiver<Typed>,
        text: TextTyped,
        stop: CancellationToken,
    ) -> Self {
        let (typing, queue) = (Typing::default(), VecDeque::new());
        Self { project, screen, keys, typing, text, stop, queue, card: None, ran_out: None }
    }

    /// Shows cards until the keyboard is closed.
    async fn serve(mut self, mut events: mpsc::UnboundedReceiver<CardEvent>) {
        loop {
            self.show_next().await;
            let pause = self.typing.pause();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.handle(event),
                    None => return,
                },
                typed = self.keys.recv() => match typed {
                    Some(typed) => self.receive(typed).await,
                    None => return,
                },
                () = pause => self.answer().await,
            }
        }
    }

    fn handle(&mut self, event: CardEvent) {
        match event {
            CardEvent::CallPending(id) => self.add(Question::Call(id)),
            CardEvent::CallExpiresSoon(id, expires_at) => self.warn(id, expires_at),
            CardEvent::CallExtended(id, expires_at) => self.extended(id, expires_at),
            CardEvent::CallUpdated(id, CallStatus::Expired) if self.knows(Question::Call(id)) => {
                let was_shown = self.is_shown(Question::Call(id));
                self.queue.retain(|waiting| *waiting != Question::Call(id));
                self.ran_out(id, was_shown);
            }
            CardEvent::CallUpdated(id, status) => {
                let pending =
                    matches!(status, CallStatus::PendingApproval | CallStatus::Previewing);
                self.update(Question::Call(id), pending, status.as_str());
            }
            CardEvent::PlanPending(id) => self.add(Question::Plan(id)),
            CardEvent::PlanUpdated(id, status) => {
                let pending = status == PlanStatus::PendingApproval;
                self.update(Question::Plan(id), pending, status.as_str());
            }
        }
    }

    /// Takes what was typed. Keys with no pause between them are text, and text is no answer.
    async fn receive(&mut self, typed: Typed) {
        let Some(card) = &self.card else {
            self.typing.note(typed.at);
            if self.text == TextTyped::Lost
                && typed.keys == ['r']
                && let Some(id) = self.ran_out.take()
            {
                return self.ask_again(id).await;
            }
            return self.type_without_card(&typed);
        };
        let is_escape = !typed.keys.is_empty() && typed.keys.iter().all(|&key| key == ESCAPE);
        match card.mode {
            Mode::Reason(_) => {
                for key in typed.keys {
                    if let Some(Card { mode: Mode::Reason(_), .. }) = &self.card {
                        self.press(key).await;
                    }
                }
            }
            Mode::Choosing if is_escape && self.text == TextTyped::Kept => {
                self.close("not decided");
                self.stop.cancel();
            }
            Mode::Choosing | Mode::Confirming => self.typing.add(&typed),
        }
    }

    /// Answers the card with the key after which nothing else was typed.
    async fn answer(&mut self) {
        match (self.typing.end(), &self.card) {
            (Some(key), Some(_)) => self.press(key).await,
            (None, Some(card)) => {
                self.screen.raw(&format!("\n{NOT_ONE_KEY} {}", card.keys()));
                self.card.iter_mut().for_each(|card| card.mode = Mode::Choosing);
            }
            (_, None) => {}
        }
    }

    fn type_without_card(&self, typed: &Typed) {
        let is_escape = typed.keys.last() == Some(&ESCAPE);
        if is_escape || (self.text == TextTyped::Lost && typed.keys == ['q']) {
            self.stop.cancel();
        }
        if self.text == TextTyped::Kept {
            let bytes = typed.bytes.as_slice();
            let end = bytes.iter().rposition(|&byte| !is_escape || byte != ESCAPE as u8);
            keep_for_later(&bytes[..end.map_or(0, |end| end + 1)]);
        }
    }

    fn is_shown(&self, question: Question) -> bool {
        self.card.as_ref().is_some_and(|card| card.question() == question)
    }

    fn knows(&self, question: Question) -> bool {
        self.is_shown(question) || self.queue.contains(&question)
    }

    fn add(&mut self, question: Question) {
        if !self.knows(question) {
            self.queue.push_back(question);
        }
    }

    fn warn(&self, id: CallId, expires_at: DateTime<Utc>) {
        let warning = expires_soon(expires_at);
        match &self.card {
            Some(card) if card.question() == Question::Call(id) => {
                let prompt = match &card.mode {
                    Mode::Choosing => card.keys(),
                    Mode::Confirming => CONFIRM.to_owned(),
                    Mode::Reason(reason) => format!("{ASK_REASON}{}", visible(reason)),
                };
                self.screen.raw(&format!("\n{warning} {prompt}"));
            }
            _ => self.screen.line(&warning),
        }
    }

    fn update(&mut self, question: Question, pending: bool, status: &str) {
        self.queue.retain(|waiting| *waiting != question);
        if pending || !self.is_shown(question) {
            return;
        }
        self.close(&format!("decided elsewhere: {status}"));
    }

    fn close(&mut self, outcome: &str) {
        self.card = None;
        self.typing.forget();
        self.screen.raw(&format!("\n→ {}\n\n", visible(outcome)));
        self.screen.release();
    }

    /// Shows the next card with its current state, unless it was decided in the meantime. Keys that
    /// were pressed before anybody could read the card do not answer it.
    async fn show_next(&mut self) {
        while self.card.is_none()
            && let Some(question) = self.queue.pop_front()
        {
            let drawn = match question {
                Question::Call(id) => self.draw_call(id).await,
                Question::Plan(id) => self.draw_plan(id).await,
            };
            match drawn {
                Ok(Some((text, subject))) => {
                    self.screen.hold();
                    self.screen.raw(&text);
                    let shown_at = Instant::now();
                    tokio::time::sleep(KEY_DELAY).await;
                    while let Ok(typed) = self.keys.try_recv() {
                        self.typing.note(typed.at);
                        if typed.at < shown_at {
                            self.type_without_card(&typed);
                        }
                    }
                    self.screen.raw(&subject.keys());
                    let fully_shown = match &subject {
                        Subject::Call(call) => diff_lines(call).count() <= MAX_LINES,
                        Subject::Plan(_) => true,
                    };
                    self.card = Some(Card { subject, mode: Mode::Choosing, fully_shown });
                }
                Ok(None) => {}
                // The next connection shows the approval again.
                Err(error) => {
                    self.screen.line(&format!("cannot show an approval: {}", error.full_message()));
                }
            }
        }
    }

    async fn draw_call(&self, id: CallId) -> Result<Option<(String, Subject)>> {
        let call = self.project.call(id).await?;
        if call.status != CallStatus::PendingApproval {
            return Ok(None);
        }
        let who = match call.agent_id {
            Some(agent) => {
                self.project.agent_name(agent).await.unwrap_or_else(|_| agent.to_string())
            }
            None => "a program with your token".to_owned(),
        };
        let machine = self.project.active_client().await?;
        Ok(Some((self.draw(&call, &who, machine.as_ref()), Subject::Call(Box::new(call)))))
    }

    async fn draw_plan(&self, id: PlanId) -> Result<Option<(String, Subject)>> {
        let PlanDetails { plan, mut tasks } = self.project.plan(id).await?;
        if plan.status != PlanStatus::PendingApproval {
            return Ok(None);
        }
        tasks.retain(|task| task.kind == TaskKind::Work && !task.status.is_settled());
        let title = "── the plan waits for your approval: no task runs before you approve it ──";
        let mut card = format!("\n{}\n", self.screen.paint("1;33", title));
        tree(&tasks)
            .iter()
            .for_each(|line| card.push_str(&self.wrapped_line("", &visible(line), "0")));
        Ok(Some((card, Subject::Plan(id))))
    }

    /// Draws a card. `machine` will run the call, and may be another machine than this one.
    fn draw(&self, call: &GatedCall, who: &str, machine: Option<&MachineInfo>) -> String {
        let screen = &self.screen;
        let mut card = String::new();
        let title = format!("── {} · {} wants {}", call.risk_level, visible(who), call.tool_name);
        let more = match self.queue.len() {
            0 => String::new(),
            1 => " · 1 more approval pending".to_owned(),
            waiting => format!(" · {waiting} more approvals pending"),
        };
        card.push_str(&format!(
            "\n{}",
            self.wrapped_line("", &format!("{title}{more} ──"), colour(call))
        ));
        let columns = screen.width().saturating_sub(11);
        let mut row = |name: &str, value: &str| {
            for (n, part) in wrapped(&visible(value), columns).iter().enumerate() {
                card.push_str(&format!("{:<10} {part}\n", if n == 0 { name } else { "" }));
            }
        };
        let params = &call.tool_params;
        match call.tool() {
            Some(tool) => {
                for (label, value) in tool.card_rows(params) {
                    row(label, &value);
                }
            }
            // A newer server may have tools that this version does not know.
            None => row("with", &params.to_string()),
        }
        if call.tool().is_some_and(ToolDef::runs_commands) {
            row("network", &network(call));
            row("sandbox", machine.map_or("unknown: no machine is connected", sandbox));
        }
        row("machine", machine.map_or("none is connected", |machine| &machine.root));
        if let Some(note) = &call.note {
            row("note", note);
        }
        row("reason", &format!("{} (rule {})", call.reason, call.rule));
        row("[s] allows", &call.class_in_words());
        if call.is_local_git() {
            row("[g] allows", LOCAL_GIT);
        }
        if let Some(approval) = &call.approval {
            row("expires", &expiry(approval));
        }
        card.push_str(&self.changes(call, MAX_LINES));
        let lines = diff_lines(call).count();
        if lines > 0 {
            card.push_str(&self.reminder(call));
        }
        if lines > MAX_LINES {
            card.push_str(&format!(
                "  … {} more lines: press [v] to see all of them before you approve\n",
                lines - MAX_LINES
            ));
        }
        card
    }

    /// Repeats what the card is about, below a diff that may have pushed the beginning off the
    /// screen.
    fn reminder(&self, call: &GatedCall) -> String {
        let what = format!(
            "── {} · {}",
            call.risk_level,
            visible(&summary(&call.tool_name, &call.tool_params))
        );
        self.wrapped_line("", &what, colour(call))
    }

    /// A line of agent text, after `start`. Continuation lines are marked.
    fn wrapped_line(&self, start: &str, line: &str, colour: &str) -> String {
        let parts = wrapped(line, self.screen.width().saturating_sub(4));
        let mark = |n| if n == 0 { start } else { "  › " };
        let lines = parts.iter().enumerate();
        lines.map(|(n, part)| format!("{}{}\n", mark(n), self.screen.paint(colour, part))).collect()
    }

    /// The diff of the call, at most `most` lines.
    fn changes(&self, call: &GatedCall, most: usize) -> String {
        let mut text = String::new();
        for line in diff_lines(call).take(most) {
            let colour = match line.as_bytes() {
                [b'+', ..] => "32",
                [b'-', ..] => "31",
                [b'@', ..] => "36",
                _ => "0",
            };
            text.push_str(&self.wrapped_line("  ", &visible(line), colour));
        }
        text
    }

    async fn press(&mut self, key: char) {
        if let ('v', Some(Card { subject: Subject::Call(call), mode: Mode::Choosing, .. })) =
            (key, &self.card)
        {
            let keys = self.card.as_ref().map(Card::keys).unwrap_or_default();
            let (whole, reminder) = (self.changes(call, usize::MAX), self.reminder(call));
            self.screen.raw(&format!("\n{whole}{reminder}{keys}"));
            self.card.iter_mut().for_each(|card| card.fully_shown = true);
            return;
        }
        let Some(card) = &mut self.card else { return };
        let keys = card.keys();
        match (&mut card.mode, key) {
            (Mode::Reason(_), '\r' | '\n') => {
                let Mode::Reason(reason) = std::mem::replace(&mut card.mode, Mode::Choosing) else {
                    return;
                };
                let reason = reason.trim();
                self.decide(None, (!reason.is_empty()).then_some(reason)).await;
            }
            (Mode::Reason(_), ESCAPE) => {
                card.mode = Mode::Choosing;
                self.screen.raw(&format!("\nNothing was decided. {keys}"));
            }
            (Mode::Reason(reason), '\u{8}' | '\u{7f}') => {
                if reason.pop().is_some() {
                    self.screen.raw("\u{8} \u{8}");
                }
            }
            (Mode::Reason(reason), key) if !key.is_control() && reason.chars().count() < 1000 => {
                reason.push(key);
                self.screen.raw(&visible(&key.to_string()));
            }
            (Mode::Reason(_), _) => {}
            (Mode::Confirming, 'a') => self.decide(Some(GrantScope::Agent), None).await,
            (Mode::Confirming, _) => {
                card.mode = Mode::Choosing;
                self.screen.raw(&format!("\nNothing was decided. {keys}"));
            }
            // People can approve only what they have seen.
            (Mode::Choosing, 'y' | 's' | 'g' | 'a') if !card.fully_shown => {
                self.screen.raw(&format!("\nTo see the whole change, press v first. {keys}"));
            }
            (Mode::Choosing, 'y') => self.decide(Some(GrantScope::Once), None).await,
            (Mode::Choosing, 'n') => {
                card.mode = Mode::Reason(String::new());
                self.screen.raw(&format!("\n{ASK_REASON}"));
            }
            (Mode::Choosing, 'q') => {
                self.close("not decided");
                self.stop.cancel();
            }
            (Mode::Choosing, key) => self.press_for_call(key).await,
        }
    }

    /// Handles the keys that only calls have.
    async fn press_for_call(&mut self, key: char) {
        let Some(Card { subject: Subject::Call(call), mode, .. }) = &mut self.card else { return };
        match key {
            's' => self.decide(Some(GrantScope::Class), None).await,
            'w' => self.keep_waiting().await,
            'g' if call.is_local_git() => self.decide(Some(GrantScope::LocalGit), None).await,
            'a' if call.agent_id.is_some() => {
                *mode = Mode::Confirming;
                let warning = "this call runs now. All later calls of this agent in this \
                               conversation up to MEDIUM run without your approval.";
                self.screen.raw(&format!("\nWarning: {warning} {CONFIRM}"));
            }
            'a' => {
                let keys = self.card.as_ref().map(Card::keys).unwrap_or_default();
                self.screen.raw(&format!("\nThis call has no agent. {keys}"));
            }
            _ => {}
        }
    }

    async fn decide(&mut self, approve: Option<GrantScope>, reason: Option<&str>) {
        let Some(card) = &self.card else { return };
        let (keys, project) = (card.keys(), &self.project);
        let (plan, answer) = match (&card.subject, approve) {
            (Subject::Plan(id), Some(_)) => (true, project.approve_plan(*id).await),
            (Subject::Plan(id), None) => (true, project.reject_plan(*id, reason).await),
            (Subject::Call(call), approve) => {
                let Some(id) = call.approval_id else { return };
                let answer = match approve {
                    Some(scope) => project.approve(id, scope).await,
                    None => project.reject(id, reason).await,
                };
                (false, answer)
            }
        };
        let done = match approve {
            Some(_) if plan => "approved; the plan runs",
            Some(GrantScope::Once) => "approved once",
            Some(GrantScope::Class) => "approved; this class is allowed in this conversation",
            Some(GrantScope::LocalGit) => {
                "approved; local git commands are allowed in this conversation"
            }
            Some(GrantScope::Agent) => {
                "approved; this agent is trusted up to MEDIUM in this conversation"
            }
            None => "rejected",
        };
        match answer {
            Ok(()) => self.close(done),
            Err(Error::Refused(problem)) if problem.status == 409 => {
                self.close(&format!("decided elsewhere: {}", problem.detail));
            }
            Err(error) if error.is_temporary() => {
                if let Some(card) = &mut self.card {
                    card.mode = Mode::Choosing;
                }
                self.screen.raw(&format!(
                    "\nnot sent ({}); try again. {keys}",
                    visible(&error.full_message())
                ));
            }
            Err(error) => self.close(&error.full_message()),
        }
    }
}

fn colour(call: &GatedCall) -> &'static str {
    if call.risk_level == Verdict::High { "1;31" } else { "1;33" }
}

/// The lines of the diff. Carriage returns at their ends are part of the content.
fn diff_lines(call: &GatedCall) -> impl Iterator<Item = &str> {
    call.preview.iter().flat_map(|preview| preview.diff.split_terminator('\n'))
}

/// Whether the command gets network access, and which addresses it names.
fn network(call: &GatedCall) -> String {
    let named: Vec<&str> = call.class.destinations.iter().map(String::as_str).collect();
    match (call.network, named.is_empty()) {
        (true, false) => format!("yes: {}", named.join(", ")),
        (true, true) => "yes".to_owned(),
        (false, _) => "no".to_owned(),
    }
}

/// What the machine says about its sandbox.
fn sandbox(machine: &MachineInfo) -> &str {
    machine.isolation.words.as_deref().unwrap_or("unknown")
}
