//! The configuration of providers, their models and aliases.

use crate::ModelError;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// `[models]`: settings that apply to every provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelsConfig {
    /// Alternative names that agents can use, and their targets (`provider/model`, or `demo`).
    pub aliases: BTreeMap<String, String>,
    /// Aliases for which the demo model answers while their provider has no key.
    pub demo_without_key: Vec<String>,
    /// The provider of a model name that has no provider and that no provider lists.
    pub default_provider: String,
    /// Time to connect to a provider.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Time from the request to the first token.
    #[serde(with = "humantime_serde")]
    pub first_token_timeout: Duration,
    /// Time from one token to the next.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// Time for the whole answer, including retries.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// How often a request is retried when the provider is busy, failing or unreachable.
    pub retries: u32,
    /// The wait before the first retry; each later wait is twice as long.
    #[serde(with = "humantime_serde")]
    pub retry_wait: Duration,
}

impl Default for ModelsConfig {
    fn default() -> Self {
        Self {
            aliases: BTreeMap::from([("gpt-4".into(), "openai/gpt-4o".into())]),
            // The default model of agents, so that the very first run needs no key.
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
    /// The provider's protocol: `open_ai`, `open_ai_compatible` or `anthropic`.
    pub kind: ProviderKind,
    /// The address of the provider's API.
    pub base_url: String,
    /// The environment variable that holds the key. Without this and `key_file`, no key is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// A file that holds the key, such as a mounted secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// How many tokens a request and its answer may have, unless the model says otherwise.
    #[serde(default = "usual_window")]
    pub context_window: u32,
    /// What is known about the provider's models, by name.
    #[serde(default)]
    pub models: BTreeMap<String, ModelInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    OpenAi,
    /// Implements the original chat completions API: Ollama, vLLM, OpenRouter and many others.
    OpenAiCompatible,
    Anthropic,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelInfo {
    /// Tokens that fit into a request and its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u32>,
    /// US dollars per million input tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_price: Option<f64>,
    /// US dollars per million output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_price: Option<f64>,
    /// Whether the model refuses requests that set a temperature.
    pub fixed_temperature: bool,
}

pub type Providers = BTreeMap<String, ProviderConfig>;

fn usual_window() -> u32 {
    32_768
}

/// The built-in providers, which need nothing but a key.
pub fn known_providers() -> Providers {
    toml::from_str(include_str!("providers.toml"))
        .unwrap_or_else(|invalid| unreachable!("the built-in file is valid: {invalid}"))
}

impl ModelsConfig {
    pub(crate) fn check(&self, providers: &Providers) -> Result<(), ModelError> {
        let refuse = |problem: String| Err(ModelError::Config(problem));
        for (name, provider) in providers {
            if name.is_empty() || name.contains('/') || name == crate::DEMO {
                return refuse(format!("providers.{name}: not a valid name for a provider"));
            }
            if !provider.base_url.starts_with("http://")
                && !provider.base_url.starts_with("https://")
            {
                return refuse(format!(
                    "providers.{name}.base_url must start with https:// or http://"
                ));
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
                || target
                    .split_once('/')
                    .is_some_and(|(provider, _)| providers.contains_key(provider));
            if !known {
                return refuse(format!(
                    "models.aliases.{alias}: {target} is neither `demo` nor `provider/model` of a \
                     known provider"
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
