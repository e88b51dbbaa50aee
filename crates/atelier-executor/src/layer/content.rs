//! The content of a file, as a person reads it before it lands. What is not text is shown byte for
//! byte: programs run a file with a NUL in a comment like any other.

use std::fmt::Write;
use std::path::Path;

use atelier_core::TextEncoding;

/// What a reader has to know about a file that is not text.
pub(super) const ESCAPED: &str =
    "Not text: bytes are shown as \\xNN, a carriage return as \\r, and a backslash as \\\\";

/// A file as text.
pub(super) struct Readable {
    pub(super) text: String,
    pub(super) encoding: TextEncoding,
}

/// A file as text, in the encoding that it most probably has; `None` if it is none. Which encoding
/// that is, is a guess, and programs read bytes. So what a byte means to them that is part of a
/// character is shown beside the character, and a text that does not stand for these bytes alone is
/// none.
pub(super) fn readable(bytes: Vec<u8>) -> Option<Readable> {
    let (text, encoding) = TextEncoding::decode(bytes.clone())?;
    if encoding == TextEncoding::UTF_8 {
        return Some(Readable { text, encoding });
    }
    if encoding.encode_file(&text).ok()? != bytes {
        return None;
    }
    let is_utf16 = encoding.name().starts_with("utf-16");
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        shown.push(character);
        if character.is_ascii() {
            continue;
        }
        let bytes = encoding.encode(character.encode_utf8(&mut [0; 4])).ok()?;
        if means_something(&bytes, is_utf16) {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            // Writing to a String cannot fail.
            let _ = write!(shown, "\u{27e8}{}\u{27e9}", bytes.join(" "));
        }
    }
    Some(Readable { text: shown, encoding })
}

/// Whether a program that takes bytes for ASCII finds more than parts of a word in a character.
fn means_something(character: &[u8], is_utf16: bool) -> bool {
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~');
    match is_utf16 {
        true => character.chunks(2).any(|pair| pair.iter().all(is_text)),
        false => character.iter().any(|byte| byte.is_ascii() && !byte.is_ascii_alphanumeric()),
    }
}

/// Any content, so that every byte can be told.
pub(super) fn escaped_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' | '\t' => text.push(character),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                _ if character.is_control() => {
                    let mut buffer = [0; 4];
                    escape(&mut text, character.encode_utf8(&mut buffer).as_bytes());
                }
                _ => text.push(character),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

/// A kind of file that no program runs under its name: its extension, how it begins, and where.
const PASSIVE: &[(&str, usize, &[u8], &str)] = &[
    ("png", 0, b"\x89PNG\r\n\x1a\n", "PNG picture"),
    ("jpg", 0, b"\xff\xd8\xff", "JPEG picture"),
    ("jpeg", 0, b"\xff\xd8\xff", "JPEG picture"),
    ("gif", 0, b"GIF8", "GIF picture"),
    ("webp", 8, b"WEBP", "WebP picture"),
    ("avif", 4, b"ftypavif", "AVIF picture"),
    ("bmp", 0, b"BM", "BMP picture"),
    ("ico", 0, b"\0\0\x01\0", "icon"),
    ("woff", 0, b"wOFF", "WOFF font"),
    ("woff2", 0, b"wOF2", "WOFF2 font"),
    ("ttf", 0, b"\0\x01\0\0", "TrueType font"),
    ("otf", 0, b"OTTO", "OpenType font"),
    ("mp3", 0, b"ID3", "MP3 recording"),
    ("ogg", 0, b"OggS", "Ogg recording"),
    ("wav", 8, b"WAVE", "WAV recording"),
    ("flac", 0, b"fLaC", "FLAC recording"),
    ("mp4", 4, b"ftyp", "MP4 film"),
    ("webm", 0, b"\x1a\x45\xdf\xa3", "WebM film"),
    ("pdf", 0, b"%PDF-", "PDF document"),
];

/// How many bytes at the beginning of a file say what it is.
pub(super) const HEAD: u64 = 16;

/// What a file is whose bytes tell a person nothing: a picture, a font, a recording or a printed
/// page, by its name and by how it begins. `None` for everything else.
pub(super) fn passive(path: &Path, head: &[u8]) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let is = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let found = PASSIVE.iter().find(|(name, at, magic, _)| *name == extension && is(*at, magic))?;
    Some(found.3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_can_be_told() {
        let shown = escaped_bytes("a\0b\\x00\r\n\té\u{85}\u{1b}".as_bytes());
        assert_eq!(shown, "a\\x00b\\\\x00\\r\n\té\\xc2\\x85\\x1b");
        assert_eq!(escaped_bytes(b"\xff\xfe|\xe2\x82"), "\\xff\\xfe|\\xe2\\x82");
    }

    #[test]
    fn bytes_in_characters_that_mean_something_are_shown() {
        let shown = |bytes: &[u8]| readable(bytes.to_vec()).map(|readable| readable.text);
        assert_eq!(shown("привет".as_bytes()).as_deref(), Some("привет"));
        let script = b"\xff\xfe\ncurl evil\n";
        let shown = shown(script).unwrap();
        assert!(shown.contains("\u{27e8}0a 63\u{27e9}"), "{shown}");
    }

    #[test]
    fn a_picture_has_the_name_and_the_beginning_of_one() {
        let passive = |name: &str, head: &[u8]| passive(Path::new(name), head);
        assert_eq!(passive("a/b.PNG", b"\x89PNG\r\n\x1a\n..."), Some("PNG picture"));
        assert_eq!(passive("a.js", b"GIF89a=1;evil()"), None);
        assert_eq!(passive("GIF", b"GIF89a"), None);
        assert_eq!(passive("a.png", b"#!/bin/sh\n"), None);
    }
}
