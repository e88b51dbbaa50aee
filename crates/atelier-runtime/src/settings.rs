//! Configuration of worker spaces and of the agents a new project starts with.

use atelier_core::{AgentConfig, AgentName};
use atelier_store::NewAgent;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSpaceSettings {
    /// How long an agent's configuration is served from the cache.
    #[serde(with = "humantime_serde")]
    pub agent_ttl: Duration,
    /// How many agents a project's cache holds.
    pub agent_cache: u64,
    /// How long a worker space may be unused before it is released.
    #[serde(with = "humantime_serde")]
    pub inactivity: Duration,
    /// How long a release waits for running requests and tasks before it ends them.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// How long a request or task may run before it counts as hung and raises an alert.
    #[serde(with = "humantime_serde")]
    pub hung_after: Duration,
    /// How many requests of one project may run at the same time. The others wait.
    pub max_active: usize,
    /// How many requests of one project may wait. More are refused.
    pub max_waiting: usize,
}

impl Default for WorkerSpaceSettings {
    fn default() -> Self {
        Self {
            agent_ttl: Duration::from_secs(5 * 60),
            agent_cache: 256,
            inactivity: Duration::from_secs(30 * 60),
            grace: Duration::from_secs(10),
            hung_after: Duration::from_secs(60),
            max_active: 64,
            max_waiting: 1000,
        }
    }
}

/// One agent of the starter pack.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StarterAgent {
    pub name: AgentName,
    #[serde(default)]
    pub config: AgentConfig,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub worker_space: WorkerSpaceSettings,
    pub starter_pack: Vec<StarterAgent>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { worker_space: WorkerSpaceSettings::default(), starter_pack: default_starter_pack() }
    }
}

impl Settings {
    pub fn starter_agents(&self) -> Vec<NewAgent> {
        let new = |agent: &StarterAgent| NewAgent {
            name: agent.name.clone(),
            config: agent.config.clone(),
        };
        self.starter_pack.iter().map(new).collect()
    }
}

/// The four agents that every new project has, unless the configuration names others.
fn default_starter_pack() -> Vec<StarterAgent> {
    let agent =
        |name: &str, role: &str, capabilities: &[&str], temperature, max_tokens, prompt: &str| {
            let metadata = json!({"role": role, "capabilities": capabilities});
            StarterAgent {
                name: AgentName::try_from(name).unwrap_or_else(|invalid| {
                    unreachable!("the name of a starter agent is valid: {invalid}")
                }),
                config: AgentConfig {
                    system_prompt: prompt.to_owned(),
                    temperature,
                    max_tokens,
                    metadata: metadata.as_object().cloned().unwrap_or_default(),
                    ..AgentConfig::default()
                },
            }
        };
    vec![
        agent(
            "agent_coder",
            "developer",
            &["code", "debug", "refactor", "test"],
            0.3,
            4096,
            "You are a software developer. You read before you change, change as little as the \
             task needs, \
             keep the style you find, and run the tests that show your change works.",
        ),
        agent(
            "agent_analyzer",
            "analyst",
            &["analysis", "review", "data"],
            0.5,
            2048,
            "You are an analyst. You look at code and data, separate what you see from what you \
             assume, \
             and say what follows from it.",
        ),
        agent(
            "agent_writer",
            "writer",
            &["documentation", "editing"],
            0.7,
            2048,
            "You are a technical writer. You write for the person who will read it: short, \
             correct, in \
             plain words, with an example where one helps.",
        ),
        agent(
            "agent_researcher",
            "researcher",
            &["search", "summaries"],
            0.6,
            3096,
            "You are a researcher. You search the workspace for what bears on the question, name \
             the files \
             your findings come from, and say what you could not find.",
        ),
    ]
}
