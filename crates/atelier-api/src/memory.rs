//! What an agent remembers.

use atelier_core::{
    AgentId, Interaction, InteractionType, NewInteraction, ScoreParts, SearchMode, json,
    memory::{CollectionState, FormerText},
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ContextSearch {
    /// What to look for, in your own words.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 10_000))]
    pub query: String,
    /// The largest number of results.
    #[serde(default = "ten", deserialize_with = "json::whole")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100, default = 10))]
    pub k: u32,
    /// Only interactions of these types; of all types if empty.
    #[serde(default)]
    pub types: Vec<InteractionType>,
    /// Only interactions that succeeded (`true`) or failed (`false`).
    pub success: Option<bool>,
    pub from: Option<DateTime<Utc>>,
    pub to: Option<DateTime<Utc>>,
    #[cfg_attr(feature = "openapi", schema(pattern = r"^[^\x00]*$"))]
    pub task_id: Option<String>,
    #[cfg_attr(feature = "openapi", schema(pattern = r"^[^\x00]*$"))]
    pub session_id: Option<String>,
    #[serde(default)]
    pub mode: SearchMode,
    /// Leave out results with a lower score.
    pub min_score: Option<f32>,
    /// Favour recent interactions: one that is this many days old counts half.
    #[cfg_attr(feature = "openapi", schema(minimum = 0.01, maximum = 36_500.0))]
    pub recency_days: Option<f32>,
    /// Show only one of the texts that differ just in case, white space and final punctuation.
    #[serde(default)]
    pub unique: bool,
}

fn ten() -> u32 {
    10
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextResults {
    /// The best result comes first.
    pub results: Vec<ContextResult>,
    /// Why results may be missing: the index or the embedder did not answer. Null if all is well.
    pub degraded: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextResult {
    #[serde(flatten)]
    pub interaction: Interaction,
    /// A higher score is better. Scores of hybrid searches are between 0 and 1.
    pub score: f32,
    pub score_parts: ScoreParts,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextStats {
    pub agent_id: AgentId,
    /// The name of the agent's collection in the index.
    pub collection: String,
    /// How many interactions the agent remembers.
    pub total_vectors: u64,
    /// When there are this many, the oldest ones are deleted.
    pub max_vectors: u32,
    /// Approximate; null while the index does not answer.
    pub collection_size_mb: Option<f64>,
    pub oldest_interaction: Option<DateTime<Utc>>,
    pub newest_interaction: Option<DateTime<Utc>>,
    pub by_type: BTreeMap<InteractionType, u64>,
    /// In percent; null if there are no interactions.
    pub success_rate: Option<f64>,
    pub state: CollectionState,
    /// The embedder that makes the collection's vectors.
    pub embedder: String,
    /// How many numbers each vector has.
    pub dimension: i64,
    /// How many interactions have not reached the index yet.
    pub waiting: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub periods: Option<Vec<ContextPeriod>>,
}

impl ContextStats {
    /// Whether every kind of search finds all interactions.
    pub fn is_up_to_date(&self) -> bool {
        self.state == CollectionState::Live && self.waiting == 0
    }
}

/// The figures of one day or week.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextPeriod {
    /// The day, or the Monday of the week.
    pub start: DateTime<Utc>,
    pub total: u64,
    pub by_type: BTreeMap<InteractionType, u64>,
    /// In percent; null if there are no interactions.
    pub success_rate: Option<f64>,
}

/// What to delete: interactions that are older than `days` and have the given result and types;
/// then the oldest ones until only `max_vectors` are left. Without any of these, nothing is
/// deleted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ContextPrune {
    #[serde(default, deserialize_with = "json::whole_or_null")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 36_500))]
    pub days: Option<u32>,
    #[serde(default, deserialize_with = "json::whole_or_null")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100_000_000))]
    pub max_vectors: Option<u32>,
    pub success: Option<bool>,
    #[serde(default)]
    pub types: Vec<InteractionType>,
    /// Delete nothing; only count what would be deleted.
    #[serde(default)]
    pub dry_run: bool,
}

/// What to change in an interaction. What is left out stays as it is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ContextChange {
    /// A new text. The old one is kept in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 262_144))]
    pub text: Option<String>,
    /// Whether the agent is to always know this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// The texts that an interaction had before it was corrected.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextHistory {
    /// The oldest text comes first.
    pub versions: Vec<FormerText>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextRemoved {
    pub deleted: u64,
    pub remaining: u64,
    /// Whether nothing was deleted, and these are the numbers that a real run would give.
    pub dry_run: bool,
}

/// The content of an export; an import reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ContextFile {
    /// The agent that was exported. An import goes to the agent in the path.
    #[serde(default)]
    pub agent_id: Option<AgentId>,
    #[serde(default)]
    pub export_date: Option<DateTime<Utc>>,
    pub interactions: Vec<NewInteraction>,
    #[serde(default, deserialize_with = "whole_number")]
    pub total_interactions: Option<u64>,
}

/// Reads a whole number, also in the form `7.0`, which is the same number in JSON.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        None => Ok(None),
        Some(number) if number >= 0.0 && number.fract() == 0.0 => Ok(Some(number as u64)),
        Some(number) => Err(D::Error::custom(format!("{number} is not a whole number"))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContextImported {
    /// How many interactions were new.
    pub imported: usize,
    /// How many interactions were already there, by their ids.
    pub skipped: usize,
    /// Whether every kind of search finds them. If not, the index or the embedder is slow or
    /// unavailable, and only a search by words finds them for now.
    pub indexed: bool,
}
