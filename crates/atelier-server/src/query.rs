//! Query strings and request headers, read strictly.

use crate::{App, error::Error};
use axum::{
    extract::{FromRequestParts, Query},
    http::{HeaderMap, Uri, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};
use std::{convert::Infallible, time::Duration};
use url::form_urlencoded;
use utoipa::IntoParams;

/// A query string of the right shape.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        parse(&parts.uri).map(Params)
    }
}

fn parse<T: DeserializeOwned>(uri: &Uri) -> Result<T, Error> {
    match Query::try_from_uri(uri) {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(Error::Invalid(rejection.body_text())),
    }
}

/// Which page of a list to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// The largest number of entries to return.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub(crate) limit: i64,
    /// How many entries to skip.
    #[param(minimum = 0, maximum = 1_000_000_000, default = 0)]
    pub(crate) offset: i64,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 100, offset: 0 }
    }
}

impl Page {
    /// This page of a list that is known as a whole, and how many entries the list has.
    pub(crate) fn of<T>(self, all: Vec<T>) -> (Vec<T>, i64) {
        let total = all.len() as i64;
        let count = |number: i64| usize::try_from(number).unwrap_or(usize::MAX);
        (all.into_iter().skip(count(self.offset)).take(count(self.limit)).collect(), total)
    }

    fn check(self) -> Result<Self, Error> {
        if !(1..=1000).contains(&self.limit) {
            return Err(Error::Invalid("limit: must be between 1 and 1000".into()));
        }
        if !(0..=1_000_000_000).contains(&self.offset) {
            return Err(Error::Invalid("offset: must be between 0 and 1000000000".into()));
        }
        Ok(self)
    }
}

/// The filter of a list that has none.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoFilter {}

/// The query of every list: which page to return, and which entries to list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageQuery<F = NoFilter> {
    pub(crate) page: Page,
    pub(crate) filter: F,
}

impl<F: DeserializeOwned> PageQuery<F> {
    fn parse(uri: &Uri) -> Result<Self, Error> {
        // Parsed apart, because serde cannot refuse unknown fields of a struct that is flattened
        // into another.
        let mut page = form_urlencoded::Serializer::new(String::new());
        let mut filter = form_urlencoded::Serializer::new(String::new());
        for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let part = if matches!(&*key, "limit" | "offset") { &mut page } else { &mut filter };
            part.append_pair(&key, &value);
        }
        let page: Page = parse(&with_query(&page.finish())?)?;
        Ok(Self { page: page.check()?, filter: parse(&with_query(&filter.finish())?)? })
    }
}

fn with_query(query: &str) -> Result<Uri, Error> {
    format!("/?{query}")
        .parse()
        .map_err(|error| Error::Invalid(format!("the query string: {error}")))
}

impl<F: DeserializeOwned> FromRequestParts<App> for PageQuery<F> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        Self::parse(&parts.uri)
    }
}

/// The header `Last-Event-ID`. It is never refused: a stream with an unknown cursor starts with a
/// reset.
pub(crate) struct LastEventId(pub(crate) Option<String>);

impl FromRequestParts<App> for LastEventId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        let value = parts.headers.get("last-event-id");
        Ok(LastEventId(value.map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())))
    }
}

/// How long the caller wants to wait (RFC 7240, `Prefer: wait=30`), at most `request_timeout`. A
/// request has twice that time, and its body may take one half of it.
pub(crate) fn preferred_wait(app: &App, headers: &HeaderMap) -> Option<Duration> {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut preferences = preferences.flat_map(|value| value.split([',', ';']));
    // RFC 7240 allows any case, spaces around the sign, and quotes. A number that is too large
    // means "as long as possible".
    let seconds = |preference: &str| {
        let (name, value) = preference.split_once('=')?;
        let value = value.trim().trim_matches('"');
        let wait = name.trim().eq_ignore_ascii_case("wait") && !value.is_empty();
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        (wait && digits).then(|| value.parse().unwrap_or(u64::MAX))
    };
    preferences
        .find_map(seconds)
        .map(|seconds| Duration::from_secs(seconds).min(app.settings.request_timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Filter {
        status: Option<String>,
    }

    fn parse(query: &str) -> Result<PageQuery<Filter>, String> {
        let uri = format!("/my/things?{query}").parse().unwrap();
        PageQuery::parse(&uri).map_err(|error| error.to_string())
    }

    fn page(limit: i64, offset: i64, status: Option<&str>) -> PageQuery<Filter> {
        let filter = Filter { status: status.map(str::to_owned) };
        PageQuery { page: Page { limit, offset }, filter }
    }

    #[test]
    fn a_page_and_a_filter_are_read_from_one_query() {
        assert_eq!(parse(""), Ok(page(100, 0, None)));
        assert_eq!(parse("limit=1000&offset=1000000000"), Ok(page(1000, 1_000_000_000, None)));
        assert_eq!(parse("offset=7&status=a%26b&limit=1"), Ok(page(1, 7, Some("a&b"))));
        assert_eq!(parse("li%6Dit=5"), Ok(page(5, 0, None)));
    }

    #[test]
    fn pages_outside_the_limits_and_unknown_fields_are_refused() {
        for (query, problem) in [
            ("limit=0", "limit: must be between 1 and 1000"),
            ("limit=1001", "limit: must be between 1 and 1000"),
            ("offset=-1", "offset: must be between 0 and 1000000000"),
            ("offset=1000000001", "offset: must be between 0 and 1000000000"),
        ] {
            assert_eq!(parse(query), Err(problem.into()), "{query}");
        }
        for query in ["limit=all", "limit=1&limit=2", "status=a&status=b", "page=2", "limit="] {
            let problem = parse(query).unwrap_err();
            assert!(
                problem.starts_with("Failed to deserialize query string"),
                "{query}: {problem}"
            );
        }
    }
}
