//! Encodings of text files: which one a file has, and how its text becomes bytes again.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Stands at the beginning of a UTF-16 file and tells the order of the bytes.
const MARK: char = '\u{feff}';
/// How many bytes are looked at to guess an encoding, from the first one that is not ASCII.
const SAMPLE: usize = 256 << 10;

/// The encoding of a text file. On the wire it is a name in lower case, such as `utf-8`,
/// `utf-16le` or `windows-1251`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextEncoding(&'static Encoding);

/// A character that an encoding does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} has no character {character:?} (U+{:04X})", encoding.name(), u32::from(*character))]
pub struct NotEncodable {
    pub character: char,
    pub encoding: TextEncoding,
}

impl TextEncoding {
    pub const UTF_8: Self = Self(UTF_8);

    /// The text of a file and its encoding; `None` if the content is not text. UTF-16 is
    /// recognised by the mark at its beginning, which does not belong to the text.
    pub fn decode(bytes: Vec<u8>) -> Option<(String, Self)> {
        let bytes = match String::from_utf8(bytes) {
            // NUL is valid UTF-8, but no text contains it.
            Ok(text) => return (!text.contains('\0')).then_some((text, Self::UTF_8)),
            Err(error) => error.into_bytes(),
        };
        let (encoding, content) = match Encoding::for_bom(&bytes) {
            Some((encoding, mark)) => (encoding, &bytes[mark..]),
            None => (guess(&bytes)?, &bytes[..]),
        };
        let text = encoding.decode_without_bom_handling_and_without_replacement(content)?;
        let is_text = !text.is_empty() && !text.chars().any(is_binary);
        is_text.then(|| (text.into_owned(), Self(encoding)))
    }

    /// The encoding of this name.
    pub fn named(name: &str) -> Option<Self> {
        Encoding::for_label(name.as_bytes()).map(Self)
    }

    pub fn name(self) -> String {
        self.0.name().to_ascii_lowercase()
    }

    /// Whether a file with this beginning is UTF-16, so that its lines do not end where a byte is
    /// a line feed.
    pub fn is_utf16(beginning: &[u8]) -> bool {
        let found = Encoding::for_bom(beginning).map(|(encoding, _)| encoding);
        found.is_some_and(|encoding| encoding != UTF_8)
    }

    /// The content of a file with this text.
    pub fn encode_file(self, text: &str) -> Result<Vec<u8>, NotEncodable> {
        if self.0 != UTF_16LE && self.0 != UTF_16BE {
            return self.encode(text);
        }
        let text = text.strip_prefix(MARK).unwrap_or(text);
        let mut bytes = self.encode(MARK.encode_utf8(&mut [0; 4]))?;
        bytes.extend(self.encode(text)?);
        Ok(bytes)
    }

    /// The bytes that add this text to a file that has content already.
    pub fn encode(self, text: &str) -> Result<Vec<u8>, NotEncodable> {
        if self.0 == UTF_16LE {
            return Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect());
        }
        if self.0 == UTF_16BE {
            return Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect());
        }
        let (bytes, _, failed) = self.0.encode(text);
        // Some encodings write a character as another one that looks like it.
        if !failed && self.reads_as(&bytes, text) {
            return Ok(bytes.into_owned());
        }
        let lost = text.chars().find(|character| !self.has(*character));
        Err(NotEncodable { character: lost.unwrap_or(char::REPLACEMENT_CHARACTER), encoding: self })
    }

    fn has(self, character: char) -> bool {
        let mut buffer = [0; 4];
        let text = character.encode_utf8(&mut buffer);
        let (bytes, _, failed) = self.0.encode(text);
        !failed && self.reads_as(&bytes, text)
    }

    fn reads_as(self, bytes: &[u8], text: &str) -> bool {
        self == Self::UTF_8
            || self.0.decode_without_bom_handling_and_without_replacement(bytes).as_deref()
                == Some(text)
    }
}

/// The most probable encoding of bytes that are not UTF-8; `None` if they are not text.
fn guess(bytes: &[u8]) -> Option<&'static Encoding> {
    if bytes.iter().any(|byte| is_binary(char::from(*byte)) && *byte < 0x80) {
        return None;
    }
    // The detector looks at a few bytes before the first one that is not ASCII.
    let start = Encoding::ascii_valid_up_to(bytes).saturating_sub(4);
    let end = bytes.len().min(start + SAMPLE);
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(&bytes[start..end], end == bytes.len());
    Some(detector.guess(None, Utf8Detection::Deny))
}

/// Whether no text contains the character: it is a control character other than a space, a line
/// break or the beginning of a terminal colour.
fn is_binary(character: char) -> bool {
    character.is_control()
        && !matches!(
            character,
            '\t' | '\n' | '\r' | '\u{8}' | '\u{b}' | '\u{c}' | '\u{1b}' | '\u{85}'
        )
}

impl Serialize for TextEncoding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> Deserialize<'de> for TextEncoding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| de::Error::custom("unknown encoding"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUSSIAN: &str = "Сообщение об ошибке: файл не найден.\r\nПроверьте путь и права.\r\n";

    fn decoded(bytes: &[u8]) -> Option<(String, String)> {
        TextEncoding::decode(bytes.to_vec()).map(|(text, encoding)| (text, encoding.name()))
    }

    fn named(name: &str) -> TextEncoding {
        TextEncoding::named(name).unwrap()
    }

    #[test]
    fn text_is_read_and_written_back_in_its_encoding() {
        for (name, text) in [
            ("utf-8", "привет\n"),
            ("utf-16le", "привет, 世界 🙂\r\n"),
            ("utf-16be", "a\n"),
            ("windows-1251", RUSSIAN),
            ("koi8-u", RUSSIAN),
            ("ibm866", RUSSIAN),
            ("windows-1252", "Voilà le café où j'étais à Noël: « déjà vu ».\n"),
            ("shift_jis", "これは日本語の文章です。ファイルが見つかりません。\n"),
            ("euc-kr", "파일을 찾을 수 없습니다. 경로를 확인하세요.\n"),
            ("gbk", "找不到文件。请检查路径和权限。这是一个测试。\n"),
        ] {
            let bytes = named(name).encode_file(text).unwrap();
            assert_eq!(decoded(&bytes), Some((text.to_owned(), name.to_owned())));
        }
    }

    #[test]
    fn mark_of_utf_16_is_written_once() {
        assert_eq!(named("utf-16le").encode_file("\u{feff}a"), Ok(b"\xff\xfea\0".to_vec()));
        assert_eq!(named("utf-16be").encode_file("a"), Ok(b"\xfe\xff\0a".to_vec()));
        assert_eq!(named("utf-16be").encode("a"), Ok(b"\0a".to_vec()));
        // UTF-8 needs no mark, so one that is there belongs to the text.
        let marked = "\u{feff}a".as_bytes();
        assert_eq!(decoded(marked), Some(("\u{feff}a".to_owned(), "utf-8".to_owned())));
    }

    #[test]
    fn what_is_not_text_has_no_encoding() {
        for binary in [
            &b"\x7fELF\x02\x01\0\xff"[..],
            b"a\0b",
            b"\xff\xfe",
            b"\xff\xfea",
            b"\xff\xfe\0\0a\0\0\0",
            b"\xfe\xff\xd8\x00",
            b"RIFF\x01\x02\x03\x04WAVE\0\xff",
            b"\x80\x01\x02\xff",
        ] {
            assert_eq!(decoded(binary), None, "{binary:?}");
        }
    }

    #[test]
    fn missing_characters_are_named() {
        let encoding = named("cp1251");
        assert_eq!(encoding.name(), "windows-1251");
        let missing = NotEncodable { character: '世', encoding };
        assert_eq!(encoding.encode_file("ок 世界"), Err(missing));
        assert_eq!(missing.to_string(), "windows-1251 has no character '世' (U+4E16)");
        // Shift_JIS would write a backslash.
        let yen = named("shift_jis").encode("¥5").unwrap_err();
        assert_eq!(yen.character, '¥');
    }
}
