//! What a person reads of a run: who works on what, the plan, and the answer as it is spoken.

use super::{
    room::{Standing, Work},
    tree::{label, tree},
};
use crate::{
    project::ProjectApi,
    screen::{Screen, summary, visible},
};
use atelier_core::{
    CallId, Event, Message, PlanStatus, Task, TaskId, TaskKind,
    gate::{CallFailure, CallStatus},
};
use serde::Deserialize;
use std::{
    collections::{HashMap, HashSet},
    io::IsTerminal,
    sync::Arc,
};

pub(crate) struct Words {
    project: Arc<ProjectApi>,
    screen: Arc<Screen>,
    work: Work,
    /// Our tasks, by what a person calls them.
    tasks: HashMap<TaskId, String>,
    calls: HashMap<CallId, String>,
    /// Tasks whose words are the answer: those that run side by side would talk at the same time.
    speakers: HashSet<TaskId>,
    /// What each task said since its last step.
    said: HashMap<TaskId, String>,
    /// The end of what was shown of the answer.
    shown: String,
    /// Whether it was said that no machine is there.
    stranded: bool,
    /// Standard output is a terminal, which what an agent writes must not steer.
    guarded: bool,
}

#[derive(Deserialize)]
struct Delta {
    task_id: TaskId,
    text: String,
}

impl Words {
    pub(crate) fn new(project: Arc<ProjectApi>, screen: Arc<Screen>, work: Work) -> Self {
        let direct = work.plan_id.is_none();
        Self {
            project,
            screen,
            work,
            tasks: HashMap::new(),
            calls: HashMap::new(),
            speakers: direct.then_some(work.task_id).into_iter().collect(),
            said: HashMap::new(),
            shown: String::new(),
            stranded: false,
            guarded: std::io::stdout().is_terminal(),
        }
    }

    fn speak(&self, text: &str) {
        match self.guarded {
            true => {
                let lines: Vec<String> = text.split('\n').map(visible).collect();
                self.screen.words(&lines.join("\n"));
            }
            false => self.screen.words(text),
        }
    }

    /// Words of a model, as they come.
    pub(crate) fn said(&mut self, data: &str) {
        let Ok(Delta { task_id, text }) = serde_json::from_str(data) else { return };
        if self.speakers.contains(&task_id) {
            self.shown.push_str(&text);
            self.speak(&text);
        } else {
            // Who it is may be told a moment later.
            self.said.entry(task_id).or_default().push_str(&text);
        }
    }

    fn is_ours(&self, task: &Task) -> bool {
        match self.work.plan_id {
            Some(plan) => task.plan_id == Some(plan),
            None => task.id == self.work.task_id,
        }
    }

    fn meet(&mut self, task: &Task) {
        let agent = task.agent_name.as_ref().map_or("the project", |name| name.as_str());
        let name = match (task.kind, task.plan_id) {
            (TaskKind::Plan, _) => "the plan".to_owned(),
            (TaskKind::Answer, _) => "the answer".to_owned(),
            (TaskKind::Work, Some(_)) => format!("{} ({agent})", label(task)),
            (TaskKind::Work, None) => agent.to_owned(),
        };
        self.tasks.insert(task.id, name);
        if task.kind == TaskKind::Answer && self.speakers.insert(task.id) {
            let before = self.said.remove(&task.id).unwrap_or_default();
            self.shown.push_str(&before);
            self.speak(&before);
        }
    }

    /// `here`: the person is asked in this terminal.
    pub(crate) async fn happened(&mut self, event: &Event, here: bool) {
        match event {
            Event::TaskQueued { task } if self.is_ours(task) => self.meet(task),
            Event::TaskStarted { task_id, .. } => self.of_task(*task_id, "works"),
            Event::TaskProgress { task_id, calls, .. } if self.tasks.contains_key(task_id) => {
                // What was said before the calls was not the answer.
                self.screen.end_words();
                self.shown.clear();
                self.said.remove(task_id);
                for call in calls {
                    self.began(*task_id, call.tool_id, &call.name).await;
                }
            }
            Event::TaskCompleted { task } if self.is_ours(task) => self.of_task(task.id, "done"),
            Event::TaskFailed { task } if self.is_ours(task) => {
                let why = task.error.as_ref().map_or("", |error| &error.detail);
                self.of_task(task.id, &format!("failed: {why}"));
            }
            Event::TaskCancelled { task } if self.is_ours(task) => self.of_task(task.id, "cancelled"),
            Event::PlanCreated { plan, tasks } if Some(plan.id) == self.work.plan_id => {
                tasks.iter().for_each(|task| self.meet(task));
                // Who sits here and is asked about it sees it on the card.
                if !(here && plan.status == PlanStatus::PendingApproval) {
                    tree(tasks).iter().for_each(|line| self.screen.line(line));
                }
            }
            // The plan itself was shown when it was made.
            Event::PlanApprovalRequest { plan, .. } if Some(plan.id) == self.work.plan_id && !here => {
                let path = self.project.path(&format!("plans/{}/approve", plan.id));
                self.where_to_decide("the plan waits for your approval", &path);
            }
            Event::ToolApprovalRequest {
                approval_id, tool_id, tool_name, tool_params, risk_level, ..
            } => {
                let what = summary(tool_name, tool_params);
                self.calls.entry(*tool_id).or_insert_with(|| what.clone());
                let waits = format!("{what}: waits for a decision ({risk_level})");
                match here {
                    true => self.screen.line(&waits),
                    false => {
                        let path = self.project.path(&format!("approvals/{approval_id}/approve"));
                        self.where_to_decide(&waits, &path);
                    }
                }
            }
            Event::ToolCallUpdated { tool_id, status, error, .. } => {
                self.updated(*tool_id, *status, error.as_ref());
            }
            _ => {}
        }
    }

    fn of_task(&self, id: TaskId, what: &str) {
        if let Some(name) = self.tasks.get(&id) {
            self.screen.line(&format!("{name}: {what}"));
        }
    }

    async fn began(&mut self, task: TaskId, id: Option<CallId>, name: &str) {
        let call = match id {
            // Events tell only its name. Where the rest cannot be had, that has to do.
            Some(id) => self.project.call(id).await.ok(),
            None => None,
        };
        let what =
            call.as_ref().map_or_else(|| name.to_owned(), |call| summary(&call.tool_name, &call.tool_params));
        self.of_task(task, &what);
        // Nobody is asked about it, and yet it does not go on.
        if call.is_some_and(|call| matches!(call.status, CallStatus::Previewing | CallStatus::Approved)) {
            self.name_lack_of_machine().await;
        }
        if let Some(id) = id {
            self.calls.insert(id, what);
        }
    }

    /// Says once how to connect a machine, if there is none.
    async fn name_lack_of_machine(&mut self) {
        if self.stranded || !matches!(self.project.holder().await, Ok(None)) {
            return;
        }
        self.stranded = true;
        let (server, name) = (self.project.api.server(), self.project.project.name.as_str());
        let name = name.replace('\'', r"'\''");
        self.screen.line("no machine is connected to the project; in the folder to work in, run");
        self.screen.line(&format!("  atelier connect . --server {server} --project '{name}'"));
    }

    fn updated(&self, id: CallId, status: CallStatus, error: Option<&CallFailure>) {
        // The others are told of by whoever asks or decides.
        let told = status.is_settled() || status == CallStatus::Dispatched;
        if let Some(what) = self.calls.get(&id).filter(|_| told) {
            let why = error.map_or_else(String::new, |error| format!(" ({})", error.detail));
            self.screen.line(&format!("{what}: {}{why}", status.as_str()));
        }
    }

    fn where_to_decide(&self, what: &str, path: &str) {
        let server = self.project.api.server();
        self.screen.line(&format!("{what}; decide in the console at {server}, or POST {path}"));
    }

    /// The rest of the answer, and what all of it took.
    pub(crate) fn ended(&self, answer: Option<&Message>, standing: &Standing) {
        if let Some(answer) = answer {
            match answer.content.strip_prefix(&self.shown) {
                Some(rest) => self.speak(rest),
                // Some of the words were lost on the way.
                None => {
                    self.screen.end_words();
                    self.speak(&answer.content);
                }
            }
        }
        self.screen.end_words();
        let outcome = match (&standing.error, standing.completed) {
            (_, true) => "completed".to_owned(),
            (Some(error), false) => format!("not completed: {}", error.detail),
            (None, false) => "not completed".to_owned(),
        };
        let usage = standing.usage;
        let cost = match standing.cost > 0.0 {
            true => format!(", ${:.4}", standing.cost),
            false => String::new(),
        };
        self.screen.line(&format!(
            "{outcome}; {} steps, {} tokens in, {} out{cost}",
            standing.steps, usage.input_tokens, usage.output_tokens
        ));
    }
}
