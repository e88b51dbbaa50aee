//! Signing in, and who a token speaks for.

use atelier_core::{ConversationId, ProjectId, ProjectName, Role, TokenId, UserId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Who a token speaks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Me {
    pub user_id: UserId,
    pub tenant: String,
    pub role: Role,
    /// The project that a `client` or `agent` token is for.
    #[serde(default)]
    pub project_id: Option<ProjectId>,
    /// The conversation that an `agent` token is for, if it is for one only.
    #[serde(default)]
    pub conversation_id: Option<ConversationId>,
    /// When the token expires.
    pub expires_at: DateTime<Utc>,
}

/// What uses a sign-in session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// The console in a browser.
    Browser,
    /// The `atelier` program with a person's token.
    Cli,
    /// A machine with a `client` token.
    Client,
    /// A program with an `agent` token.
    Agent,
    /// Another program with a person's token.
    Other,
}

impl SessionKind {
    pub fn as_str(self) -> &'static str {
        match self {
            SessionKind::Browser => "browser",
            SessionKind::Cli => "cli",
            SessionKind::Client => "client",
            SessionKind::Agent => "agent",
            SessionKind::Other => "other",
        }
    }
}

/// One sign-in, with all tokens that were renewed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInSession {
    pub id: TokenId,
    pub kind: SessionKind,
    pub role: Role,
    /// The project that the session's tokens are for; null for people.
    pub project_id: Option<ProjectId>,
    /// The conversation that they are for, if it is only one.
    pub conversation_id: Option<ConversationId>,
    /// The program that used the session last.
    pub user_agent: Option<String>,
    pub created_at: DateTime<Utc>,
    /// When the session was last used, to the minute.
    pub last_used_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
    /// Whether the request that lists the sessions belongs to this session.
    pub current: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInSessions {
    pub sessions: Vec<SignInSession>,
    /// How many there are in total.
    pub total: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    /// The code of a one-time link, or of a command that connects a machine.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100))]
    pub code: String,
}

/// A new token. Send it as `Authorization: Bearer …`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    pub token: String,
    pub expires_at: DateTime<Utc>,
}

/// A link that signs another browser in once.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInLink {
    pub expires_at: DateTime<Utc>,
    /// The link under each address of the server, the best one first.
    pub links: Vec<LinkAddress>,
}

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkAddress {
    pub url: String,
    /// The link as a QR code: a text for each row, with `1` for dark and `0` for light.
    pub qr: Vec<String>,
}

/// A code that connects a machine once.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MachineCode {
    pub code: String,
    pub expires_at: DateTime<Utc>,
}

/// What a machine gets for its code.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MachineToken {
    pub token: Token,
    pub project_id: ProjectId,
    pub project_name: ProjectName,
}

/// The session of a browser. Its token is in a cookie, which scripts cannot read.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BrowserSession {
    /// Send it as `Atelier-Session: …` with every request. Keep it in the storage of the page's
    /// origin.
    pub key: String,
    /// When the session ends unless it is renewed.
    pub expires_at: DateTime<Utc>,
}

/// A limit, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limit {
    pub limit: u64,
    pub used: u64,
}

/// What one user may use of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserLimits {
    /// How many requests may begin in a second; 0 means that there is no limit.
    pub requests_per_second: u32,
    /// Requests that run at the same time.
    pub requests: Limit,
    /// Open event streams.
    pub streams: Limit,
    /// Tool calls that wait for a person or a machine, or are running.
    pub open_calls: Limit,
    /// How many of them one `agent` token may have asked for.
    pub open_calls_of_agent_token: u32,
    /// Bytes of stored tool calls, with their results.
    pub stored_call_bytes: Limit,
}
