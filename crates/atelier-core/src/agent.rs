//! Agents and their configuration.

use crate::{AgentId, AgentName, Invalid, ProjectId, json, task::TaskLimits};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A configured model with a name, instructions, tools and a memory of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    pub id: AgentId,
    pub project_id: ProjectId,
    pub name: AgentName,
    pub status: AgentStatus,
    pub config: AgentConfig,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum AgentStatus {
    Active,
}

/// The prefix of the names of starter agents. `agent_coder` can also be called `coder`.
pub const STARTER_PREFIX: &str = "agent_";

/// The configuration of an agent. Every field has a default, so `{}` is a complete configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The instructions that every request to the model begins with.
    #[cfg_attr(feature = "openapi", schema(max_length = 100_000, pattern = r"^[^\x00]*$"))]
    pub system_prompt: String,
    /// The model that the agent uses: an alias, `provider/model`, or `demo`.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 200, pattern = r"^[!-~]+$")
    )]
    pub model: String,
    /// The sampling temperature that is passed to the model.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0, maximum = 2.0))]
    pub temperature: f64,
    /// The longest answer of the model, in tokens.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 128_000))]
    #[serde(deserialize_with = "json::whole")]
    pub max_tokens: u32,
    /// Names of the tools this agent may call. An empty list means all tools that its workspace
    /// offers.
    #[cfg_attr(feature = "openapi", schema(schema_with = tools_schema))]
    pub tools: Vec<String>,
    /// How many tasks of this agent may run at the same time.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 10))]
    #[serde(deserialize_with = "json::whole")]
    pub concurrency_limit: u32,
    /// How many interactions its memory keeps before the oldest are deleted.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100_000_000))]
    #[serde(deserialize_with = "json::whole")]
    pub max_vectors: u32,
    /// What a task of this agent may use. The project and the server may allow less.
    #[serde(deserialize_with = "json::object")]
    pub limits: TaskLimits,
    /// Any JSON object. The planner reads `role` and `capabilities`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
}

/// Some fields of an agent's configuration. An absent field keeps its value or, in a new agent,
/// gets its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartialAgentConfig(Map<String, Value>);

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for PartialAgentConfig {
    /// The schema of the configuration without defaults: generated clients then know that no field
    /// has to be there.
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{RefOr, Schema};
        let mut schema = AgentConfig::schema();
        if let RefOr::T(Schema::Object(config)) = &mut schema {
            config.description = Some("Some fields of an agent's configuration.".to_owned());
            config.required.clear();
            for field in config.properties.values_mut() {
                match field {
                    RefOr::T(Schema::Object(field)) => field.default = None,
                    RefOr::T(Schema::Array(field)) => field.default = None,
                    RefOr::Ref(field) => field.default = None,
                    RefOr::T(_) => {}
                }
            }
        }
        schema
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for PartialAgentConfig {
    fn schemas(
        schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>,
    ) {
        AgentConfig::schemas(schemas);
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            system_prompt: "You are a helpful assistant.".into(),
            model: "gpt-4".into(),
            temperature: 0.7,
            max_tokens: 2048,
            tools: Vec::new(),
            concurrency_limit: 3,
            max_vectors: 1_000_000,
            limits: TaskLimits::default(),
            metadata: Map::new(),
        }
    }
}

/// The most tools that an agent's configuration may name.
const MAX_TOOLS: usize = 64;
#[cfg(feature = "openapi")]
const TOOL_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$";

impl AgentConfig {
    pub fn validate(&self) -> Result<(), Invalid> {
        let range = |field, ok, problem| {
            if ok { Ok(()) } else { Err(Invalid::new(field, problem)) }
        };
        range("temperature", (0.0..=2.0).contains(&self.temperature), "must be between 0 and 2")?;
        range(
            "max_tokens",
            (1..=128_000).contains(&self.max_tokens),
            "must be between 1 and 128000",
        )?;
        range(
            "concurrency_limit",
            (1..=10).contains(&self.concurrency_limit),
            "must be between 1 and 10",
        )?;
        range(
            "max_vectors",
            (1..=100_000_000).contains(&self.max_vectors),
            "must be between 1 and 100000000",
        )?;
        range(
            "model",
            (1..=200).contains(&self.model.len())
                && self.model.bytes().all(|b| b.is_ascii_graphic()),
            "must be 1 to 200 printable ASCII characters without spaces",
        )?;
        range(
            "system_prompt",
            self.system_prompt.chars().count() <= 100_000 && !self.system_prompt.contains('\0'),
            "must have at most 100000 characters and no NUL",
        )?;
        self.limits.validate()?;
        range("metadata", fits(&self.metadata), "must be at most 65536 bytes of JSON")?;
        range(
            "tools",
            self.tools.len() <= MAX_TOOLS && self.tools.iter().all(|t| is_tool_name(t)),
            "must be at most 64 names of letters, digits, '_', '-' and '.'",
        )
    }

    /// This configuration with the fields of `changes` applied. The result is validated as a whole.
    pub fn with(&self, changes: PartialAgentConfig) -> Result<Self, Invalid> {
        let Ok(Value::Object(mut fields)) = serde_json::to_value(self) else {
            unreachable!("a configuration is an object")
        };
        fields.extend(changes.0);
        let changed: Self = serde_path_to_error::deserialize(Value::Object(fields))
            .map_err(|error| Invalid::new("config", error.to_string()))?;
        changed.validate()?;
        Ok(changed)
    }
}

/// The largest free-form JSON value, such as an agent's `metadata`, in bytes.
const MAX_FREE_FORM: usize = 64 * 1024;

/// Whether a free-form object is small enough to be stored and sent.
pub fn fits(object: &Map<String, Value>) -> bool {
    serde_json::to_string(object).is_ok_and(|json| json.len() <= MAX_FREE_FORM)
}

fn is_tool_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

#[cfg(feature = "openapi")]
fn tools_schema() -> utoipa::openapi::schema::Array {
    use utoipa::openapi::{ArrayBuilder, ObjectBuilder, schema::Type};
    ArrayBuilder::new()
        .items(ObjectBuilder::new().schema_type(Type::String).pattern(Some(TOOL_PATTERN)))
        .max_items(Some(MAX_TOOLS))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn changed(changes: Value) -> Result<AgentConfig, Invalid> {
        AgentConfig::default().with(serde_json::from_value(changes).expect("an object"))
    }

    #[test]
    fn changes_keep_what_they_do_not_name() {
        assert_eq!(
            changed(json!({"temperature": 0.1})),
            Ok(AgentConfig { temperature: 0.1, ..AgentConfig::default() })
        );
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point() {
        assert_eq!(changed(json!({"max_tokens": 4096.0})), changed(json!({"max_tokens": 4096})));
    }

    #[test]
    fn values_out_of_range_and_unknown_fields_are_refused() {
        for bad in [
            json!({"temperature": 2.1}),
            json!({"max_tokens": 0}),
            json!({"max_tokens": 128_001}),
            json!({"max_tokens": -1}),
            json!({"max_tokens": 1.5}),
            json!({"max_tokens": 1e300}),
            json!({"max_tokens": "1"}),
            json!({"concurrency_limit": 11}),
            json!({"concurrency_limit": 0}),
            json!({"model": ""}),
            json!({"model": "a b"}),
            json!({"tools": ["rm -rf"]}),
            json!({"tools": vec!["t"; 65]}),
            json!({"temprature": 1}),
            json!({"system_prompt": "\0"}),
        ] {
            assert!(changed(bad.clone()).is_err(), "{bad}");
        }
    }
}
