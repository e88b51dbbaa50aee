//! The MIME type of a file, from its content and its name.

use crate::blobs::HEAD;

const UNKNOWN: &str = "application/octet-stream";

/// The MIME type. The content decides, unless it only shows the container format: then the name
/// decides.
pub(crate) fn of(head: &[u8], name: &str) -> String {
    let named = mime_guess::from_path(name).first_raw();
    let found = infer::get(head).map(|kind| kind.mime_type());
    let kind = match (found, named) {
        // Office documents, e-books and packages are ZIP or XML files.
        (Some("application/zip" | "text/xml" | "application/x-ole-storage"), Some(named)) => named,
        // Content that looks like a web page or a script counts as one only if its name says so.
        (Some(found), Some(named)) if found.starts_with("text/") => named,
        (Some(found), None) if found.starts_with("text/") => "text/plain",
        (Some(found), _) => found,
        (None, Some(named)) => named,
        (None, None) if is_text(head) && !head.is_empty() => "text/plain",
        (None, None) => UNKNOWN,
    };
    kind.to_owned()
}

/// Whether content that begins with these bytes can be UTF-8 text.
pub fn is_text(beginning: &[u8]) -> bool {
    let head = &beginning[..beginning.len().min(HEAD)];
    let utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        // A multi-byte character may be cut at the end.
        Err(error) => error.error_len().is_none() && head.len() - error.valid_up_to() < 4,
    };
    utf8 && !head.contains(&0)
}

/// Whether a browser may show this type. Everything else is offered as a download.
pub(crate) fn may_be_shown(kind: &str) -> bool {
    matches!(
        kind,
        "text/plain"
            | "application/pdf"
            | "image/png"
            | "image/jpeg"
            | "image/gif"
            | "image/webp"
            | "image/avif"
            | "image/bmp"
            | "audio/mpeg"
            | "audio/ogg"
            | "audio/wav"
            | "video/mp4"
            | "video/webm"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_decides_unless_it_only_shows_the_container() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        for (head, name, kind) in [
            (&png[..], "photo.txt", "image/png"),
            (
                b"PK\x03\x04\0\0",
                "book.xlsx",
                "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            ),
            (b"PK\x03\x04\0\0", "things", "application/zip"),
            (b"a,b\n1,2\n", "table.csv", "text/csv"),
            (b"hello", "notes", "text/plain"),
            (b"<html><script>", "notes.txt", "text/plain"),
            (b"<html><script>", "page.html", "text/html"),
            ("привет".as_bytes(), "readme", "text/plain"),
            (b"", "empty", "application/octet-stream"),
            (b"\0\x01\x02", "what", "application/octet-stream"),
        ] {
            assert_eq!(of(head, name), kind, "{name}");
        }
    }
}
