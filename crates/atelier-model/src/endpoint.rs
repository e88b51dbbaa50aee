//! A model at an address: sending to it, waiting for it, and what its refusals mean.

use crate::{ModelError, ModelInfo, ModelsConfig, Usage, Wait};
use reqwest::{Request, Response, StatusCode, header::HeaderMap};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::{
    error::Error as _,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) model: String,
    pub(crate) base_url: String,
    pub(crate) key: Option<SecretString>,
    pub(crate) info: ModelInfo,
    pub(crate) usual_window: u32,
    pub(crate) patience: Patience,
    pub(crate) http: reqwest::Client,
}

/// How much of a refusal is read, and how much of that is passed on.
const REFUSAL_READ: usize = 64 * 1024;
const REFUSAL_SHOWN: usize = 500;

impl Endpoint {
    pub(crate) fn context_window(&self) -> u32 {
        self.info.context_window.unwrap_or(self.usual_window)
    }

    pub(crate) fn cost(&self, usage: &Usage) -> Option<f64> {
        let of = |tokens: u64, price: Option<f64>| price.map(|price| tokens as f64 * price / 1_000_000.0);
        Some(
            of(usage.input_tokens, self.info.input_price)? + of(usage.output_tokens, self.info.output_price)?,
        )
    }

    /// The response to `request`, if it is one: everything but a success is an error.
    pub(crate) async fn send(&self, request: Request) -> Result<Response, ModelError> {
        let response = self.http.execute(request).await.map_err(|error| self.unreachable(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    /// Waits for `next` as long as the silence may last: longer before the first sign of life than after it.
    pub(crate) async fn within<T>(
        &self,
        asked: Instant,
        silent: bool,
        next: impl Future<Output = T>,
    ) -> Result<T, ModelError> {
        let (wait, after, until) = if silent {
            (Wait::FirstToken, self.patience.first, asked + self.patience.first)
        } else {
            (Wait::NextToken, self.patience.between, Instant::now() + self.patience.between)
        };
        tokio::time::timeout_at(until, next).await.map_err(|_| self.timed_out(wait, after))
    }

    pub(crate) fn timed_out(&self, wait: Wait, after: Duration) -> ModelError {
        ModelError::Timeout { provider: self.provider.clone(), wait, after }
    }

    pub(crate) fn malformed(&self, problem: impl Into<String>) -> ModelError {
        ModelError::Malformed { provider: self.provider.clone(), problem: self.clean(&problem.into()) }
    }

    pub(crate) fn cut(&self) -> ModelError {
        ModelError::Cut { provider: self.provider.clone() }
    }

    pub(crate) fn unreachable(&self, error: reqwest::Error) -> ModelError {
        // The last cause is the one that says something: "Connection refused".
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
        // What cannot be read is left out: the status says enough.
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > REFUSAL_READ {
                break;
            }
        }
        let said = Complaint::read(&body);
        self.refused(status, said, retry_after)
    }

    /// What a provider's complaint means, whether it came as a status or in the middle of a stream.
    pub(crate) fn refused(
        &self,
        status: StatusCode,
        said: Complaint,
        retry_after: Option<Duration>,
    ) -> ModelError {
        let provider = self.provider.clone();
        let message = match self.clean(&said.message) {
            empty if empty.is_empty() => status.canonical_reason().unwrap_or("no reason given").to_owned(),
            message => message,
        };
        let code = said.code.as_deref();
        match status.as_u16() {
            // Its words are left out: they may hold a part of the key.
            401 => ModelError::KeyRefused { provider },
            402 => ModelError::Spent { provider, message },
            429 if code == Some("insufficient_quota") => ModelError::Spent { provider, message },
            429 => ModelError::Busy { provider, message, retry_after },
            413 => ModelError::TooLong { model: self.name.clone(), message },
            400 if code == Some("context_length_exceeded") => {
                ModelError::TooLong { model: self.name.clone(), message }
            }
            status @ (408 | 500..) => ModelError::Unavailable { provider, status, message, retry_after },
            status => ModelError::Refused { provider, status, message },
        }
    }

    /// Short enough to be shown, and without the key or a part of it, should the provider have repeated that.
    fn clean(&self, text: &str) -> String {
        let text = text.trim();
        let text = match &self.key {
            Some(key) => without(text, key.expose_secret()),
            None => text.to_owned(),
        };
        match text.char_indices().nth(REFUSAL_SHOWN) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// How much of a key may be told: as much as could be chance.
const PART_OF_KEY: usize = 8;

/// A text with every longer part of a secret taken out.
fn without(text: &str, secret: &str) -> String {
    let least = secret.len().min(PART_OF_KEY);
    let is_part = |part: Option<&str>| part.is_some_and(|part| !part.is_empty() && secret.contains(part));
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

/// What providers say when they refuse; OpenAI and Anthropic agree on the shape, and some others on none.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Complaint {
    #[serde(default)]
    pub(crate) message: String,
    /// A word, or a number at some; only words are looked at.
    #[serde(default, deserialize_with = "word")]
    pub(crate) code: Option<String>,
}

fn word<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(serde_json::Value::deserialize(deserializer)?.as_str().map(str::to_owned))
}

impl Complaint {
    fn read(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Wrapped {
            error: Complaint,
        }
        match serde_json::from_slice::<Wrapped>(body) {
            Ok(wrapped) => wrapped.error,
            Err(_) => Self { message: String::from_utf8_lossy(body).into_owned(), code: None },
        }
    }
}

/// Seconds or a date, as HTTP has it.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(reqwest::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    first: Duration,
    between: Duration,
    pub(crate) whole: Duration,
    retries: u32,
    retry_wait: Duration,
}

/// Nobody sits in front of a screen for longer; whoever asks may ask again later.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Patience {
    pub(crate) fn new(config: &ModelsConfig) -> Self {
        Self {
            first: config.first_token_timeout,
            between: config.stall_timeout,
            whole: config.timeout,
            retries: config.retries,
            retry_wait: config.retry_wait,
        }
    }

    pub(crate) fn tries(self) -> Tries {
        Tries { left: self.retries, wait: self.retry_wait }
    }
}

pub(crate) struct Tries {
    left: u32,
    wait: Duration,
}

impl Tries {
    /// How long to wait before the next try, if there is to be one. Jitter, so that many who were refused
    /// together do not come back together.
    pub(crate) fn next(&mut self, error: &ModelError) -> Option<Duration> {
        if !error.retryable() || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let wait = self.wait.mul_f64(rand::random_range(0.5..=1.0));
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        match error.retry_after() {
            Some(asked) if asked > LONGEST_WAIT => None,
            Some(asked) => Some(asked + wait.mul_f64(0.1)),
            None => Some(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn a_part_of_a_key_is_not_told() {
        let key = "sk-0123456789abcdef";
        for (text, clean) in [
            ("bad Bearer sk-0123456789abcdef!", "bad Bearer [key]!"),
            ("bad Bearer sk-0123456", "bad Bearer [key]"),
            ("é89abcdef and 0123 and 4567", "é[key] and 0123 and 4567"),
            ("89abcde", "89abcde"),
            ("", ""),
        ] {
            assert_eq!(without(text, key), clean);
        }
        assert_eq!(without("the key abc is wrong", "abc"), "the key [key] is wrong");
        assert_eq!(without("nothing to hide", ""), "nothing to hide");
    }
}
