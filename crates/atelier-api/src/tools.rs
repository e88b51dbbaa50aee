//! Tool calls: the list of them, and what a machine reports about one.

use atelier_core::{
    ClientId,
    gate::{CallFailure, CallRating, GatedCall, ToolOutcome},
    json,
    policy::Extension,
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallList {
    pub tools: Vec<GatedCall>,
    /// How many calls there are in total.
    pub total: i64,
}

/// What the server adds to the built-in rules.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServerPolicy {
    /// The rules, in the form of the configuration's `policy`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extension: Extension,
    /// Whether commands are refused on machines that cannot sandbox them.
    pub demand_isolation: bool,
}

/// What a call would change, or why it cannot be done. In the second case the call fails and nobody
/// is asked.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum PreviewReport {
    Shown(PreviewShown),
    Failed(PreviewFailed),
}

impl<'de> Deserialize<'de> for PreviewReport {
    /// Chooses the form by whether the body has the field `error`, so that the message about a wrong
    /// body names the field that is wrong.
    fn deserialize<D: Deserializer<'de>>(body: D) -> Result<Self, D::Error> {
        let body = Value::deserialize(body)?;
        match body.get("error") {
            Some(_) => PreviewFailed::deserialize(body).map(Self::Failed),
            None => PreviewShown::deserialize(body).map(Self::Shown),
        }
        .map_err(D::Error::custom)
    }
}

/// What a call would change.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PreviewShown {
    pub client_id: ClientId,
    /// Checksum of the current file; null if it does not exist.
    pub base_checksum: Option<String>,
    /// A unified diff against the current file.
    pub diff: String,
    /// How the machine rates the call. It counts only if it is stricter than the server's rating.
    pub rating: Option<CallRating>,
    /// Whether the file would be the same afterwards, byte for byte. Then the call is done, and
    /// nobody is asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
}

/// Why a call cannot be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PreviewFailed {
    pub client_id: ClientId,
    pub error: CallFailure,
}

/// A machine's statement that it is about to run a call.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub client_id: ClientId,
    /// The attempt that the execution signal named.
    #[serde(deserialize_with = "json::whole")]
    pub attempt: u32,
}

/// The outcome of a call that a machine ran or refused.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OutcomeReport {
    pub client_id: ClientId,
    /// The attempt that the execution signal named.
    #[serde(deserialize_with = "json::whole")]
    pub attempt: u32,
    /// The tool's answer: `success`, its own fields, and on failure `error` and `code`.
    pub result: ToolOutcome,
}
