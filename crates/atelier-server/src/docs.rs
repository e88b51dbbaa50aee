//! `/openapi.json`, and a page that shows it without loading anything from elsewhere.

use crate::{App, error::Error, openapi};
use axum::{
    Router,
    body::Bytes,
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
    routing::get,
};
use std::sync::{Arc, LazyLock};
use utoipa_swagger_ui::Config;

/// Swagger UI uses inline styles, but no inline scripts.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      frame-ancestors 'none'; base-uri 'none'";

/// Built on the first request, because building it takes more memory than the rest of an idle
/// server.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let text = serde_json::to_vec(&openapi::document());
    text.unwrap_or_else(|error| unreachable!("a document of strings and lists: {error}")).into()
});

pub(crate) fn routes() -> Router<App> {
    let document = async || ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone());
    Router::new()
        .route("/openapi.json", get(document))
        .route("/docs", get(async || file("index.html")))
        .route("/docs/{*path}", get(async |Path(path): Path<String>| file(&path)))
}

fn file(path: &str) -> Response {
    let config = Arc::new(Config::from("/openapi.json"));
    let Ok(Some(file)) = utoipa_swagger_ui::serve(path, config) else {
        return Error::NotFound.into_response();
    };
    let mut bytes = file.bytes.into_owned();
    if path == "index.html" {
        // The page is served with and without a trailing slash, so its links must be absolute.
        let page = String::from_utf8_lossy(&bytes);
        bytes = page
            .replace("\"./", "\"/docs/")
            .replace("href=\"index.css", "href=\"/docs/index.css")
            .into();
    }
    let mut response = ([(header::CONTENT_TYPE, file.content_type)], bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
