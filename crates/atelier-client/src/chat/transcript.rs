//! What a person reads while agents work: who works on what, the plan, and the answer as the model
//! writes it.

use super::{
    conversation_api::WorkStatus,
    tree::{label, tree},
};
use crate::{
    markdown::Markdown,
    project::ProjectApi,
    screen::{Screen, summary},
};
use atelier_api::{
    chat::Accepted,
    events::{MessageDelta, ToolOutput},
};
use atelier_core::{
    CallId, Event, Message, PlanStatus, Task, TaskId, TaskKind,
    gate::{CallFailure, CallStatus},
    visible::readable,
};
use std::{
    collections::{HashMap, HashSet},
    io::IsTerminal,
    sync::Arc,
    time::Instant,
};

pub(crate) struct Transcript {
    project: Arc<ProjectApi>,
    screen: Arc<Screen>,
    work: Accepted,
    /// The names of our tasks, as people read them.
    tasks: HashMap<TaskId, String>,
    /// Our calls as people read them, and since when they are known.
    calls: HashMap<CallId, (String, Instant)>,
    /// Tasks whose text is the answer. Other tasks run at the same time, and their texts would mix.
    answering: HashSet<TaskId>,
    /// Text of other tasks since their last step.
    unassigned: HashMap<TaskId, String>,
    /// The part of the answer that was printed since the last step.
    shown: String,
    /// Whether the hint about the missing machine was printed.
    reported_missing_machine: bool,
    /// Whether standard output is a terminal, which agent text must not control.
    escape_answer: bool,
    /// Present if the answer's Markdown is rendered.
    markdown: Option<Markdown>,
}

impl Transcript {
    /// `renders`: whether the answer's Markdown is rendered.
    pub(crate) fn new(
        project: Arc<ProjectApi>,
        screen: Arc<Screen>,
        work: Accepted,
        renders: bool,
    ) -> Self {
        let direct = work.plan_id.is_none();
        Self {
            project,
            screen,
            work,
            tasks: HashMap::new(),
            calls: HashMap::new(),
            answering: direct.then_some(work.task_id).into_iter().collect(),
            unassigned: HashMap::new(),
            shown: String::new(),
            reported_missing_machine: false,
            escape_answer: std::io::stdout().is_terminal(),
            markdown: renders.then(Markdown::default),
        }
    }

    fn print_answer(&mut self, text: &str) {
        let text = match self.escape_answer {
            true => text.split('\n').map(readable).collect::<Vec<_>>().join("\n"),
            false => text.to_owned(),
        };
        let text = match &mut self.markdown {
            Some(markdown) => markdown.push(&text),
            None => text,
        };
        if !text.is_empty() {
            self.screen.answer(&text);
        }
    }

    fn end_answer(&mut self) {
        let rest = self.markdown.as_mut().map(Markdown::finish).unwrap_or_default();
        if !rest.is_empty() {
            self.screen.answer(&rest);
        }
        self.screen.end_answer();
    }

    /// Handles a piece of a message while the model is still writing it.
    pub(crate) fn add_delta(&mut self, delta: MessageDelta) {
        let MessageDelta { task_id, text, .. } = delta;
        if self.answering.contains(&task_id) {
            self.shown.push_str(&text);
            self.print_answer(&text);
        } else {
            // The event that says whose text it is may arrive a moment later.
            self.unassigned.entry(task_id).or_default().push_str(&text);
        }
    }

    fn is_ours(&self, task: &Task) -> bool {
        match self.work.plan_id {
            Some(plan) => task.plan_id == Some(plan),
            None => task.id == self.work.task_id,
        }
    }

    fn add_task(&mut self, task: &Task) {
        let agent = task.agent_name.as_ref().map_or("the project", |name| name.as_str());
        let name = match (task.kind, task.plan_id) {
            (TaskKind::Plan, _) => "the plan".to_owned(),
            (TaskKind::Answer, _) => "the answer".to_owned(),
            (TaskKind::Work, Some(_)) => format!("{} ({agent})", label(task)),
            (TaskKind::Work, None) => agent.to_owned(),
        };
        self.tasks.insert(task.id, name);
        if task.kind == TaskKind::Answer && self.answering.insert(task.id) {
            let before = self.unassigned.remove(&task.id).unwrap_or_default();
            self.shown.push_str(&before);
            self.print_answer(&before);
        }
    }

    /// Prints what a running command of ours has printed.
    pub(crate) fn show_output(&self, output: &ToolOutput) {
        if !self.calls.contains_key(&output.tool_id) {
            return;
        }
        for line in output.text.lines() {
            // A progress bar overwrites its line: its last state is enough.
            let line = line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default();
            self.screen.line(&format!("  │ {line}"));
        }
    }

    /// Prints what an event says. `asks_here`: approvals are asked for in this terminal.
    pub(crate) async fn show_event(&mut self, event: &Event, asks_here: bool) {
        match event {
            Event::TaskQueued { task } if self.is_ours(task) => self.add_task(task),
            Event::TaskStarted { task_id, .. } => self.task_line(*task_id, "working"),
            Event::TaskProgress { task_id, calls, .. } if self.tasks.contains_key(task_id) => {
                // The text before the calls was not the answer.
                self.end_answer();
                self.shown.clear();
                self.unassigned.remove(task_id);
                for call in calls {
                    self.call_started(*task_id, call.tool_id, &call.name).await;
                }
            }
            Event::TaskCompleted { task } if self.is_ours(task) => self.task_line(task.id, "done"),
            Event::TaskFailed { task } if self.is_ours(task) => {
                let why = task.error.as_ref().map_or("", |error| &error.detail);
                self.task_line(task.id, &format!("failed: {why}"));
            }
            Event::TaskCancelled { task } if self.is_ours(task) => {
                self.task_line(task.id, "cancelled");
            }
            Event::PlanCreated { plan, tasks } if Some(plan.id) == self.work.plan_id => {
                tasks.iter().for_each(|task| self.add_task(task));
                // If the plan is asked about here, the card shows it.
                if !(asks_here && plan.status == PlanStatus::PendingApproval) {
                    tree(tasks).iter().for_each(|line| self.screen.line(line));
                }
            }
            // The plan was printed when it was made.
            Event::PlanApprovalRequest { plan, .. }
                if Some(plan.id) == self.work.plan_id && !asks_here =>
            {
                let path = self.project.path(&format!("plans/{}/approve", plan.id));
                self.say_where_to_decide("the plan waits for your approval", &path);
            }
            Event::ToolApprovalRequest {
                approval_id,
                tool_id,
                tool_name,
                tool_params,
                risk_level,
                ..
            } => {
                let what = summary(tool_name, tool_params);
                self.calls.entry(*tool_id).or_insert_with(|| (what.clone(), Instant::now()));
                let waits = format!("{what}: waits for approval ({risk_level})");
                match asks_here {
                    true => self.screen.line(&waits),
                    false => {
                        let path = self.project.path(&format!("approvals/{approval_id}/approve"));
                        self.say_where_to_decide(&waits, &path);
                    }
                }
            }
            Event::ToolCallUpdated { tool_id, status, error, .. } => {
                self.call_updated(*tool_id, *status, error.as_ref());
            }
            _ => {}
        }
    }

    fn task_line(&self, id: TaskId, what: &str) {
        if let Some(name) = self.tasks.get(&id) {
            self.screen.line(&format!("{name}: {what}"));
        }
    }

    async fn call_started(&mut self, task: TaskId, id: Option<CallId>, name: &str) {
        let call = match id {
            // Events contain only the tool's name. If the call cannot be read, the name has to do.
            Some(id) => self.project.call(id).await.ok(),
            None => None,
        };
        let what = call
            .as_ref()
            .map_or_else(|| name.to_owned(), |call| summary(&call.tool_name, &call.tool_params));
        self.task_line(task, &what);
        // The call waits for a machine and not for a person.
        if call.is_some_and(|call| {
            matches!(call.status, CallStatus::Previewing | CallStatus::Approved)
        }) {
            self.report_missing_machine().await;
        }
        if let Some(id) = id {
            self.calls.insert(id, (what, Instant::now()));
        }
    }

    /// Prints once how to connect a machine, if none is connected.
    async fn report_missing_machine(&mut self) {
        if self.reported_missing_machine || !matches!(self.project.active_client().await, Ok(None))
        {
            return;
        }
        self.reported_missing_machine = true;
        let (server, name) = (self.project.api.server(), self.project.project.name.as_str());
        let name = name.replace('\'', r"'\''");
        self.screen
            .line("no machine is connected to this project; to connect a folder, run in it:");
        self.screen.line(&format!("  atelier connect . --server {server} --project '{name}'"));
    }

    fn call_updated(&self, id: CallId, status: CallStatus, error: Option<&CallFailure>) {
        // Other changes are printed where approvals are asked for.
        let is_shown = status.is_settled() || status == CallStatus::Dispatched;
        if let Some((what, since)) = self.calls.get(&id).filter(|_| is_shown) {
            let why = error.map_or_else(String::new, |error| format!(" ({})", error.detail));
            let time = match (self.markdown.is_some(), status.is_settled()) {
                (true, true) => format!(" after {:.1} s", since.elapsed().as_secs_f64()),
                _ => String::new(),
            };
            self.screen.line(&format!("{what}: {}{why}{time}", status.as_str()));
        }
    }

    fn say_where_to_decide(&self, what: &str, path: &str) {
        let server = self.project.api.server();
        self.screen.line(&format!("{what}; decide in the console at {server}, or POST {path}"));
    }

    /// Prints the rest of the answer, and what the work has used.
    pub(crate) fn finish(&mut self, answer: Option<&Message>, status: &WorkStatus) {
        if let Some(answer) = answer {
            let shown = std::mem::take(&mut self.shown);
            match answer.content.strip_prefix(&shown) {
                Some(rest) => self.print_answer(rest),
                // Some pieces of the answer were lost on the way.
                None => {
                    self.end_answer();
                    self.print_answer(&answer.content);
                }
            }
        }
        self.end_answer();
        let outcome = match (&status.error, status.completed) {
            (_, true) => "completed".to_owned(),
            (Some(error), false) => format!("not completed: {}", error.detail),
            (None, false) => "not completed".to_owned(),
        };
        let usage = status.usage;
        let cost = match status.cost > 0.0 {
            true => format!(", ${:.4}", status.cost),
            false => String::new(),
        };
        self.screen.line(&format!(
            "{outcome}; {} steps, {} tokens in, {} out{cost}",
            status.steps, usage.input_tokens, usage.output_tokens
        ));
    }
}
