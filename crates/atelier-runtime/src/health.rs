//! Whether a part is healthy, degraded or unhealthy, and why.

use serde::Serialize;
use utoipa::ToSchema;

/// How well a part works. A worse status is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Healthy,
    Degraded,
    Unhealthy,
}

/// One part that a health report is about, such as the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Part {
    pub name: &'static str,
    pub status: Status,
    /// A short reason for people.
    pub reason: String,
}

impl Part {
    pub fn new(name: &'static str, status: Status, reason: impl Into<String>) -> Self {
        Self { name, status, reason: reason.into() }
    }
}

/// The health of several parts together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Health {
    pub status: Status,
    pub parts: Vec<Part>,
}

impl Health {
    /// The health of these parts. The status is the status of the worst part.
    pub fn of(parts: Vec<Part>) -> Self {
        let status = parts.iter().map(|part| part.status).max().unwrap_or(Status::Healthy);
        Self { status, parts }
    }
}
