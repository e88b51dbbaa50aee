//! Healthy, degraded or unhealthy, and why.

use serde::Serialize;
use utoipa::ToSchema;

/// Worse is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Healthy,
    Degraded,
    Unhealthy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Part {
    pub name: &'static str,
    pub status: Status,
    /// In a sentence for people.
    pub reason: String,
}

impl Part {
    pub fn new(name: &'static str, status: Status, reason: impl Into<String>) -> Self {
        Self { name, status, reason: reason.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Health {
    pub status: Status,
    pub parts: Vec<Part>,
}

impl Health {
    /// As healthy as the worst part.
    pub fn of(parts: Vec<Part>) -> Self {
        let status = parts.iter().map(|part| part.status).max().unwrap_or(Status::Healthy);
        Self { status, parts }
    }
}
