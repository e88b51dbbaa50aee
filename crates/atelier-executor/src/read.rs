//! Reads regular files within a limit: the whole file, its first or last lines, or a range.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use atelier_core::path::WorkspacePath;
use rustix::fs::{FileType, OFlags};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::workspace::Workspace;

/// Large enough to make the cost of a system call small, and small enough to stay in the
/// processor's cache.
const CHUNK: usize = 64 << 10;
/// The most bytes that the first or last lines may have if the file is too large to read whole.
const LINES: u64 = 64 << 20;

/// The part of a file to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// The first lines. The rest of the file is not read.
    Head(u64),
    /// The last lines, read from the end.
    Tail(u64),
    Range {
        offset: u64,
        length: u64,
    },
}

/// The bytes that were read, and the checksum of these bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub checksum: String,
    /// The size of the whole file.
    pub size: u64,
}

/// An open regular file, so that the same file is judged and read.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    real: PathBuf,
    shown: String,
    size: u64,
    limit: u64,
}

impl Workspace {
    pub fn open_file(&self, path: &WorkspacePath) -> Result<OpenFile> {
        let (real, fd, stat) = self.open_for_reading(path, OFlags::RDONLY)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() || path.demands_directory() {
            return Err(Error::NotAFile { path: path.as_str().to_owned() });
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let shown = path.as_str().to_owned();
        Ok(OpenFile { file: fd.into(), real, shown, size, limit: self.options().max_read })
    }

    pub fn read(&self, path: &WorkspacePath, part: Part) -> Result<Content> {
        self.open_file(path)?.read(part)
    }
}

impl OpenFile {
    /// The path of the opened file without links, relative to the root.
    pub fn real(&self) -> &std::path::Path {
        &self.real
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read(self, part: Part) -> Result<Content> {
        let size = self.size;
        let bytes = self.bytes(part)?;
        Ok(Content { checksum: checksum(&bytes), bytes, size })
    }

    /// Reads like `read`, but without a checksum, which takes most of the time for large files.
    pub fn bytes(mut self, part: Part) -> Result<Vec<u8>> {
        // The first or last lines of a file that is too large can be read, up to a limit for very
        // long lines.
        if self.size > self.limit && matches!(part, Part::Head(_) | Part::Tail(_)) {
            self.limit = self.limit.min(LINES);
        }
        let read = match part {
            Part::Whole => self.whole(),
            Part::Head(lines) => self.head(lines),
            Part::Tail(lines) => self.tail(lines),
            Part::Range { offset, length } => self.range(offset, length),
        };
        read.map_err(|source| Error::Io { action: "read", path: self.shown.clone(), source })?
            .ok_or_else(|| Error::TooLarge {
                path: self.shown.clone(),
                size: self.size,
                limit: self.limit,
            })
    }

    // Below, `None` means that the content is larger than the limit.

    fn whole(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.size > self.limit {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.size).unwrap_or(0) + 1);
        // The size was checked, but the file may still be growing.
        (&mut self.file).take(self.limit + 1).read_to_end(&mut bytes)?;
        Ok(within(bytes, self.limit))
    }

    fn head(&mut self, lines: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; CHUNK];
        let mut left = lines;
        while left > 0 {
            let n = self.file.read(&mut chunk)?;
            if n == 0 {
                break;
            }
            let mut end = n;
            for (at, _) in chunk[..n].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                left -= 1;
                if left == 0 {
                    end = at + 1;
                    break;
                }
            }
            bytes.extend_from_slice(&chunk[..end]);
            if bytes.len() as u64 > self.limit {
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }

    fn tail(&mut self, lines: u64) -> io::Result<Option<Vec<u8>>> {
        if lines == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut start = self.file.seek(SeekFrom::End(0))?;
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        let (mut kept, mut left) = (0, lines);
        'back: while start > 0 {
            let length = start.min(CHUNK as u64);
            start -= length;
            let mut chunk = vec![0; usize::try_from(length).unwrap_or(CHUNK)];
            self.file.seek(SeekFrom::Start(start))?;
            self.file.read_exact(&mut chunk)?;
            let mut end = chunk.len();
            if chunks.is_empty() && chunk.ends_with(b"\n") {
                // The line break at the end does not start another line.
                end -= 1;
            }
            while let Some(at) = chunk[..end].iter().rposition(|byte| *byte == b'\n') {
                left -= 1;
                if left == 0 {
                    chunks.push(chunk.split_off(at + 1));
                    break 'back;
                }
                end = at;
            }
            kept += chunk.len() as u64;
            if kept > self.limit {
                return Ok(None);
            }
            chunks.push(chunk);
        }
        chunks.reverse();
        Ok(within(chunks.concat(), self.limit))
    }

    fn range(&mut self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        if offset < self.size {
            self.file.seek(SeekFrom::Start(offset))?;
            (&mut self.file).take(length.min(self.limit + 1)).read_to_end(&mut bytes)?;
        }
        Ok(within(bytes, self.limit))
    }
}

fn within(bytes: Vec<u8>, limit: u64) -> Option<Vec<u8>> {
    (bytes.len() as u64 <= limit).then_some(bytes)
}

/// The SHA-256 checksum in hexadecimal digits, as in every result.
pub fn checksum(bytes: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
