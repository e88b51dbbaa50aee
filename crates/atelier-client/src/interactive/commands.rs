//! The commands of a session, which begin with a slash.

use super::Session;
use crate::{chat::tree::tree, error::Result};
use atelier_api::{
    models::{DefaultModelChange, ModelLevel, ModelsOverview},
    work::PlanDetails,
};
use atelier_core::{Agent, nearest::suggestion};
use serde::Deserialize;
use std::path::Path;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Agent(Option<String>),
    Model(Option<String>),
    Plan,
    Diff,
    Undo,
    Cost,
    Resume(Option<String>),
    Again,
    New,
    Help,
    Quit,
}

const NAMES: [&str; 11] = [
    "/agent", "/model", "/plan", "/diff", "/undo", "/cost", "/resume", "/again", "/new", "/help",
    "/quit",
];

const HELP: &str = "\
/agent [NAME]   talk to this agent; without a name: list them; `/agent auto`: let the project plan
/model [NAME]   choose your default model; without a name: show what answers
/plan           show the plan of the last message
/diff           show what has changed in the folder since the last commit (git)
/undo           take back the last change, if this server can
/cost           show what this session has used
/resume [ID]    continue another conversation
/again          ask the last question again that expired before you answered
/new            begin a new conversation
/help           show this
/quit           leave (also Ctrl-D, or Ctrl-C twice)
Alt-Enter, Ctrl-J or a backslash at the end begins a new line. Tab completes @files and commands.
Esc or Ctrl-C interrupts the agents. Approvals are answered with one key.";

impl Command {
    /// The command in a message; `None` if the message is not a command.
    pub(super) fn parse(text: &str) -> Option<Result<Self, String>> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        // A path such as /etc/hosts at the beginning of a message is no command.
        let is_word = name.len() > 1 && name[1..].bytes().all(|byte| byte.is_ascii_alphabetic());
        if !name.starts_with('/') || !is_word {
            return None;
        }
        let argument = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
        Some(match name {
            "/agent" => Ok(Self::Agent(argument)),
            "/model" => Ok(Self::Model(argument)),
            "/plan" => Ok(Self::Plan),
            "/diff" => Ok(Self::Diff),
            "/undo" => Ok(Self::Undo),
            "/cost" => Ok(Self::Cost),
            "/resume" => Ok(Self::Resume(argument)),
            "/again" => Ok(Self::Again),
            "/new" => Ok(Self::New),
            "/help" => Ok(Self::Help),
            "/quit" | "/exit" => Ok(Self::Quit),
            unknown => {
                Err(format!("There is no command {unknown}: {}", suggestion(unknown, NAMES)))
            }
        })
    }
}

/// Commands, and files of the folder after an `@`.
pub(super) fn completions(word: &str, dir: &Path) -> Vec<String> {
    if word.starts_with('/') {
        return NAMES
            .iter()
            .filter(|name| name.starts_with(word))
            .map(|&name| name.into())
            .collect();
    }
    let Some(path) = word.strip_prefix('@') else { return Vec::new() };
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        return Vec::new();
    }
    let (folder, start) =
        path.rsplit_once('/').map_or(("", path), |(folder, start)| (folder, start));
    let Ok(entries) = std::fs::read_dir(dir.join(folder)) else { return Vec::new() };
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let hidden = name.starts_with('.') && !start.starts_with('.');
            if hidden || !name.starts_with(start) || name.chars().any(char::is_control) {
                return None;
            }
            let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
            let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            Some(format!("@{folder}{name}{slash}"))
        })
        .collect();
    found.sort();
    found
}

#[derive(Deserialize)]
struct Agents {
    agents: Vec<AgentEntry>,
}

#[derive(Deserialize)]
struct AgentEntry {
    #[serde(flatten)]
    agent: Agent,
    #[serde(default)]
    answered_by: Option<String>,
}

impl Session {
    pub(super) async fn command(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Agent(name) => self.choose_agent(name).await,
            Command::Model(name) => self.choose_model(name).await,
            Command::Plan => self.show_plan().await,
            Command::Diff => self.show_changes().await,
            Command::Undo => self.undo().await,
            Command::Cost => {
                let cost =
                    if self.cost > 0.0 { format!(", ${:.4}", self.cost) } else { String::new() };
                let used = self.used;
                self.say(&format!(
                    "This session: {} tokens in, {} out{cost}",
                    used.input_tokens, used.output_tokens
                ));
                Ok(())
            }
            Command::Resume(Some(id)) => self.open(&id).await,
            Command::Resume(None) => self.choose_conversation().await,
            Command::New => {
                self.conversation = None;
                self.say("The next message begins a new conversation.");
                Ok(())
            }
            Command::Help => {
                self.say(HELP);
                Ok(())
            }
            // They do more than a command may, so the session handles them itself.
            Command::Again | Command::Quit => Ok(()),
        }
    }

    async fn choose_agent(&mut self, name: Option<String>) -> Result<()> {
        match name {
            None => {
                let list: Agents =
                    self.project.api.get(&self.project.path("agents?limit=1000")).await?;
                for AgentEntry { agent, answered_by } in list.agents {
                    let model = answered_by.unwrap_or_else(|| "no model can answer".to_owned());
                    self.say(&format!("  {}  ({} → {model})", agent.name, agent.config.model));
                }
                self.say("  auto  (the project plans which agents do what)");
            }
            Some(name) if name == "auto" => {
                self.agent = None;
                self.say("The project plans which agents do what.");
            }
            Some(name) => {
                let agent: Agent =
                    self.project.api.get(&self.project.path(&format!("agents/{name}"))).await?;
                self.say(&format!("You talk to {} now.", agent.name));
                self.agent = Some(agent.name.to_string());
            }
        }
        Ok(())
    }

    async fn choose_model(&self, name: Option<String>) -> Result<()> {
        let api = &self.project.api;
        if let Some(model) = name {
            let change = DefaultModelChange { level: ModelLevel::Own, model: Some(model) };
            api.put_only("/my/models/default", &change).await?;
        }
        let overview: ModelsOverview = api.get("/my/models").await?;
        let default = overview.default.answered_by.unwrap_or_else(|| "no model".to_owned());
        self.say(&format!("The default model is {default}."));
        Ok(())
    }

    async fn show_plan(&self) -> Result<()> {
        match self.plan {
            Some(plan) => {
                let PlanDetails { plan, tasks } = self.project.plan(plan).await?;
                self.say(&format!("The plan is {}.", plan.status.as_str()));
                tree(&tasks).iter().for_each(|line| self.say(&format!("  {line}")));
            }
            None => self.say("There is no plan yet: `/agent auto` lets the project plan."),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_after_a_slash_are_commands() {
        assert_eq!(Command::parse("/agent coder"), Some(Ok(Command::Agent(Some("coder".into())))));
        assert_eq!(Command::parse("/help"), Some(Ok(Command::Help)));
        assert_eq!(Command::parse("/etc/hosts is odd"), None);
        assert_eq!(Command::parse("read a/b"), None);
        assert_eq!(Command::parse("/"), None);
        let unknown = Command::parse("/hlep").expect("a command").expect_err("unknown");
        assert_eq!(unknown, "There is no command /hlep: did you mean /help?");
    }

    #[test]
    fn files_of_the_folder_are_completed() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("src")).expect("made");
        for file in ["notes.txt", ".hidden", "src/main.rs"] {
            std::fs::write(folder.path().join(file), "").expect("written");
        }
        let found = |word: &str| completions(word, folder.path());
        assert_eq!(found("@"), ["@notes.txt", "@src/"]);
        assert_eq!(found("@src/m"), ["@src/main.rs"]);
        assert_eq!(found("@.h"), ["@.hidden"]);
        assert!(
            found("@../").is_empty() && found("@/etc/").is_empty() && found("notes").is_empty()
        );
        assert_eq!(found("/he"), ["/help"]);
    }
}
