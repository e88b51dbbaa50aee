//! A model at an address: sending requests, timeouts, retries, and the meaning of error responses.

use crate::{ModelError, ModelInfo, ModelsConfig, TimeoutPhase, Usage};
use reqwest::{Request, Response, StatusCode, header::HeaderMap};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{
    error::Error as _,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) model: String,
    pub(crate) base_url: String,
    pub(crate) key: Option<SecretString>,
    pub(crate) info: ModelInfo,
    pub(crate) usual_window: u32,
    pub(crate) timeouts: Timeouts,
    pub(crate) http: reqwest::Client,
}

/// How many bytes of an error response are read, and how many characters of it are shown.
const ERROR_BYTES_READ: usize = 64 * 1024;
const ERROR_CHARS_SHOWN: usize = 500;

impl Endpoint {
    pub(crate) fn context_window(&self) -> u32 {
        self.info.context_window.unwrap_or(self.usual_window)
    }

    pub(crate) fn cost(&self, usage: &Usage) -> Option<f64> {
        let of = |tokens: u64, price: Option<f64>| {
            price.map(|price| tokens as f64 * price / 1_000_000.0)
        };
        Some(
            of(usage.input_tokens, self.info.input_price)?
                + of(usage.output_tokens, self.info.output_price)?,
        )
    }

    /// Sends a request. Every status but a success is an error.
    pub(crate) async fn send(&self, request: Request) -> Result<Response, ModelError> {
        let response = self.http.execute(request).await.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    /// Waits for `next`, for the time that is allowed before the first token or between two tokens.
    pub(crate) async fn with_timeout<T>(
        &self,
        asked: Instant,
        silent: bool,
        next: impl Future<Output = T>,
    ) -> Result<T, ModelError> {
        let (phase, after, until) = if silent {
            (TimeoutPhase::FirstToken, self.timeouts.first, asked + self.timeouts.first)
        } else {
            (TimeoutPhase::NextToken, self.timeouts.between, Instant::now() + self.timeouts.between)
        };
        tokio::time::timeout_at(until, next).await.map_err(|_| self.timed_out(phase, after))
    }

    pub(crate) fn timed_out(&self, phase: TimeoutPhase, after: Duration) -> ModelError {
        ModelError::Timeout { provider: self.provider.clone(), phase, after }
    }

    pub(crate) fn malformed(&self, problem: impl Into<String>) -> ModelError {
        ModelError::Malformed {
            provider: self.provider.clone(),
            problem: self.clean(&problem.into()),
        }
    }

    pub(crate) fn interrupted(&self) -> ModelError {
        ModelError::Interrupted { provider: self.provider.clone() }
    }

    pub(crate) fn unreachable(&self, error: reqwest::Error) -> ModelError {
        // The innermost cause is the informative one, such as "Connection refused".
        let error = error.without_url();
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            reason = deeper.to_string();
            cause = deeper.source();
        }
        ModelError::Unreachable { provider: self.provider.clone(), reason: self.clean(&reason) }
    }

    async fn refusal(&self, mut response: Response) -> ModelError {
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let mut body = Vec::new();
        // A body that cannot be read is left out: the status says enough.
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > ERROR_BYTES_READ {
                break;
            }
        }
        self.refused(status, ProviderError::read(&body), retry_after)
    }

    /// The meaning of a provider's error, whether it came as a response or inside a stream.
    pub(crate) fn refused(
        &self,
        status: StatusCode,
        error: ProviderError,
        retry_after: Option<Duration>,
    ) -> ModelError {
        let provider = self.provider.clone();
        let message = match self.clean(&error.message) {
            empty if empty.is_empty() => {
                status.canonical_reason().unwrap_or("no reason given").to_owned()
            }
            message => message,
        };
        let code = error.code.as_deref();
        match status.as_u16() {
            // The message is left out, because it may contain a part of the key.
            401 => ModelError::KeyRefused { provider },
            402 => ModelError::QuotaExceeded { provider, message },
            429 if code == Some("insufficient_quota") => {
                ModelError::QuotaExceeded { provider, message }
            }
            429 => ModelError::RateLimited { provider, message, retry_after },
            413 => ModelError::ContextExceeded { model: self.name.clone(), message },
            400 if code == Some("context_length_exceeded") => {
                ModelError::ContextExceeded { model: self.name.clone(), message }
            }
            status @ (408 | 500..) => {
                ModelError::Unavailable { provider, status, message, retry_after }
            }
            status => ModelError::Refused { provider, status, message },
        }
    }

    /// Shortens a text for display and removes the key, or a part of it, that the provider may have
    /// repeated.
    fn clean(&self, text: &str) -> String {
        let text = text.trim();
        let text = match &self.key {
            Some(key) => redact(text, key.expose_secret()),
            None => text.to_owned(),
        };
        match text.char_indices().nth(ERROR_CHARS_SHOWN) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// Shorter matches with a key may be chance and are not removed.
const MIN_KEY_MATCH: usize = 8;

/// Replaces every part of a secret in a text, unless it is very short.
fn redact(text: &str, secret: &str) -> String {
    let least = secret.len().min(MIN_KEY_MATCH);
    let is_part =
        |part: Option<&str>| part.is_some_and(|part| !part.is_empty() && secret.contains(part));
    let (mut clean, mut at) = (String::with_capacity(text.len()), 0);
    while let Some(next) = text[at..].chars().next() {
        if !is_part(text.get(at..at + least)) {
            clean.push(next);
            at += next.len_utf8();
            continue;
        }
        let mut end = at + least;
        while is_part(text.get(at..end + 1)) {
            end += 1;
        }
        clean.push_str("[key]");
        at = end;
    }
    clean
}

/// The body of an error response. OpenAI and Anthropic share this shape; other providers may send
/// anything.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ProviderError {
    #[serde(default)]
    pub(crate) message: String,
    /// Some providers send a number here, which is ignored.
    #[serde(default, deserialize_with = "string_or_none")]
    pub(crate) code: Option<String>,
}

fn string_or_none<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(serde_json::Value::deserialize(deserializer)?.as_str().map(str::to_owned))
}

impl ProviderError {
    fn read(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Wrapped {
            error: ProviderError,
        }
        match serde_json::from_slice::<Wrapped>(body) {
            Ok(wrapped) => wrapped.error,
            Err(_) => Self { message: String::from_utf8_lossy(body).into_owned(), code: None },
        }
    }
}

/// Reads `Retry-After`, which is a number of seconds or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(reqwest::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))
}

/// How long to wait for an answer, and how often to try again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    first: Duration,
    between: Duration,
    pub(crate) whole: Duration,
    retries: u32,
    retry_wait: Duration,
}

/// The longest wait before a request is sent to a provider again. People do not wait longer in
/// front of a screen.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

impl Timeouts {
    pub(crate) fn new(config: &ModelsConfig) -> Self {
        Self {
            first: config.first_token_timeout,
            between: config.stall_timeout,
            whole: config.timeout,
            retries: config.retries,
            retry_wait: config.retry_wait,
        }
    }

    /// One attempt that may take this long.
    pub(crate) fn once(time: Duration) -> Self {
        Self { first: time, between: time, whole: time, retries: 0, retry_wait: time }
    }

    pub(crate) fn retries(self) -> Retries {
        Retries { left: self.retries, wait: self.retry_wait }
    }
}

pub(crate) struct Retries {
    left: u32,
    wait: Duration,
}

impl Retries {
    /// How long to wait before the next attempt; `None` if there is none. Jitter keeps clients that
    /// failed together from returning together.
    pub(crate) fn next(&mut self, error: &ModelError) -> Option<Duration> {
        if !error.retryable() || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let wait = self.wait.mul_f64(rand::random_range(0.5..=1.0));
        self.wait = (self.wait * 2).min(MAX_RETRY_WAIT);
        match error.retry_after() {
            Some(asked) if asked > MAX_RETRY_WAIT => None,
            Some(asked) => Some(asked + wait.mul_f64(0.1)),
            None => Some(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn parts_of_a_key_are_redacted() {
        let key = "sk-0123456789abcdef";
        for (text, clean) in [
            ("bad Bearer sk-0123456789abcdef!", "bad Bearer [key]!"),
            ("bad Bearer sk-0123456", "bad Bearer [key]"),
            ("é89abcdef and 0123 and 4567", "é[key] and 0123 and 4567"),
            ("89abcde", "89abcde"),
            ("", ""),
        ] {
            assert_eq!(redact(text, key), clean);
        }
        assert_eq!(redact("the key abc is wrong", "abc"), "the key [key] is wrong");
        assert_eq!(redact("nothing to hide", ""), "nothing to hide");
    }
}
