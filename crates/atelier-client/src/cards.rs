//! Approvals in the terminal: one card at a time, decided with one key.

use crate::{
    chat::tree::tree,
    error::{Error, Result},
    keyboard::ESCAPE,
    project::{Connected, PlanDetails, ProjectApi},
    screen::{Screen, argv, folded, summary, visible},
};
use atelier_core::{
    CallId, PlanId, PlanStatus, TaskKind,
    gate::{CallStatus, GatedCall, GrantScope},
    policy::verdict::Verdict,
};
use chrono::{DateTime, Utc};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the event stream tells the person at the terminal.
pub(crate) enum News {
    Asked(CallId),
    /// Time is running out.
    Warned(CallId, DateTime<Utc>),
    Settled(CallId, CallStatus),
    PlanAsked(PlanId),
    PlanMoved(PlanId, PlanStatus),
}

/// What a person is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Call(CallId),
    Plan(PlanId),
}

const KEYS: &str = "[y] once  [s] all like it  [a] all of this agent  [n] no  [q] quit ";
const NO_AGENT_KEYS: &str = "[y] once  [s] all like it  [n] no  [q] quit ";
const WHY_NOT: &str = "Why not (the agent is told; may be empty; Esc goes back): ";
const MEAN_IT: &str = "Press a again if you mean it. ";
const PLAN_KEYS: &str = "[y] run it  [n] no  [q] quit ";
/// Between a card and the keys that answer it.
const SETTLING: Duration = Duration::from_millis(250);
/// A longer difference is shown to here, and whole on request.
const SHOWN: usize = 400;

/// What the next key means.
enum Mode {
    Choosing,
    /// `a` needs a second key.
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
    /// All of it was on the screen.
    shown: bool,
}

impl Card {
    fn question(&self) -> Question {
        match &self.subject {
            Subject::Call(call) => Question::Call(call.tool_id),
            Subject::Plan(id) => Question::Plan(*id),
        }
    }

    fn keys(&self) -> &'static str {
        self.subject.keys()
    }
}

impl Subject {
    fn keys(&self) -> &'static str {
        match self {
            Subject::Call(call) if call.agent_id.is_none() => NO_AGENT_KEYS,
            Subject::Call(_) => KEYS,
            Subject::Plan(_) => PLAN_KEYS,
        }
    }
}

pub(crate) struct Cards {
    project: Arc<ProjectApi>,
    screen: Arc<Screen>,
    /// What `q` ends.
    stop: CancellationToken,
    queue: VecDeque<Question>,
    card: Option<Card>,
}

impl Cards {
    pub(crate) fn new(project: Arc<ProjectApi>, screen: Arc<Screen>, stop: CancellationToken) -> Self {
        Self { project, screen, stop, queue: VecDeque::new(), card: None }
    }

    /// Until the keyboard is gone.
    pub(crate) async fn serve(
        mut self,
        mut news: mpsc::UnboundedReceiver<News>,
        mut keys: mpsc::UnboundedReceiver<char>,
    ) {
        loop {
            self.show_next(&mut keys).await;
            tokio::select! {
                told = news.recv() => match told {
                    Some(News::Asked(id)) => self.asked(Question::Call(id)),
                    Some(News::Warned(id, expires_at)) => self.warned(id, expires_at),
                    Some(News::Settled(id, status)) => {
                        let pending = matches!(status, CallStatus::PendingApproval | CallStatus::Previewing);
                        self.moved(Question::Call(id), pending, status.as_str());
                    }
                    Some(News::PlanAsked(id)) => self.asked(Question::Plan(id)),
                    Some(News::PlanMoved(id, status)) => {
                        let pending = status == PlanStatus::PendingApproval;
                        self.moved(Question::Plan(id), pending, status.as_str());
                    }
                    None => return,
                },
                key = keys.recv() => match key {
                    Some(key) => self.press(key).await,
                    None => return,
                },
            }
        }
    }

    fn is_shown(&self, question: Question) -> bool {
        self.card.as_ref().is_some_and(|card| card.question() == question)
    }

    fn asked(&mut self, question: Question) {
        if !self.is_shown(question) && !self.queue.contains(&question) {
            self.queue.push_back(question);
        }
    }

    fn warned(&self, id: CallId, expires_at: DateTime<Utc>) {
        let warning = expires_soon(expires_at);
        match &self.card {
            Some(card) if card.question() == Question::Call(id) => {
                let prompt = match &card.mode {
                    Mode::Choosing => card.keys().to_owned(),
                    Mode::Confirming => MEAN_IT.to_owned(),
                    Mode::Reason(reason) => format!("{WHY_NOT}{}", visible(reason)),
                };
                self.screen.raw(&format!("\n{warning} {prompt}"));
            }
            _ => self.screen.line(&warning),
        }
    }

    fn moved(&mut self, question: Question, pending: bool, status: &str) {
        self.queue.retain(|waiting| *waiting != question);
        if pending || !self.is_shown(question) {
            return;
        }
        match status == CallStatus::Expired.as_str() {
            true => self.close("nobody decided in time"),
            false => self.close(&format!("decided elsewhere: {status}")),
        }
    }

    fn close(&mut self, outcome: &str) {
        self.card = None;
        self.screen.raw(&format!("\n→ {}\n\n", visible(outcome)));
        self.screen.release();
    }

    /// As the server has it now: what was decided meanwhile is not asked about. A card takes no keys that were pressed
    /// before somebody can have read it: they were meant for the one before.
    async fn show_next(&mut self, keys: &mut mpsc::UnboundedReceiver<char>) {
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
                    tokio::time::sleep(SETTLING).await;
                    while keys.try_recv().is_ok() {}
                    self.screen.raw(subject.keys());
                    let shown = match &subject {
                        Subject::Call(call) => lines(call).count() <= SHOWN,
                        Subject::Plan(_) => true,
                    };
                    self.card = Some(Card { subject, mode: Mode::Choosing, shown });
                }
                Ok(None) => {}
                // The next connection brings it back.
                Err(error) => {
                    self.screen.line(&format!("an approval could not be shown: {}", error.told()));
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
            Some(agent) => self.project.agent_name(agent).await.unwrap_or_else(|_| agent.to_string()),
            None => "somebody with your token".to_owned(),
        };
        let machine = self.project.holder().await?;
        Ok(Some((self.draw(&call, &who, machine.as_ref()), Subject::Call(Box::new(call)))))
    }

    async fn draw_plan(&self, id: PlanId) -> Result<Option<(String, Subject)>> {
        let PlanDetails { plan, mut tasks } = self.project.plan(id).await?;
        if plan.status != PlanStatus::PendingApproval {
            return Ok(None);
        }
        tasks.retain(|task| task.kind == TaskKind::Work && !task.status.is_settled());
        let title = "── the plan waits for your approval: nothing of it runs before ──";
        let mut card = format!("\n{}\n", self.screen.paint("1;33", title));
        tree(&tasks).iter().for_each(|line| card.push_str(&self.folded("", &visible(line), "0")));
        Ok(Some((card, Subject::Plan(id))))
    }

    /// `machine` is the one that will run it, which need not be this one.
    fn draw(&self, call: &GatedCall, who: &str, machine: Option<&Connected>) -> String {
        let screen = &self.screen;
        let mut card = String::new();
        let title = format!("── {} · {} wants {}", call.risk_level, visible(who), call.tool_name);
        let more = match self.queue.len() {
            0 => String::new(),
            waiting => format!(" · {waiting} more"),
        };
        card.push_str(&format!("\n{}", self.folded("", &format!("{title}{more} ──"), colour(call))));
        let columns = screen.width().saturating_sub(11);
        let mut row = |name: &str, value: &str| {
            for (n, part) in folded(&visible(value), columns).iter().enumerate() {
                card.push_str(&format!("{:<10} {part}\n", if n == 0 { name } else { "" }));
            }
        };
        let params = &call.tool_params;
        let text = |name: &str| params[name].as_str();
        match call.tool_name.as_str() {
            "execute_command" => {
                row("command", &argv(params));
                row("in", text("cwd").unwrap_or("."));
                row("network", if call.network { "yes, it gets the network" } else { "none" });
                row("held in", machine.map_or("not known: no machine is connected", Connected::held_in));
            }
            "move_file" => {
                row("from", text("source").unwrap_or_default());
                row("to", text("destination").unwrap_or_default());
            }
            _ => row("path", text("path").unwrap_or_default()),
        }
        row("machine", machine.map_or("none is connected", |machine| &machine.root));
        if let Some(note) = &call.note {
            row("note", note);
        }
        row("why asked", &format!("{} (rule {})", call.reason, call.rule));
        row("[s] means", &call.class_in_words());
        if let Some(approval) = &call.approval {
            row("until", &approval.expires_at.with_timezone(&chrono::Local).format("%H:%M:%S").to_string());
        }
        card.push_str(&self.changes(call, SHOWN));
        let lines = lines(call).count();
        if lines > 0 {
            card.push_str(&self.reminder(call));
        }
        if lines > SHOWN {
            card.push_str(&format!(
                "  … {} more lines: [v] shows all of it, then you can allow it\n",
                lines - SHOWN
            ));
        }
        card
    }

    /// What it is about, once more, below what may have pushed the beginning off the screen.
    fn reminder(&self, call: &GatedCall) -> String {
        let what =
            format!("── {} · {}", call.risk_level, visible(&summary(&call.tool_name, &call.tool_params)));
        self.folded("", &what, colour(call))
    }

    /// A line that an agent has a say in, after `start`. What is part of a longer one is marked.
    fn folded(&self, start: &str, line: &str, colour: &str) -> String {
        let parts = folded(line, self.screen.width().saturating_sub(4));
        let mark = |n| if n == 0 { start } else { "  › " };
        let lines = parts.iter().enumerate();
        lines.map(|(n, part)| format!("{}{}\n", mark(n), self.screen.paint(colour, part))).collect()
    }

    /// What the call would change, up to so many lines of it.
    fn changes(&self, call: &GatedCall, most: usize) -> String {
        let mut text = String::new();
        for line in lines(call).take(most) {
            let colour = match line.as_bytes() {
                [b'+', ..] => "32",
                [b'-', ..] => "31",
                [b'@', ..] => "36",
                _ => "0",
            };
            text.push_str(&self.folded("  ", &visible(line), colour));
        }
        text
    }

    async fn press(&mut self, key: char) {
        if let ('v', Some(Card { subject: Subject::Call(call), mode: Mode::Choosing, .. })) =
            (key, &self.card)
        {
            let keys = self.card.as_ref().map_or("", Card::keys);
            let (whole, reminder) = (self.changes(call, usize::MAX), self.reminder(call));
            self.screen.raw(&format!("\n{whole}{reminder}{keys}"));
            self.card.iter_mut().for_each(|card| card.shown = true);
            return;
        }
        let Some(card) = &mut self.card else {
            if key == 'q' {
                self.stop.cancel();
            }
            return;
        };
        let keys = card.keys();
        match (&mut card.mode, key) {
            (Mode::Reason(_), '\r' | '\n') => {
                let Mode::Reason(reason) = std::mem::replace(&mut card.mode, Mode::Choosing) else { return };
                let reason = reason.trim();
                self.decide(None, (!reason.is_empty()).then_some(reason)).await;
            }
            (Mode::Reason(_), ESCAPE) => {
                card.mode = Mode::Choosing;
                self.screen.raw(&format!("\nnot done. {keys}"));
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
                self.screen.raw(&format!("\nnot done. {keys}"));
            }
            // What was approved is what was seen.
            (Mode::Choosing, 'y' | 's' | 'a') if !card.shown => {
                self.screen.raw(&format!("\nNot all of it was shown: press v first. {keys}"));
            }
            (Mode::Choosing, 'y') => self.decide(Some(GrantScope::Once), None).await,
            (Mode::Choosing, 'n') => {
                card.mode = Mode::Reason(String::new());
                self.screen.raw(&format!("\n{WHY_NOT}"));
            }
            (Mode::Choosing, 'q') => {
                self.close("not decided");
                self.stop.cancel();
            }
            (Mode::Choosing, key) => self.press_for_call(key).await,
        }
    }

    /// Keys that mean something for calls only.
    async fn press_for_call(&mut self, key: char) {
        let Some(Card { subject: Subject::Call(call), mode, .. }) = &mut self.card else { return };
        match key {
            's' => self.decide(Some(GrantScope::Class), None).await,
            'a' if call.agent_id.is_some() => {
                *mode = Mode::Confirming;
                let warning =
                    "this runs, and whatever this agent asks for in this session up to MEDIUM runs unasked.";
                self.screen.raw(&format!("\nCareful: {warning} {MEAN_IT}"));
            }
            'a' => self.screen.raw(&format!("\nNo agent asks for this. {NO_AGENT_KEYS}")),
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
            Some(_) if plan => "approved, and begun",
            Some(GrantScope::Once) => "approved once",
            Some(GrantScope::Class) => "approved, and all like it in this session",
            Some(GrantScope::Agent) => "approved, and everything of this agent in this session up to MEDIUM",
            None => "rejected",
        };
        match answer {
            Ok(()) => self.close(done),
            Err(Error::Refused { status: 409, detail, .. }) => {
                self.close(&format!("decided elsewhere: {detail}"));
            }
            Err(error) if error.passes() => {
                if let Some(card) = &mut self.card {
                    card.mode = Mode::Choosing;
                }
                self.screen.raw(&format!("\nnot sent ({}); try again. {keys}", visible(&error.told())));
            }
            Err(error) => self.close(&error.told()),
        }
    }
}

fn colour(call: &GatedCall) -> &'static str {
    if call.risk_level == Verdict::High { "1;31" } else { "1;33" }
}

/// What is said before time decides.
pub(crate) fn expires_soon(expires_at: DateTime<Utc>) -> String {
    let at = expires_at.with_timezone(&chrono::Local).format("%H:%M:%S");
    format!("nobody has decided yet: at {at} the call expires.")
}

/// Of what it would change, with the carriage returns that end some of them: they are part of it.
fn lines(call: &GatedCall) -> impl Iterator<Item = &str> {
    call.preview.iter().flat_map(|preview| preview.diff.split_terminator('\n'))
}
