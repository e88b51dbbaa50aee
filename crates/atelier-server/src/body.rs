//! JSON bodies, read strictly: limited in size, well formed, without unknown or repeated fields.

use crate::{App, error::Error};
use atelier_core::json;
use axum::{
    body::{Bytes, HttpBody},
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor},
};
use std::{collections::HashSet, fmt};

/// A JSON body: small enough, well formed, of the right shape. With `FILES` it may be as large as a
/// file.
pub(crate) struct Json<T, const FILES: bool = false>(pub(crate) T);

impl<T: DeserializeOwned, const FILES: bool> FromRequest<App> for Json<T, FILES> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &App) -> Result<Self, Error> {
        let limit = if FILES { app.settings.file_body_limit } else { app.settings.body_limit };
        parse(&read(request, app, limit).await?).map(Json)
    }
}

async fn read(request: Request, app: &App, limit: usize) -> Result<Bytes, Error> {
    if !is_json(request.headers()) {
        return Err(Error::NotJson);
    }
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Error::TooLarge(limit));
    }
    let body = Limited::new(request.into_body(), limit).collect();
    let body = tokio::time::timeout(app.settings.request_timeout, body).await;
    let body = body.map_err(|_| Error::Timeout)?;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => Error::TooLarge(limit),
        None => Error::MalformedJson(format!("the body ended early: {error}")),
    })?;
    Ok(body.to_bytes())
}

/// A JSON body that may be absent or null.
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalJson<T> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &App) -> Result<Self, Error> {
        if request.body().is_end_stream() {
            return Ok(Self(T::default()));
        }
        let body = read(request, app, app.settings.body_limit).await?;
        if body.trim_ascii() == b"null" { Ok(Self(T::default())) } else { parse(&body).map(Self) }
    }
}

/// Parses JSON. Errors name the field and distinguish bad syntax from bad values.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let UniqueKeys = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            Error::Invalid(error.to_string())
        } else {
            Error::MalformedJson(error.to_string())
        }
    })?;
    // The syntax is right, so every error from here on is about a value.
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    json::object(serde_path_to_error::Deserializer::new(&mut text, &mut track)).map_err(|error| {
        let (path, error) = (track.path().to_string(), error.to_string());
        Error::Invalid(if path == "." { error } else { format!("{path}: {error}") })
    })
}

/// Any JSON in which no object repeats a key. Parsers disagree about which value of a repeated key
/// counts, so what one of them checked may not be what another one uses.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while let Some(UniqueKeys) = items.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} is repeated")));
            }
            seen.insert(key);
            let UniqueKeys = entries.next_value()?;
        }
        Ok(self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind =
        headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}
