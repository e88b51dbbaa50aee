//! Errors of model requests, with messages that tell a person what to do.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("{0}")]
    Config(String),
    #[error("model {model}: unknown provider {provider} (known providers: {known})")]
    UnknownProvider { model: String, provider: String, known: String },
    #[error("no key for provider {provider}: {remedy} or pick the demo model")]
    NoKey { provider: String, remedy: String },
    #[error(
        "the key for provider {provider} cannot be decrypted with this server's secret: enter it \
         again"
    )]
    KeyUnreadable { provider: String },
    #[error(
        "the address of provider {provider} has changed since its key was entered: enter the key \
         again"
    )]
    AddressChanged { provider: String },
    #[error("{provider} has no models: add one there first")]
    NoModels { provider: String },
    #[error("{provider} rejected its key: enter a valid one")]
    KeyRefused { provider: String },
    #[error("{provider} has no credit left for this key: {message}")]
    QuotaExceeded { provider: String, message: String },
    #[error("the conversation is too long for {model}: {message}")]
    ContextExceeded { model: String, message: String },
    #[error("{provider} refused the request ({status}): {message}")]
    Refused { provider: String, status: u16, message: String },
    #[error("{provider} limits the rate of requests: {message}")]
    RateLimited { provider: String, message: String, retry_after: Option<Duration> },
    #[error("{provider} returned an error ({status}): {message}")]
    Unavailable { provider: String, status: u16, message: String, retry_after: Option<Duration> },
    #[error("{provider} cannot be reached: {reason}")]
    Unreachable { provider: String, reason: String },
    #[error("{provider} {} within {}", .phase, humantime::format_duration(*.after))]
    Timeout { provider: String, phase: TimeoutPhase, after: Duration },
    #[error("{provider} closed the connection in the middle of an answer")]
    Interrupted { provider: String },
    #[error("{provider} sent an invalid answer: {problem}")]
    Malformed { provider: String, problem: String },
}

/// The part of an answer that did not come in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutPhase {
    FirstToken,
    NextToken,
    WholeAnswer,
}

impl std::fmt::Display for TimeoutPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FirstToken => "did not begin to answer",
            Self::NextToken => "sent no more of its answer",
            Self::WholeAnswer => "did not finish its answer",
        })
    }
}

impl ModelError {
    /// Whether the same request may succeed a little later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Unavailable { .. }
            | Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Interrupted { .. } => true,
            Self::Config(_)
            | Self::UnknownProvider { .. }
            | Self::NoKey { .. }
            | Self::KeyUnreadable { .. }
            | Self::AddressChanged { .. }
            | Self::NoModels { .. }
            | Self::KeyRefused { .. }
            | Self::QuotaExceeded { .. }
            | Self::ContextExceeded { .. }
            | Self::Refused { .. }
            | Self::Malformed { .. } => false,
        }
    }

    /// How long the provider asks to wait before the next request.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Unavailable { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// The error and what to do about it, for somebody who tries a provider out.
    pub fn in_plain_words(&self) -> String {
        let advice = match self {
            Self::Unreachable { .. } => {
                "Check the address, and that the provider runs and can be reached from the server."
            }
            Self::QuotaExceeded { .. } => "Add credit at the provider, or enter another key.",
            Self::RateLimited { .. } | Self::Unavailable { .. } | Self::Timeout { .. } => {
                "Try again in a while."
            }
            Self::Refused { status: 404, .. } => "Check the address and the name of the model.",
            Self::Refused { status: 403, .. } => "The key may not use this model.",
            Self::Malformed { .. } => "Check the address: something else may answer there.",
            _ => return self.to_string(),
        };
        format!("{self}. {advice}")
    }
}
