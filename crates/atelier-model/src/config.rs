//! The configuration of providers, their models and aliases.

use crate::ModelError;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// `[models]`: settings that apply to every provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelsConfig {
    /// Alternative names that agents can use, and their targets (`provider/model`, or `demo`).
    /// `gpt-4`, which the starter agents have, follows the default model unless it is set here.
    pub aliases: BTreeMap<String, String>,
    /// The model of agents that name none (`provider/model`, or `demo`), until somebody chooses
    /// another in the console. Without it: the first of OpenAI, Anthropic, other endpoints that are
    /// compatible with OpenAI's, and Ollama that has what it needs, or else the demo model.
    pub default_model: Option<String>,
    /// The tenant whose admins may change the server's own providers, keys and default model. An
    /// empty text means nobody.
    pub admin_tenant: String,
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
            aliases: BTreeMap::new(),
            default_model: None,
            admin_tenant: "default".into(),
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
    /// The provider's protocol: `open_ai`, `open_ai_compatible`, `anthropic` or `ollama`.
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
    /// The model that is used if this provider is the default and nobody has chosen a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_model: Option<String>,
    /// The known figures of the provider's models, by name.
    #[serde(default)]
    pub models: BTreeMap<String, ModelInfo>,
}

impl ProviderConfig {
    pub fn new(kind: ProviderKind, base_url: String) -> Self {
        Self {
            kind,
            base_url,
            key_env: None,
            key_file: None,
            context_window: usual_window(),
            default_model: None,
            models: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    OpenAi,
    /// Implements the original chat completions API: vLLM, OpenRouter and many others.
    OpenAiCompatible,
    Anthropic,
    /// Ollama, which answers like OpenAI and lists its models in its own way.
    Ollama,
}

impl ProviderKind {
    pub const ALL: [Self; 4] =
        [Self::OpenAi, Self::Anthropic, Self::OpenAiCompatible, Self::Ollama];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "open_ai",
            Self::OpenAiCompatible => "open_ai_compatible",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
        }
    }

    /// Whether all requests to such a provider need a key.
    pub fn needs_key(self) -> bool {
        matches!(self, Self::OpenAi | Self::Anthropic)
    }

    /// The position of this kind of provider in the search for the default model.
    pub(crate) fn rank(self) -> usize {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or(Self::ALL.len())
    }
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
            if !is_provider_name(name) {
                return refuse(format!("providers.{name}: not a valid name for a provider"));
            }
            if !is_address(&provider.base_url) {
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
        let aliases =
            self.aliases.iter().map(|(alias, target)| (format!("aliases.{alias}"), target));
        let default = self.default_model.iter().map(|model| ("default_model".to_owned(), model));
        for (setting, target) in aliases.chain(default) {
            let known = target == crate::DEMO
                || target
                    .split_once('/')
                    .is_some_and(|(provider, _)| providers.contains_key(provider));
            if !known {
                return refuse(format!(
                    "models.{setting}: {target} is neither `demo` nor `provider/model` of a known \
                     provider"
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

/// Whether a provider may have this name: the part of a model's name before the slash.
pub fn is_provider_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain) && name != crate::DEMO
}

/// Whether a provider may have this address.
pub fn is_address(url: &str) -> bool {
    (url.starts_with("http://") || url.starts_with("https://"))
        && reqwest::Url::parse(url).is_ok_and(|url| url.has_host())
}
