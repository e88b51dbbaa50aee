//! What comes in with a request, taken strictly: bodies, queries, paths.

use crate::{App, error::Error};
use atelier_core::json;
use axum::{
    body::{Bytes, HttpBody},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header, request::Parts},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor},
};
use std::{collections::HashSet, convert::Infallible, fmt, str::FromStr, time::Duration};
use utoipa::IntoParams;

/// A JSON body: small enough, well formed, of the right shape. `FILES` says that it may hold a file.
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
        None => Error::MalformedJson(format!("the body broke off: {error}")),
    })?;
    Ok(body.to_bytes())
}

/// A JSON body that may be left out, or null.
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

/// Parses JSON so that the error names the field and tells bad syntax from bad values.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let UniqueKeys = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            Error::Invalid(error.to_string())
        } else {
            Error::MalformedJson(error.to_string())
        }
    })?;
    // It is JSON; what is wrong from here on is what it says.
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    json::object(serde_path_to_error::Deserializer::new(&mut text, &mut track)).map_err(|error| {
        let (path, error) = (track.path().to_string(), error.to_string());
        Error::Invalid(if path == "." { error } else { format!("{path}: {error}") })
    })
}

/// Any JSON in which no object has a key twice. Which of the two counts, readers do not agree on: what
/// one of them checked may not be what another one takes.
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
                return Err(A::Error::custom(format_args!("the key {key:?} is there twice")));
            }
            seen.insert(key);
            let UniqueKeys = entries.next_value()?;
        }
        Ok(self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// Which part of a list to give.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// At most so many.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: u32,
    /// Skip so many.
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    pub(crate) offset: u32,
}

impl Default for Paging {
    fn default() -> Self {
        Self { limit: 100, offset: 0 }
    }
}

impl FromRequestParts<App> for Paging {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let Params(paging) = Params::<Paging>::from_request_parts(parts, app).await?;
        Paging::checked(Some(paging.limit), Some(paging.offset))
    }
}

impl Paging {
    /// For queries that ask for more than a page.
    pub(crate) fn checked(limit: Option<u32>, offset: Option<u32>) -> Result<Self, Error> {
        let (limit, offset) = (limit.unwrap_or(100), offset.unwrap_or(0));
        if !(1..=1000).contains(&limit) {
            return Err(Error::Invalid("limit: must be between 1 and 1000".into()));
        }
        if offset > 1_000_000_000 {
            return Err(Error::Invalid("offset: must be at most 1000000000".into()));
        }
        Ok(Self { limit, offset })
    }
}

/// A query string of the right shape.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        match Query::<T>::from_request_parts(parts, app).await {
            Ok(Query(query)) => Ok(Params(query)),
            Err(rejection) => Err(Error::Invalid(rejection.body_text())),
        }
    }
}

/// A segment of the path. What is not even an id is not found, like an id that is nobody's.
async fn segment<T: FromStr>(parts: &mut Parts, name: &str) -> Result<T, Error> {
    let path = Path::<Vec<(String, String)>>::from_request_parts(parts, &()).await;
    let Path(segments) = path.map_err(|_| Error::NotFound)?;
    let found = segments.into_iter().find(|(key, _)| key == name).ok_or(Error::NotFound)?;
    found.1.parse().map_err(|_| Error::NotFound)
}

/// An id in the path; whose it is, is another question.
macro_rules! in_path {
    ($($extractor:ident: $id:ident in $segment:literal),+ $(,)?) => {$(
        pub(crate) struct $extractor(pub(crate) atelier_core::$id);

        impl FromRequestParts<App> for $extractor {
            type Rejection = Error;

            async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
                segment(parts, $segment).await.map(Self)
            }
        }
    )+};
}

in_path! {
    ProjectInPath: ProjectId in "project",
    CallInPath: CallId in "tool",
    ApprovalInPath: ApprovalId in "approval",
    GrantInPath: GrantId in "grant",
    InteractionInPath: InteractionId in "interaction",
    ClientInPath: ClientId in "client",
    ConversationInPath: ConversationId in "conversation",
    FileInPath: FileId in "file",
    UploadInPath: UploadId in "upload",
    SessionInPath: ConversationId in "session",
    TaskInPath: TaskId in "task",
    PlanInPath: PlanId in "plan",
}

/// A number in the path, such as a version's.
pub(crate) struct NumberInPath(pub(crate) i64);

impl FromRequestParts<App> for NumberInPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        segment(parts, "number").await.map(Self)
    }
}

/// The agent that the path points at, by id or by name.
pub(crate) struct AgentInPath(pub(crate) atelier_store::AgentRef);

impl FromRequestParts<App> for AgentInPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        segment(parts, "agent").await.map(AgentInPath)
    }
}

/// A tenant in the path; whose it is, is another question.
pub(crate) struct TenantInPath(pub(crate) atelier_core::Tenant);

impl FromRequestParts<App> for TenantInPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        segment(parts, "tenant").await.map(Self)
    }
}

/// The name of a model provider in the path.
pub(crate) struct ProviderInPath(pub(crate) String);

impl FromRequestParts<App> for ProviderInPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        // No provider's name holds NUL, and PostgreSQL cannot be asked for it.
        let name: String = segment(parts, "provider").await?;
        if name.contains('\0') { Err(Error::NotFound) } else { Ok(Self(name)) }
    }
}

/// Never refused: for a header that is optional and whose nonsense is no reason to fail.
pub(crate) struct LastEventId(pub(crate) Option<String>);

impl FromRequestParts<App> for LastEventId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        let value = parts.headers.get("last-event-id");
        Ok(LastEventId(value.map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())))
    }
}

/// RFC 7240: `Prefer: wait=30`, as far as it can be met: a request has twice `request_timeout`, of which its body may
/// take one.
pub(crate) fn preferred_wait(app: &App, headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = preferences.flat_map(|value| value.split([',', ';']));
    // RFC 7240: names in any case, room around the sign, quotes. More than there is means as long as it may be.
    let seconds = |preference: &str| {
        let (name, value) = preference.split_once('=')?;
        let value = value.trim().trim_matches('"');
        let wait = name.trim().eq_ignore_ascii_case("wait") && !value.is_empty();
        (wait && value.bytes().all(|byte| byte.is_ascii_digit())).then(|| value.parse().unwrap_or(u64::MAX))
    };
    preferences
        .find_map(seconds)
        .map(|seconds| Duration::from_secs(seconds).min(app.settings.request_timeout))
}
