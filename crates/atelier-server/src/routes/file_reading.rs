//! Downloads.

use crate::{
    access::OwnFiles,
    error::{Error, Result, ascii_header},
    path::{ConversationInPath, FileInPath, TenantInPath},
    query::Params,
};
use atelier_files::{Error as FilesError, VersionReader};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use serde::Deserialize;
use std::ops::Range;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
#[derive(Default)]
pub(super) struct DownloadOptions {
    /// Check the SHA-256 while sending, and close the connection before the end if it is wrong.
    /// Sends the whole file.
    #[param(default = false)]
    verify: bool,
    /// Let a browser show the file, if its type is harmless there.
    #[param(default = false)]
    inline: bool,
}

/// Download a file
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/files/{file}",
    tag = "files",
    params(TenantInPath, ConversationInPath, FileInPath, DownloadOptions), responses(
    (status = 200, description = "The content, with the checksum as its ETag",
        content_type = "application/octet-stream"),
    (status = 206, description = "The requested range", content_type = "application/octet-stream"),
    (status = 304, description = "You already have this version"),
    (status = 416, description = "The range begins after the end of the file"),
))]
pub(super) async fn download(
    own: OwnFiles,
    FileInPath(file): FileInPath,
    Params(options): Params<DownloadOptions>,
    headers: HeaderMap,
) -> Result<Response> {
    send(own.workspace.read(file, None).await?, &options, &headers).await
}

/// Download all files as a ZIP archive
#[utoipa::path(get, path = "/api/tenants/{tenant}/workspace/{conversation}/archive.zip",
    tag = "files",
    params(TenantInPath, ConversationInPath), responses(
    (status = 200, description = "The newest version of every file",
        content_type = "application/zip"),
))]
pub(super) async fn archive(own: OwnFiles) -> Result<Response> {
    let (_, body) = started(own.workspace.archive().await?, false).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/zip")),
        (
            header::CONTENT_DISPOSITION,
            HeaderValue::from_static("attachment; filename=\"workspace.zip\""),
        ),
    ];
    Ok((headers, body).into_response())
}

/// Sends one version of a file, as the options and headers of the request ask for it.
pub(super) async fn send(
    reading: VersionReader,
    options: &DownloadOptions,
    request: &HeaderMap,
) -> Result<Response> {
    let tag = format!("\"{}\"", reading.version.checksum);
    let text = |name| request.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let lists_tag = |tags: &str| {
        tags.split(',').map(str::trim).any(|it| it == "*" || it.trim_start_matches("W/") == tag)
    };
    let mut headers = headers(&reading, &tag, options.inline);
    if text(header::IF_NONE_MATCH).is_some_and(lists_tag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let size = reading.size();
    // A range of another version would not fit the part that the caller already has.
    let same_version = text(header::IF_RANGE).is_none_or(|it| it.trim() == tag);
    let range = text(header::RANGE).filter(|_| same_version && !options.verify);
    let range = range.and_then(|it| parse_range(it, size));
    let (status, range) = match range {
        None => (StatusCode::OK, 0..size),
        Some(None) => return Err(Error::Range(size)),
        Some(Some(range)) => {
            let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            headers.insert(header::CONTENT_RANGE, ascii_header(&shown));
            (StatusCode::PARTIAL_CONTENT, range)
        }
    };
    headers.insert(header::CONTENT_LENGTH, ascii_header(&(range.end - range.start).to_string()));
    let start = range.start;
    let body = match options.verify {
        true => reading.whole(true).await?,
        false => reading.part(range).await?,
    };
    let (first, body) = started(body, options.verify).await?;
    if start == 0
        && reading.version.mime_type.starts_with("text/")
        && atelier_files::is_text(&first)
    {
        // Without a charset browsers guess, and guess wrong for most languages.
        let kind = HeaderValue::from_str(&format!("{}; charset=utf-8", reading.version.mime_type));
        headers.extend(kind.ok().map(|kind| (Some(header::CONTENT_TYPE), kind)));
    }
    Ok((status, headers, body).into_response())
}

/// Waits for the first chunk, so that an object store that does not answer becomes a problem. With
/// `verify`, damaged content breaks the connection instead.
async fn started(
    mut body: BoxStream<'static, atelier_files::Result<Bytes>>,
    verify: bool,
) -> Result<(Bytes, Body)> {
    let first = match body.next().await {
        Some(Err(error)) if !(verify && matches!(error, FilesError::Damaged { .. })) => {
            return Err(error.into());
        }
        first => first,
    };
    let logged = |chunk: atelier_files::Result<Bytes>| {
        chunk.inspect_err(|error| tracing::error!(%error, "a download ended early"))
    };
    let beginning =
        first.as_ref().and_then(|first| first.as_ref().ok()).cloned().unwrap_or_default();
    Ok((beginning, Body::from_stream(futures::stream::iter(first).chain(body).map(logged))))
}

fn headers(reading: &VersionReader, tag: &str, inline: bool) -> HeaderMap {
    let version = &reading.version;
    let kind = if inline && reading.may_be_shown() { "inline" } else { "attachment" };
    let name = reading.path.file_name();
    let unknown = || HeaderValue::from_static("application/octet-stream");
    HeaderMap::from_iter([
        (
            header::CONTENT_TYPE,
            HeaderValue::from_str(&version.mime_type).unwrap_or_else(|_| unknown()),
        ),
        (header::ETAG, ascii_header(tag)),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::CONTENT_DISPOSITION, ascii_header(&disposition(kind, name))),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
        // The file is a user's, not one of our pages, so it must not act as one.
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; sandbox; frame-ancestors 'none'"),
        ),
    ])
}

/// RFC 6266: an ASCII name for old clients, and the real name in UTF-8 for all others.
fn disposition(kind: &str, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || " .-_()".contains(c);
    let fallback: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&b);
    let encoded = name.bytes().fold(String::new(), |mut text, byte| {
        match token(byte) {
            true => text.push(byte.into()),
            false => text.push_str(&format!("%{byte:02X}")),
        }
        text
    });
    format!("{kind}; filename=\"{fallback}\"; filename*=UTF-8''{encoded}")
}

/// One range of bytes: `None` if the header must be ignored, `Some(None)` if the range is empty.
fn parse_range(header: &str, size: u64) -> Option<Option<Range<u64>>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let number =
        |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    match (first, last) {
        ("", last) => {
            let length = number(last)?.min(size);
            Some((length > 0).then(|| size - length..size))
        }
        (first, "") => {
            let first = number(first)?;
            Some((first < size).then_some(first..size))
        }
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            Some((first < size).then(|| first..size.min(last.saturating_add(1))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_rfc_9110() {
        for (header, expected) in [
            ("bytes=0-0", Some(Some(0..1))),
            ("bytes=5-", Some(Some(5..10))),
            ("bytes=-3", Some(Some(7..10))),
            ("bytes=-30", Some(Some(0..10))),
            ("bytes=2-99", Some(Some(2..10))),
            ("bytes=10-", Some(None)),
            ("bytes=-0", Some(None)),
            ("bytes=3-2", None),
            ("bytes=0-1,3-4", None),
            ("bytes=+1-2", None),
            ("lines=0-1", None),
        ] {
            assert_eq!(parse_range(header, 10), expected, "{header}");
        }
    }

    #[test]
    fn a_file_name_cannot_leave_its_quotes() {
        assert_eq!(
            disposition("attachment", "a\"; filename=\"b.html\r\n"),
            "attachment; filename=\"a__ filename__b.html__\"; \
             filename*=UTF-8''a%22%3B%20filename%3D%22b.html%0D%0A"
        );
        assert!(
            disposition("inline", "отчёт.txt")
                .ends_with("filename*=UTF-8''%D0%BE%D1%82%D1%87%D1%91%D1%82.txt")
        );
    }
}
