//! The workspace's files as resources: listed in pages, read as text or as bytes.

use atelier_core::TextEncoding;
use atelier_executor::{Cancel, Error, Glob, Kind, Part};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::ErrorData;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};

use crate::served::ServedWorkspace;
use crate::{read, uri};

/// How many entries are examined for one page.
const PAGE: usize = 1000;

/// Returns one page of all files that are not hidden. Blocks.
pub(crate) fn list(
    served: &ServedWorkspace,
    cursor: Option<&str>,
    cancel: &Cancel,
) -> Result<ListResourcesResult, ErrorData> {
    let from: usize = match cursor {
        None => 0,
        Some(text) => {
            text.parse().map_err(|_| ErrorData::invalid_params("Invalid cursor", None))?
        }
    };
    let until =
        from.checked_add(PAGE).ok_or_else(|| ErrorData::invalid_params("Invalid cursor", None))?;
    let root = served.path(".").map_err(|failure| internal(failure.into_text()))?;
    let all = Glob::parse("**/*").map_err(|error| internal(error.to_string()))?;
    let found = served
        .workspace()
        .search(&root, &all, until, cancel)
        .map_err(|error| internal(error.to_string()))?;
    let root_name = &served.settings().root_name;
    let files = found.hits.iter().skip(from).filter(|hit| hit.kind == Kind::File);
    let resources = files
        .filter_map(|hit| {
            let path = hit.path.to_str()?;
            let name = hit.path.file_name()?.to_str()?;
            Some(Resource::new(uri::of(root_name, path), name).with_mime_type(mime(path)))
        })
        .collect();
    let mut page = ListResourcesResult::with_all_items(resources);
    page.next_cursor = (found.cut && found.hits.len() == until).then(|| until.to_string());
    Ok(page)
}

pub(crate) fn templates(served: &ServedWorkspace) -> ListResourceTemplatesResult {
    let template = format!("{}{{+path}}", uri::base(&served.settings().root_name));
    ListResourceTemplatesResult::with_all_items(vec![
        ResourceTemplate::new(template, "workspace-file")
            .with_title("File of the workspace")
            .with_description("Any file, by its path relative to the workspace's root"),
    ])
}

/// Blocks.
pub(crate) fn read(served: &ServedWorkspace, asked: &str) -> Result<ReadResourceResult, ErrorData> {
    let not_found = || {
        ErrorData::resource_not_found(
            format!("Resource not found: {asked}"),
            Some(serde_json::json!({ "uri": asked })),
        )
    };
    let raw = uri::path(&served.settings().root_name, asked).ok_or_else(not_found)?;
    // A path that is outside, hidden or absent gets the same answer.
    let path = served.path(&raw).map_err(|_| not_found())?;
    served.check_readable("read_file", &path).map_err(|_| not_found())?;
    let bytes = read::bytes(served, &path, Part::Whole).map_err(|error| match error {
        Error::Io { .. } | Error::TooLarge { .. } => internal(crate::reply::reason(&error)),
        _ => not_found(),
    })?;
    let contents = match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, asked),
        Err(error) => match TextEncoding::decode(error.as_bytes().to_vec()) {
            Some((text, _)) if !served.settings().utf8_only => ResourceContents::text(text, asked),
            _ => ResourceContents::blob(STANDARD.encode(error.as_bytes()), asked),
        },
    };
    Ok(ReadResourceResult::new(vec![contents.with_mime_type(mime(&raw))]))
}

fn mime(path: &str) -> String {
    mime_guess::from_path(path).first_raw().unwrap_or("text/plain").to_owned()
}

fn internal(text: String) -> ErrorData {
    ErrorData::internal_error(text, None)
}
