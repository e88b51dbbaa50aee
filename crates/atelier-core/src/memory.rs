//! The memory of agents: interactions, filters, and the names of collections.

use crate::{AgentId, AgentName, CallId, InteractionId, Invalid, ProjectId, UserId, agent::fits};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The kind of an interaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum InteractionType {
    TaskExecution,
    ToolCall,
    UserMessage,
    AgentResponse,
}

impl InteractionType {
    pub const ALL: [Self; 4] =
        [Self::TaskExecution, Self::ToolCall, Self::UserMessage, Self::AgentResponse];

    /// The names of all types.
    pub const NAMES: [&str; 4] = [
        Self::TaskExecution.as_str(),
        Self::ToolCall.as_str(),
        Self::UserMessage.as_str(),
        Self::AgentResponse.as_str(),
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TaskExecution => "task_execution",
            Self::ToolCall => "tool_call",
            Self::UserMessage => "user_message",
            Self::AgentResponse => "agent_response",
        }
    }
}

impl std::str::FromStr for InteractionType {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let known = Self::NAMES.join(", ");
            Invalid::new("interaction_type", format!("must be one of {known}"))
        })
    }
}

/// One entry of an agent's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Interaction {
    pub id: InteractionId,
    pub text: String,
    pub interaction_type: InteractionType,
    pub success: bool,
    /// Why the interaction failed; `None` if it succeeded.
    pub error_details: Option<String>,
    pub timestamp: DateTime<Utc>,
    pub task_id: Option<String>,
    pub session_id: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    /// Whether the owner wants the agent to always know this. It is not deleted when the memory is
    /// full or pruned.
    #[serde(default)]
    pub pinned: bool,
}

/// A text that an interaction had before its owner corrected it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FormerText {
    pub text: String,
    /// When the text was replaced.
    pub replaced_at: DateTime<Utc>,
}

/// The field of the metadata that names the tool call which the interaction is about.
const CALL: &str = "tool_id";

impl Interaction {
    /// The tool call that the interaction is about.
    pub fn call_id(&self) -> Option<CallId> {
        self.metadata.get(CALL)?.as_str()?.parse().ok()
    }
}

/// How a search compares texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum SearchMode {
    /// The search is by meaning and by words, with combined scores.
    #[default]
    Hybrid,
    /// The search is by meaning only (vectors).
    Dense,
    /// The search is by words only (BM25).
    Lexical,
}

/// The scores that a search result's total score is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScoreParts {
    /// Cosine similarity; null if the dense search did not find the text.
    pub dense: Option<f32>,
    /// BM25; null if the lexical search did not find the text.
    pub lexical: Option<f32>,
    /// The factor for the interaction's age; null unless the search favours recent ones.
    pub recency: Option<f32>,
}

/// An interaction to add to a memory. If it has no id or time, it gets them when it is stored. If
/// it has no embedding, the text is embedded later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewInteraction {
    #[serde(default)]
    pub id: Option<InteractionId>,
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 262_144))]
    pub text: String,
    pub interaction_type: InteractionType,
    #[serde(default = "yes")]
    pub success: bool,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 16_384))]
    pub error_details: Option<String>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime, pattern = "^(19[7-9][0-9]|[2-9][0-9]{3})-"))]
    pub timestamp: Option<DateTime<Utc>>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 200, pattern = r"^[^\x00]*$"))]
    pub task_id: Option<String>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 200, pattern = r"^[^\x00]*$"))]
    pub session_id: Option<String>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
    /// The vector of the text, as an export with `include_embeddings` has it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(schema_with = embedding_schema))]
    pub embedding: Option<Vec<f32>>,
    /// The embedder that made the embedding. If it is missing or is not the embedder of the server,
    /// the embedding cannot be compared with the others, so the text is embedded again.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_length = 200, pattern = r"^[^\x00]*$"))]
    pub embedder: Option<String>,
    /// Whether the agent is to always know this.
    #[serde(default)]
    pub pinned: bool,
}

/// The JSON Schema of a vector.
#[cfg(feature = "openapi")]
fn embedding_schema() -> utoipa::openapi::schema::Array {
    use utoipa::openapi::{
        ArrayBuilder, ObjectBuilder,
        schema::{SchemaType, Type},
    };
    let number =
        ObjectBuilder::new().schema_type(Type::Number).minimum(Some(-1e30)).maximum(Some(1e30));
    let or_null = SchemaType::from_iter([Type::Array, Type::Null]);
    ArrayBuilder::new().schema_type(or_null).items(number).min_items(Some(1)).build()
}

fn yes() -> bool {
    true
}

impl NewInteraction {
    /// The longest text, in bytes. Longer texts are refused; the server shortens what it adds
    /// itself ([`shortened`]).
    pub const MAX_TEXT: usize = 256 * 1024;
    /// The longest `error_details`, in bytes.
    pub const MAX_ERROR: usize = 16 * 1024;

    pub fn new(interaction_type: InteractionType, text: impl Into<String>) -> Self {
        Self {
            id: None,
            text: text.into(),
            interaction_type,
            success: true,
            error_details: None,
            timestamp: None,
            task_id: None,
            session_id: None,
            metadata: Map::new(),
            embedding: None,
            embedder: None,
            pinned: false,
        }
    }

    pub fn failed(mut self, details: &str) -> Self {
        self.success = false;
        // A fifth, because a character has at most four bytes and the note about the cut needs
        // some.
        self.error_details = Some(shortened(details, Self::MAX_ERROR / 5));
        self
    }

    pub fn of_task(mut self, task: impl ToString) -> Self {
        self.task_id = Some(task.to_string());
        self
    }

    pub fn of_session(mut self, session: impl ToString) -> Self {
        self.session_id = Some(session.to_string());
        self
    }

    pub fn of_call(self, call: CallId) -> Self {
        self.with(CALL, call.to_string())
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    pub fn validate(&self) -> Result<(), Invalid> {
        if self.text.trim().is_empty() || self.text.len() > Self::MAX_TEXT {
            return Err(Invalid::new("text", format!("must have 1 to {} bytes", Self::MAX_TEXT)));
        }
        if self.error_details.as_ref().is_some_and(|details| details.len() > Self::MAX_ERROR) {
            return Err(Invalid::new(
                "error_details",
                format!("must have at most {} bytes", Self::MAX_ERROR),
            ));
        }
        let names = [
            ("task_id", &self.task_id),
            ("session_id", &self.session_id),
            ("embedder", &self.embedder),
        ];
        for (field, name) in names {
            // PostgreSQL stores no NUL, and both databases accept the same values.
            if name.as_ref().is_some_and(|name| name.chars().count() > 200 || name.contains('\0')) {
                return Err(Invalid::new(
                    field,
                    "must have at most 200 characters, none of them NUL",
                ));
            }
        }
        if !fits(&self.metadata) {
            return Err(Invalid::new("metadata", "must be at most 65536 bytes of JSON"));
        }
        // Times outside this range cannot be stored in microseconds, or would sort before all
        // others.
        if self.timestamp.is_some_and(|time| !(0..=253_402_300_799).contains(&time.timestamp())) {
            return Err(Invalid::new("timestamp", "must be between 1970 and 9999"));
        }
        let broken =
            |vector: &[f32]| vector.is_empty() || !vector.iter().all(|value| value.abs() <= 1e30);
        if self.embedding.as_deref().is_some_and(broken) {
            return Err(Invalid::new("embedding", "must be numbers between -1e30 and 1e30"));
        }
        Ok(())
    }
}

/// Shortens a text that is too long to be remembered. The beginning and the end are kept, because
/// the request is usually at the beginning and the outcome at the end.
pub fn shortened(text: &str, max_chars: usize) -> String {
    let count = text.chars().count();
    if count <= max_chars {
        return text.to_owned();
    }
    let (head, tail) = (max_chars * 2 / 3, max_chars / 3);
    let cut = count - head - tail;
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{begin}\n[… {cut} characters …]\n{end}")
}

/// Selects interactions. A filter without conditions selects all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Filter {
    pub types: Vec<InteractionType>,
    pub success: Option<bool>,
    /// Only interactions at or after this time.
    pub from: Option<DateTime<Utc>>,
    /// Only interactions at or before this time.
    pub to: Option<DateTime<Utc>>,
    pub task_id: Option<String>,
    pub session_id: Option<String>,
}

impl Filter {
    pub fn admits(&self, interaction: &Interaction) -> bool {
        let is =
            |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        (self.types.is_empty() || self.types.contains(&interaction.interaction_type))
            && self.success.is_none_or(|success| success == interaction.success)
            && self.from.is_none_or(|from| interaction.timestamp >= from)
            && self.to.is_none_or(|to| interaction.timestamp <= to)
            && is(&self.task_id, &interaction.task_id)
            && is(&self.session_id, &interaction.session_id)
    }
}

/// The name of an agent's collection: `user{user_id}_{project_id}_{agent_name}_context`.
///
/// Ids have a fixed length, so no two projects share a name. If the agent's name is long or has
/// special characters, it is shortened and the end of the agent's id is added. The end of the id is
/// also added to a name that already looks like that, and if `with_id` is set because another
/// collection has the name.
pub fn collection_name(
    user: UserId,
    project: ProjectId,
    name: &AgentName,
    agent: AgentId,
    with_id: bool,
) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = name.as_str();
    let marked = name.len() >= 9
        && name.is_char_boundary(name.len() - 9)
        && name[name.len() - 9..].strip_prefix('_').is_some_and(|end| end.bytes().all(is_hex));
    if !with_id && !marked && name.len() <= 60 && name.chars().all(plain) {
        return format!("user{user}_{project}_{name}_context");
    }
    let short: String = name.chars().map(|c| if plain(c) { c } else { '_' }).take(60).collect();
    let id = agent.0.simple().to_string();
    // The end of the id, because ids of agents that were created together have the same beginning.
    format!("user{user}_{project}_{short}_{}_context", &id[id.len() - 8..])
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The state of an agent's collection in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CollectionState {
    /// The index has to create the collection and fill it with all interactions of its agent.
    Wanted,
    /// The index has the collection.
    Live,
    /// The agent was deleted: the collection is dropped with its interactions.
    Gone,
}

impl CollectionState {
    pub const ALL: [Self; 3] = [Self::Wanted, Self::Live, Self::Gone];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::Live => "live",
            Self::Gone => "gone",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn name(name: &str, agent: u128) -> String {
        let name = AgentName::try_from(name).expect("a name");
        collection_name(
            UserId(Uuid::nil()),
            ProjectId(Uuid::nil()),
            &name,
            AgentId(Uuid::from_u128(agent)),
            false,
        )
    }

    #[test]
    fn plain_names_stand_as_they_are_and_others_get_the_end_of_the_id() {
        let nil = Uuid::nil();
        assert_eq!(name("coder", 7), format!("user{nil}_{nil}_coder_context"));
        assert_eq!(name("a/b", 0xabc), format!("user{nil}_{nil}_a_b_00000abc_context"));
        assert_ne!(name(&"я".repeat(100), 1), name(&"я".repeat(100), 2));
        assert!(name(&"я".repeat(100), 1).len() < 200);
    }

    #[test]
    fn a_name_that_looks_like_a_shortened_one_gets_the_end_of_the_id_too() {
        assert_ne!(name("a b", 0xabc), name("a_b_00000abc", 0xdef));
    }

    #[test]
    fn new_interactions_are_bounded() {
        let new = NewInteraction::new(InteractionType::ToolCall, "text");
        assert_eq!(new.validate(), Ok(()));
        // The largest case: as many of the longest characters as possible. The server's own texts
        // are always valid.
        assert_eq!(new.clone().failed(&"\u{10ffff}".repeat(100_000)).validate(), Ok(()));
        let refused = |new: NewInteraction| new.validate().expect_err("refused").to_string();
        let details = Some("x".repeat(NewInteraction::MAX_ERROR + 1));
        assert!(
            refused(NewInteraction { error_details: details, ..new.clone() })
                .contains("error_details")
        );
        let nul = || Some("a\0b".to_owned());
        assert!(refused(NewInteraction { task_id: nul(), ..new.clone() }).contains("task_id"));
        assert!(
            refused(NewInteraction { session_id: nul(), ..new.clone() }).contains("session_id")
        );
        assert!(refused(NewInteraction { embedder: nul(), ..new }).contains("embedder"));
    }

    #[test]
    fn long_texts_keep_their_beginning_and_end() {
        assert_eq!(shortened("short", 10), "short");
        let text = format!("{}{}", "a".repeat(100), "z".repeat(100));
        let short = shortened(&text, 30);
        assert!(short.starts_with(&"a".repeat(20)) && short.ends_with(&"z".repeat(10)), "{short}");
        assert!(short.contains("170 characters"), "{short}");
    }
}
