//! The console: static files built from `web/`, or a page that says how to build them.

use crate::{App, error::Error};
use axum::{
    Router,
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "$ATELIER_CONSOLE_DIST"]
#[allow_missing = true]
struct Files;

const NOT_BUILT: &str = include_str!("not_built.html");

/// Nothing from elsewhere, nothing inline. A frame shows PDF files that the page itself has fetched.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      font-src 'self'; connect-src 'self'; frame-src blob:; frame-ancestors 'none'; base-uri 'none'; \
                      form-action 'none'";

pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(index))
        .route("/assets/{*path}", get(async |Path(path): Path<String>| file(&format!("assets/{path}"))))
}

async fn index() -> Response {
    match Files::get("index.html") {
        Some(_) => file("index.html"),
        None => {
            with_policy(([(header::CONTENT_TYPE, "text/html; charset=utf-8")], NOT_BUILT).into_response())
        }
    }
}

fn file(path: &str) -> Response {
    let Some(file) = Files::get(path) else {
        return Error::NotFound.into_response();
    };
    let kind = mime_guess::from_path(path).first_or_octet_stream();
    // Assets carry a hash in their name; the page that names them does not.
    let caching =
        if path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let headers = [(header::CONTENT_TYPE, kind.as_ref()), (header::CACHE_CONTROL, caching)];
    with_policy((headers, file.data).into_response())
}

fn with_policy(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
