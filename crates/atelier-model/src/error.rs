//! What can go wrong when a model is asked, in words a person can act on.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error("{0}")]
    Config(String),
    #[error("model {model}: there is no provider {provider} (known are {known})")]
    UnknownProvider { model: String, provider: String, known: String },
    #[error("no key for provider {provider}: {remedy} or pick the demo model")]
    NoKey { provider: String, remedy: String },
    #[error("the key for provider {provider} cannot be read with this server's secret: put it in again")]
    KeyUnreadable { provider: String },
    #[error("provider {provider} does not take its key: put in a valid one")]
    KeyRefused { provider: String },
    #[error("provider {provider} has no more credit for this key: {message}")]
    Spent { provider: String, message: String },
    #[error("the conversation is too long for {model}: {message}")]
    TooLong { model: String, message: String },
    #[error("provider {provider} refused the request ({status}): {message}")]
    Refused { provider: String, status: u16, message: String },
    #[error("provider {provider} is asked too often: {message}")]
    Busy { provider: String, message: String, retry_after: Option<Duration> },
    #[error("provider {provider} is in trouble ({status}): {message}")]
    Unavailable { provider: String, status: u16, message: String, retry_after: Option<Duration> },
    #[error("provider {provider} cannot be reached: {reason}")]
    Unreachable { provider: String, reason: String },
    #[error("provider {provider} {}, for {}", .wait, humantime::format_duration(*.after))]
    Timeout { provider: String, wait: Wait, after: Duration },
    #[error("provider {provider} ended the connection in the middle of an answer")]
    Cut { provider: String },
    #[error("provider {provider} sent what is no answer: {problem}")]
    Malformed { provider: String, problem: String },
}

/// What was waited for in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    FirstToken,
    NextToken,
    WholeAnswer,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FirstToken => "did not begin to answer",
            Self::NextToken => "stopped in the middle of an answer",
            Self::WholeAnswer => "did not finish its answer",
        })
    }
}

impl ModelError {
    /// Stable, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config(_) => "invalid_model_config",
            Self::UnknownProvider { .. } => "unknown_model_provider",
            Self::NoKey { .. } => "no_model_key",
            Self::KeyUnreadable { .. } => "model_key_unreadable",
            Self::KeyRefused { .. } => "model_key_refused",
            Self::Spent { .. } => "model_quota_spent",
            Self::TooLong { .. } => "model_context_exceeded",
            Self::Refused { .. } => "model_refused",
            Self::Busy { .. } => "model_rate_limited",
            Self::Unavailable { .. } => "model_unavailable",
            Self::Unreachable { .. } => "model_unreachable",
            Self::Timeout { .. } => "model_timeout",
            Self::Cut { .. } => "model_stream_cut",
            Self::Malformed { .. } => "model_malformed_answer",
        }
    }

    /// Whether the same question may have an answer a little later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Busy { .. }
            | Self::Unavailable { .. }
            | Self::Unreachable { .. }
            | Self::Timeout { .. }
            | Self::Cut { .. } => true,
            Self::Config(_)
            | Self::UnknownProvider { .. }
            | Self::NoKey { .. }
            | Self::KeyUnreadable { .. }
            | Self::KeyRefused { .. }
            | Self::Spent { .. }
            | Self::TooLong { .. }
            | Self::Refused { .. }
            | Self::Malformed { .. } => false,
        }
    }

    /// How long the provider wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } | Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
