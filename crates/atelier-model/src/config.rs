//! Providers, their models and what they are called, as the configuration has them.

use crate::ModelError;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// `[models]`: what is the same for every provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelsConfig {
    /// Names an agent may use, and what they stand for (`provider/model`, or `demo`).
    pub aliases: BTreeMap<String, String>,
    /// Aliases that the demo model answers for while their provider has no key.
    pub demo_without_key: Vec<String>,
    /// Whose a name without a provider is, when no provider lists it.
    pub default_provider: String,
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// From the question to the first word.
    #[serde(with = "humantime_serde")]
    pub first_token_timeout: Duration,
    /// From one word to the next.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// For the whole answer, other tries included.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// How often a question is asked again when the provider was busy, broken or not to be reached.
    pub retries: u32,
    /// How long the first wait before that is; each later one is twice as long.
    #[serde(with = "humantime_serde")]
    pub retry_wait: Duration,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            aliases: BTreeMap::from([("gpt-4".into(), "openai/gpt-4o".into())]),
            // What agents have unless they are told otherwise: the very first run needs no key.
            demo_without_key: vec!["gpt-4".into()],
            default_provider: "openai".into(),
            connect_timeout: Duration::from_secs(10),
            first_token_timeout: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(600),
            retries: 4,
            retry_wait: Duration::from_millis(500),
        }
    }
}

/// `[providers.NAME]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    pub kind: ProviderKind,
    pub base_url: String,
    /// The environment variable that holds the key. Without this and `key_file` none is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// A file that holds the key, for those who mount secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Tokens that fit into a question and its answer, where the model says nothing else.
    #[serde(default = "usual_window")]
    pub context_window: u32,
    #[serde(default)]
    pub models: BTreeMap<String, ModelInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    OpenAi,
    /// Speaks OpenAI's chat completions as they were at first: Ollama, vLLM, OpenRouter and many others.
    OpenAiCompatible,
    Anthropic,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u32>,
    /// US dollars for a million tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_price: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_price: Option<f64>,
    /// The model refuses questions that name a temperature.
    pub fixed_temperature: bool,
}

pub type Providers = BTreeMap<String, ProviderConfig>;

fn usual_window() -> u32 {
    32_768
}

/// The providers everybody knows, so that a key is all that is missing.
pub fn known_providers() -> Providers {
    toml::from_str(include_str!("providers.toml"))
        .unwrap_or_else(|invalid| unreachable!("a file of ours is valid: {invalid}"))
}

impl ModelsConfig {
    pub(crate) fn check(&self, providers: &Providers) -> Result<(), ModelError> {
        let refuse = |problem: String| Err(ModelError::Config(problem));
        for (name, provider) in providers {
            if name.is_empty() || name.contains('/') || name == crate::DEMO {
                return refuse(format!("providers.{name}: not a name a provider can have"));
            }
            if !provider.base_url.starts_with("http://") && !provider.base_url.starts_with("https://") {
                return refuse(format!("providers.{name}.base_url has to start with https:// or http://"));
            }
        }
        if !providers.contains_key(&self.default_provider) {
            return refuse(format!(
                "models.default_provider: there is no provider {}",
                self.default_provider
            ));
        }
        for (alias, target) in &self.aliases {
            let known = target == crate::DEMO
                || target.split_once('/').is_some_and(|(provider, _)| providers.contains_key(provider));
            if !known {
                return refuse(format!(
                    "models.aliases.{alias}: {target} is neither `demo` nor `provider/model` of a known provider"
                ));
            }
        }
        for (what, time) in [
            ("connect_timeout", self.connect_timeout),
            ("first_token_timeout", self.first_token_timeout),
            ("stall_timeout", self.stall_timeout),
            ("timeout", self.timeout),
        ] {
            if time.is_zero() {
                return refuse(format!("models.{what} must not be 0"));
            }
        }
        Ok(())
    }
}
