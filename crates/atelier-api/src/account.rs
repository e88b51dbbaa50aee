//! Signing in, and who a token speaks for.

use atelier_core::{Role, UserId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Who a token speaks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Me {
    pub user_id: UserId,
    pub tenant: String,
    pub role: Role,
    /// When the token expires.
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    /// The code in the one-time link that the first start of the server prints.
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
