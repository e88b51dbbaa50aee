//! The console: static files that were built from `web/`, or a page that says how to build them.

use crate::{App, error::Error};
use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "$ATELIER_CONSOLE_DIST"]
#[allow_missing = true]
struct Files;

const NOT_BUILT: &str = include_str!("not_built.html");

/// Nothing from other servers and nothing inline. A frame shows PDF files that the page itself
/// fetched.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; \
                      manifest-src 'self'; frame-src blob:; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'none'";

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/", get(index)).route(
        "/assets/{*path}",
        get(async |Path(path): Path<String>, headers: HeaderMap| {
            file(&format!("assets/{path}"), &headers)
        }),
    )
}

async fn index(headers: HeaderMap) -> Response {
    match Files::get("index.html") {
        Some(_) => file("index.html", &headers),
        None => with_policy(
            ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], NOT_BUILT).into_response(),
        ),
    }
}

fn file(path: &str, request: &HeaderMap) -> Response {
    let compressed = accepts_gzip(request).then(|| Files::get(&format!("{path}.gz"))).flatten();
    let encoding = compressed.is_some().then_some([(header::CONTENT_ENCODING, "gzip")]);
    let Some(file) = compressed.or_else(|| Files::get(path)) else {
        return Error::NotFound.into_response();
    };
    let kind = mime_guess::from_path(path).first_or_octet_stream();
    // Assets have a hash in their name; the page that names them does not.
    let caching = if path.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let headers = [
        (header::CONTENT_TYPE, kind.as_ref()),
        (header::CACHE_CONTROL, caching),
        (header::VARY, "accept-encoding"),
    ];
    with_policy((headers, encoding, file.data).into_response())
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let codings =
        request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|list| list.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        name.trim() == "gzip" && weight.replace(' ', "") != "q=0"
    })
}

fn with_policy(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
