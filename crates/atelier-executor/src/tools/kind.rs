//! The kind of a file's content: text, an image or PDF (returned as base64), or anything else,
//! which is refused.

use atelier_core::gate::ContentEncoding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::{Error, Result};

/// The content as a string, and its encoding.
pub(super) fn present(path: &str, bytes: Vec<u8>) -> Result<(String, ContentEncoding)> {
    if is_picture_or_pdf(&bytes) {
        return Ok((STANDARD.encode(&bytes), ContentEncoding::Base64));
    }
    match String::from_utf8(bytes) {
        // NUL is valid UTF-8, but no text contains it.
        Ok(text) if !text.contains('\0') => Ok((text, ContentEncoding::Utf8)),
        _ => Err(Error::Binary { path: path.to_owned() }),
    }
}

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

    #[test]
    fn text_pictures_and_the_rest() {
        let shown = |bytes: &[u8]| {
            present("f", bytes.to_vec())
                .map(|(_, encoding)| encoding)
                .map_err(|e| e.code().known().unwrap())
        };
        assert_eq!(shown("привет\n".as_bytes()), Ok(ContentEncoding::Utf8));
        assert_eq!(shown(b""), Ok(ContentEncoding::Utf8));
        assert_eq!(shown(b"BM looks like text"), Ok(ContentEncoding::Utf8));
        assert_eq!(shown(b"%PDF-1.7\n\0"), Ok(ContentEncoding::Base64));
        assert_eq!(shown(b"\x89PNG\r\n\x1a\n\0"), Ok(ContentEncoding::Base64));
        assert_eq!(shown(b"RIFF\x01\x02\x03\x04WEBP"), Ok(ContentEncoding::Base64));
        for binary in
            [&b"\x7fELF\x02\x01\0"[..], b"a\0b", b"\xff\xfea\0", b"RIFF\x01\x02\x03\x04WAVE\0"]
        {
            assert_eq!(shown(binary), Err("binary_file"));
        }
    }
}
