//! Searches file contents with ripgrep's engine. The files are opened by this crate, so no link
//! leads out of the workspace.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

use atelier_core::path::WorkspacePath;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use rustix::fs::{FileType, OFlags};
use serde::Serialize;

use crate::beneath;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::glob::Glob;
use crate::walk::{Ended, Kind, Order};
use crate::workspace::{Workspace, relative};

/// The longest line that `grep` returns whole. Longer lines are cut.
const MAX_LINE: usize = 2000;
/// The largest compiled pattern of `grep`, in bytes.
const MAX_PROGRAM: usize = 10 << 20;
/// The memory that one line may take in `grep`, in bytes.
const MAX_HEAP: usize = 32 << 20;

#[derive(Debug, Clone)]
pub struct GrepSpec {
    pub pattern: String,
    /// Whether the pattern is plain text.
    pub literal: bool,
    pub ignore_case: bool,
    /// Which files of a directory to search. `None` means all files that are not hidden.
    pub glob: Option<Glob>,
    /// How many lines to show before and after a match.
    pub context: u32,
    /// The largest number of matching lines.
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Relative to the workspace root.
    pub path: String,
    pub line: u64,
    pub text: String,
    /// False for a line of context.
    pub matched: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grepped {
    pub lines: Vec<Line>,
    pub matches: usize,
    pub files_searched: u64,
    /// Whether there are more matches than these.
    pub cut: bool,
}

impl Workspace {
    /// Searches a file, or every file below a directory except those that `skip` names.
    pub fn grep(
        &self,
        start: &WorkspacePath,
        spec: &GrepSpec,
        skip: impl Fn(&Path) -> bool,
        cancel: &Cancel,
    ) -> Result<Grepped> {
        let mut search = Search::new(spec, self.options().max_read, cancel)?;
        let (real, fd, stat) = self.open_for_reading(start, OFlags::RDONLY)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::RegularFile if !start.demands_directory() => {
                let (size, limit) =
                    (u64::try_from(stat.st_size).unwrap_or(0), self.options().max_read);
                if size > limit {
                    return Err(Error::TooLarge { path: start.as_str().to_owned(), size, limit });
                }
                search.file(&real, &File::from(fd));
                return if cancel.is_cancelled() {
                    Err(Error::Cancelled)
                } else {
                    Ok(search.found)
                };
            }
            _ => return Err(Error::NotAFile { path: start.as_str().to_owned() }),
        }
        drop(fd);
        let all = || Glob::parse("**/*");
        let glob = spec.glob.clone().map_or_else(all, Ok)?;
        let order = Order::ByName { keep: usize::MAX };
        let ended = self.walk(start, &glob, order, cancel, |hit| {
            if hit.kind != Kind::File || skip(&hit.path) || cancel.is_cancelled() {
                return ControlFlow::Continue(());
            }
            if let Some(file) = self.open_regular(&hit.path) {
                search.file(&hit.path, &file);
            }
            if search.found.cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        search.found.cut |= ended == Ended::Cut;
        Ok(search.found)
    }

    /// Opens a regular file. Returns `None` if the file is gone, unreadable, not regular or too
    /// large.
    fn open_regular(&self, path: &Path) -> Option<File> {
        let fd = beneath::open(self.handle(), path, OFlags::RDONLY).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let size = u64::try_from(stat.st_size).ok()?;
        (FileType::from_raw_mode(stat.st_mode).is_file() && size <= self.options().max_read)
            .then(|| fd.into())
    }

    /// Whether a path is a directory, with links inside the workspace followed.
    pub fn is_directory(&self, path: &WorkspacePath) -> bool {
        if relative(path).as_os_str().is_empty() {
            return true;
        }
        self.open_for_reading(path, beneath::DIRECTORY).is_ok()
    }
}

struct Search<'a> {
    cancel: &'a Cancel,
    /// How many bytes of a file are searched, even if the file grows.
    max_read: u64,
    matcher: RegexMatcher,
    searcher: Searcher,
    limit: usize,
    found: Grepped,
}

impl<'a> Search<'a> {
    fn new(spec: &GrepSpec, max_read: u64, cancel: &'a Cancel) -> Result<Self> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(spec.ignore_case)
            .fixed_strings(spec.literal)
            .line_terminator(Some(b'\n'))
            .size_limit(MAX_PROGRAM)
            .build(&spec.pattern)
            .map_err(|error| Error::Pattern { why: error.to_string() })?;
        let context = usize::try_from(spec.context).unwrap_or(0).min(100);
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .before_context(context)
            .after_context(context)
            .heap_limit(Some(MAX_HEAP))
            .build();
        let found = Grepped { lines: Vec::new(), matches: 0, files_searched: 0, cut: false };
        Ok(Self { cancel, max_read, matcher, searcher, limit: spec.limit, found })
    }

    fn file(&mut self, path: &Path, file: &File) {
        self.found.files_searched += 1;
        let mut collect = Collect {
            path: path.to_string_lossy().into_owned(),
            found: &mut self.found,
            limit: self.limit,
        };
        let wanted = Wanted { file: file.take(self.max_read), cancel: self.cancel };
        if let Err(error) = self.searcher.search_reader(&self.matcher, wanted, &mut collect) {
            // A file that cannot be searched (a very long line, an I/O error) does not fail the
            // search of the others.
            tracing::debug!(%error, path = %path.display(), "file not searched");
        }
    }
}

/// A reader that ends when the search is cancelled. The sink cannot do that, because it is called
/// only for matches.
struct Wanted<'a> {
    file: io::Take<&'a File>,
    cancel: &'a Cancel,
}

impl Read for Wanted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() { Ok(0) } else { self.file.read(buffer) }
    }
}

struct Collect<'a> {
    path: String,
    found: &'a mut Grepped,
    limit: usize,
}

impl Collect<'_> {
    fn push(&mut self, line: Option<u64>, bytes: &[u8], matched: bool) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let mut text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LINE)]).into_owned();
        if bytes.len() > MAX_LINE {
            text.push('…');
        }
        self.found.lines.push(Line {
            path: self.path.clone(),
            line: line.unwrap_or(0),
            text,
            matched,
        });
    }
}

impl Sink for Collect<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        if self.found.matches == self.limit {
            self.found.cut = true;
            return Ok(false);
        }
        self.found.matches += 1;
        self.push(found.line_number(), found.bytes(), true);
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, Self::Error> {
        self.push(context.line_number(), context.bytes(), false);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn spec() -> GrepSpec {
        GrepSpec {
            pattern: "needle".into(),
            literal: true,
            ignore_case: false,
            glob: None,
            context: 0,
            limit: 10,
        }
    }

    /// The file is small when it is opened.
    #[test]
    fn a_file_that_grows_is_searched_as_far_as_it_may_be_read() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"needle one\nneedle two\n").unwrap();
        io::Seek::rewind(&mut file).unwrap();
        let cancel = Cancel::new().unwrap();
        let mut search = Search::new(&spec(), 11, &cancel).unwrap();
        search.file(Path::new("growing.log"), &file);
        let lines: Vec<&str> = search.found.lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(lines, ["needle one"]);
    }
}
