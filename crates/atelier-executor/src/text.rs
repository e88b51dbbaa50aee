//! Text files: read as text in any encoding, and changed in their own encoding.

use atelier_core::TextEncoding;
use atelier_core::path::WorkspacePath;

use crate::error::{Error, Result};
use crate::read::{Content, Part, checksum};
use crate::workspace::Workspace;
use crate::write::{Edit, Expect, MissingParents, Written, apply};

/// A text file, or some lines of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextContent {
    pub text: String,
    pub encoding: TextEncoding,
    /// The checksum of the bytes that were read.
    pub checksum: String,
    /// The size of the whole file, in bytes.
    pub size: u64,
}

/// A text file before a change.
pub(crate) struct TextFile {
    pub(crate) text: String,
    pub(crate) encoding: TextEncoding,
}

impl TextFile {
    /// A file that can be edited: its text can be written back as the same bytes.
    pub(crate) fn parse(path: &WorkspacePath, bytes: Vec<u8>) -> Result<Self> {
        let invalid = || Error::InvalidUtf8 { path: path.as_str().to_owned() };
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => return Ok(Self { text, encoding: TextEncoding::UTF_8 }),
            Err(error) => error.into_bytes(),
        };
        let (text, encoding) = TextEncoding::decode(bytes.clone()).ok_or_else(invalid)?;
        match encoding.encode_file(&text).ok() == Some(bytes) {
            true => Ok(Self { text, encoding }),
            false => Err(invalid()),
        }
    }

    /// The content of the file with another text.
    pub(crate) fn with_text(&self, path: &WorkspacePath, text: &str) -> Result<Vec<u8>> {
        encoded(path, self.encoding.encode_file(text))
    }

    /// The content of the file after all edits.
    pub(crate) fn edited(&self, path: &WorkspacePath, edits: &[Edit]) -> Result<(String, Vec<u8>)> {
        let text = apply(path, self.text.clone(), edits)?;
        let bytes = self.with_text(path, &text)?;
        Ok((text, bytes))
    }
}

impl Workspace {
    /// Reads a text file. Fails if the file is not text.
    pub fn read_text(&self, path: &WorkspacePath, part: Part) -> Result<TextContent> {
        let in_lines = matches!(part, Part::Head(_) | Part::Tail(_));
        if in_lines && self.is_utf16(path)? {
            return self.lines_of_whole(path, part);
        }
        let Content { bytes, checksum, size } = self.read(path, part)?;
        match TextEncoding::decode(bytes) {
            // A few lines are too little to recognise the encoding of their file.
            found
                if in_lines
                    && found.as_ref().is_none_or(|found| found.1 != TextEncoding::UTF_8) =>
            {
                self.lines_of_whole(path, part)
            }
            Some((text, encoding)) => Ok(TextContent { text, encoding, checksum, size }),
            None => Err(Error::Binary { path: path.as_str().to_owned() }),
        }
    }

    /// Replaces the whole text of a file in the encoding that the file has, or creates the file.
    pub fn write_text(
        &self,
        path: &WorkspacePath,
        text: &str,
        expect: &Expect,
        parents: MissingParents,
    ) -> Result<(Written, TextEncoding)> {
        let encoding = self.encoding_of(path);
        let bytes = encoded(path, encoding.encode_file(text))?;
        Ok((self.write(path, &bytes, expect, parents)?, encoding))
    }

    /// Adds text to the end of a file in the encoding that the file has, or creates the file.
    pub fn append_text(
        &self,
        path: &WorkspacePath,
        text: &str,
        expect: &Expect,
        parents: MissingParents,
    ) -> Result<(Written, TextEncoding)> {
        let encoding = self.encoding_of(path);
        let bytes = encoded(path, encoding.encode(text))?;
        Ok((self.append(path, &bytes, expect, parents)?, encoding))
    }

    /// The encoding in which a file is written: its own, or UTF-8 if it is not text or cannot be
    /// read. If it cannot be read, the write itself reports the reason.
    pub(crate) fn encoding_of(&self, path: &WorkspacePath) -> TextEncoding {
        let content = self.read_bytes(path).ok();
        content.and_then(TextEncoding::decode).map_or(TextEncoding::UTF_8, |(_, found)| found)
    }

    fn read_bytes(&self, path: &WorkspacePath) -> Result<Vec<u8>> {
        self.open_file(path)?.bytes(Part::Whole)
    }

    fn is_utf16(&self, path: &WorkspacePath) -> Result<bool> {
        let beginning = self.open_file(path)?.bytes(Part::Range { offset: 0, length: 2 })?;
        Ok(TextEncoding::is_utf16(&beginning))
    }

    /// The first or last lines of a text whose encoding only the whole file shows.
    fn lines_of_whole(&self, path: &WorkspacePath, part: Part) -> Result<TextContent> {
        let binary = || Error::Binary { path: path.as_str().to_owned() };
        let bytes = self.read_bytes(path)?;
        let size = bytes.len() as u64;
        let (whole, encoding) = TextEncoding::decode(bytes).ok_or_else(binary)?;
        let lines: Vec<&str> = whole.split_inclusive('\n').collect();
        let count = |lines: u64| usize::try_from(lines).unwrap_or(usize::MAX);
        let text = match part {
            Part::Head(wanted) => lines[..lines.len().min(count(wanted))].concat(),
            Part::Tail(wanted) => lines[lines.len().saturating_sub(count(wanted))..].concat(),
            Part::Whole | Part::Range { .. } => whole,
        };
        let checksum = checksum(&encoded(path, encoding.encode_file(&text))?);
        Ok(TextContent { text, encoding, checksum, size })
    }
}

pub(crate) fn encoded(
    path: &WorkspacePath,
    bytes: Result<Vec<u8>, atelier_core::NotEncodable>,
) -> Result<Vec<u8>> {
    bytes.map_err(|missing| Error::NotEncodable { path: path.as_str().to_owned(), missing })
}
