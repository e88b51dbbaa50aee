//! Model providers, their keys, and the default model.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// For whom a key, a default model, usage or a budget is. What is nearer to the person comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ModelLevel {
    /// The person's own agents.
    #[default]
    Own,
    /// Everybody in the tenant. Its admins may change it.
    Tenant,
    /// Everybody on the server. Admins of the tenant `models.admin_tenant` may change it.
    Server,
}

impl ModelLevel {
    pub const ALL: [Self; 3] = [Self::Own, Self::Tenant, Self::Server];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Tenant => "tenant",
            Self::Server => "server",
        }
    }
}

/// The models that your agents can use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelsOverview {
    /// The model of agents that name no model of a provider.
    pub default: DefaultModel,
    /// Other names that agents can use for models, and what they stand for.
    pub aliases: Vec<ModelAlias>,
    /// In the order in which the default model is looked for.
    pub providers: Vec<ModelProvider>,
    /// The levels at which you may change keys and the default model.
    pub may_change: Vec<ModelLevel>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DefaultModel {
    /// The model that answers, such as `openai/gpt-4o`, or `demo`; null if none can.
    pub answered_by: Option<String>,
    /// Why no model can answer.
    pub problem: Option<String>,
    /// Who has chosen it; null if it is the first model that has what it needs.
    pub chosen: Option<ModelLevel>,
}

/// Another name of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelAlias {
    pub name: String,
    /// The model that answers; null if none can.
    pub answered_by: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProvider {
    pub name: String,
    /// The protocol: `open_ai`, `open_ai_compatible`, `anthropic` or `ollama`.
    pub kind: String,
    /// The address of its API. Only people who may change the server's providers see it.
    pub base_url: Option<String>,
    /// Where the key comes from that your agents use.
    pub key: KeyOrigin,
    /// What is stored, at the levels that you may change.
    pub stored: Vec<StoredProvider>,
    /// The models that it lists or that the configuration knows.
    pub models: Vec<KnownModel>,
    /// Why it does not list its models.
    pub problem: Option<String>,
}

/// Where a provider's key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyOrigin {
    Own,
    Tenant,
    Server,
    /// The server's environment or a file.
    Configuration,
    NotNeeded,
    Missing,
    /// There is a key that cannot be used: it has to be entered again.
    Unusable,
}

/// What is stored about a provider at one level. Keys are never shown again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredProvider {
    pub level: ModelLevel,
    pub has_key: bool,
    /// The last four characters of the key, to recognise it by; empty for short keys.
    pub last_four: String,
    pub updated_at: DateTime<Utc>,
}

/// A model of a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KnownModel {
    /// The name for agents, such as `openai/gpt-4o`.
    pub name: String,
    /// Tokens that fit into a request and its answer.
    pub context_window: Option<u32>,
    /// US dollars per million input tokens.
    pub input_price: Option<f64>,
    /// US dollars per million output tokens.
    pub output_price: Option<f64>,
}

/// What to store about a provider. It has no `Debug`, which would show the key.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProviderChange {
    #[serde(default)]
    pub level: ModelLevel,
    /// The key. Absent: the stored key stays, unless the address changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(write_only, min_length = 1, max_length = 500, pattern = "^[!-~]+$")
    )]
    pub key: Option<String>,
    /// The protocol, at the level `server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The address of the API, at the level `server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 2000))]
    pub base_url: Option<String>,
    /// Prices and windows of models by their names at the provider, at the level `server`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<BTreeMap<String, ModelFigures>>,
}

/// The window and the prices of a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ModelFigures {
    /// Tokens that fit into a request and its answer.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub context_window: Option<u32>,
    /// US dollars per million input tokens.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0))]
    pub input_price: Option<f64>,
    /// US dollars per million output tokens.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0))]
    pub output_price: Option<f64>,
}

/// What to try a provider with. Absent fields are as stored. It has no `Debug`, which would show
/// the key.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProviderTest {
    #[serde(default)]
    pub level: ModelLevel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(write_only, min_length = 1, max_length = 500, pattern = "^[!-~]+$")
    )]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The name of a model at the provider [default: the usual one]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub model: Option<String>,
}

/// The outcome of a test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TestOutcome {
    pub success: bool,
    /// The model that has answered.
    pub model: Option<String>,
    pub milliseconds: Option<u64>,
    /// What went wrong and what to do about it, in plain words.
    pub problem: Option<String>,
}

/// The model to use by default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DefaultModelChange {
    #[serde(default)]
    pub level: ModelLevel,
    /// `provider/model`, `demo`, or null for the first model that has what it needs.
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub model: Option<String>,
}
