//! The kind of a file's content: text in any encoding, an image or PDF (returned as base64), or
//! anything else, which is refused.

use atelier_core::gate::{BinaryEncoding, ContentEncoding};
use atelier_core::path::WorkspacePath;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::Result;
use crate::read::{Content, Part};
use crate::text::TextContent;
use crate::workspace::Workspace;

/// The content of a file as `read_file` shows it.
pub(super) struct Shown {
    pub(super) content: String,
    pub(super) encoding: ContentEncoding,
    pub(super) checksum: String,
    pub(super) size: u64,
}

/// Reads a text, an image or a PDF.
pub(super) fn present(workspace: &Workspace, path: &WorkspacePath, part: Part) -> Result<Shown> {
    let beginning = Part::Range { offset: 0, length: MAGIC_LENGTH };
    if is_picture_or_pdf(&workspace.open_file(path)?.bytes(beginning)?) {
        let Content { bytes, checksum, size } = workspace.read(path, part)?;
        let encoding = ContentEncoding::NotText(BinaryEncoding::Base64);
        return Ok(Shown { content: STANDARD.encode(&bytes), encoding, checksum, size });
    }
    let TextContent { text, encoding, checksum, size } = workspace.read_text(path, part)?;
    Ok(Shown { content: text, encoding: ContentEncoding::Text(encoding), checksum, size })
}

/// How many bytes of a file say whether it is an image or a PDF.
const MAGIC_LENGTH: u64 = 16;

/// Whether the content is an image or a PDF. The name of the file does not matter.
fn is_picture_or_pdf(bytes: &[u8]) -> bool {
    const MAGIC: &[&[u8]] = &[
        b"%PDF-",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF87a",
        b"GIF89a",
        b"II*\0",
        b"MM\0*",
        b"\0\0\x01\0",
    ];
    let riff = |kind: &[u8]| bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(kind);
    let boxed = |kinds: &[&[u8]]| {
        bytes.get(4..8) == Some(b"ftyp")
            && bytes.get(8..12).is_some_and(|brand| kinds.contains(&brand))
    };
    let bitmap = bytes.starts_with(b"BM") && bytes.get(6..10) == Some(&[0; 4]);
    MAGIC.iter().any(|magic| bytes.starts_with(magic))
        || bitmap
        || riff(b"WEBP")
        || boxed(&[b"avif", b"heic", b"heix", b"mif1"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Options;
    use crate::write::{Expect, MissingParents};
    use atelier_core::path::Roots;

    #[test]
    fn text_pictures_and_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(dir.path(), Options::default()).unwrap();
        let path = WorkspacePath::parse("f", &Roots::relative_only()).unwrap();
        let shown = |bytes: &[u8]| {
            workspace.write(&path, bytes, &Expect::Anything, MissingParents::Refuse).unwrap();
            present(&workspace, &path, Part::Whole)
                .map(|shown| serde_json::to_value(shown.encoding).unwrap())
                .map_err(|e| e.code().known().unwrap())
        };
        assert_eq!(shown("привет\n".as_bytes()), Ok("utf-8".into()));
        assert_eq!(shown(b""), Ok("utf-8".into()));
        assert_eq!(shown(b"BM looks like text"), Ok("utf-8".into()));
        assert_eq!(shown(b"\xff\xfea\0"), Ok("utf-16le".into()));
        assert_eq!(shown(b"%PDF-1.7\n\0"), Ok("base64".into()));
        assert_eq!(shown(b"\x89PNG\r\n\x1a\n\0"), Ok("base64".into()));
        assert_eq!(shown(b"RIFF\x01\x02\x03\x04WEBP"), Ok("base64".into()));
        for binary in
            [&b"\x7fELF\x02\x01\0"[..], b"a\0b", b"\xff\xfe\0\0", b"RIFF\x01\x02\x03\x04WAVE\0"]
        {
            assert_eq!(shown(binary), Err("binary_file"));
        }
    }
}
