//! Scripts in a layer, as values: on systems without layers as well.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folders and files of one layer.
#[derive(Debug, Clone)]
pub(crate) struct LayerPlaces {
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) tmp: PathBuf,
    pub(crate) fifo: PathBuf,
    /// The file that the holder locks; it holds its process number.
    pub(crate) holder: PathBuf,
}

/// One script.
pub(crate) struct ScriptSpec<'a> {
    pub(crate) script: &'a str,
    pub(crate) time: Duration,
    /// Paths below the root that the script must not see.
    pub(crate) hidden: &'a [PathBuf],
    /// The folder that gets its output and its report.
    pub(crate) job: &'a Path,
    /// The most bytes that are kept of each output.
    pub(crate) most_output: u64,
    /// How many bytes the disk may lose while it runs.
    pub(crate) most_disk: u64,
    /// The hosts that it may connect to.
    pub(crate) hosts: &'a [String],
}

/// How a script ended, as its keeper wrote it down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptEnding {
    Exited(i32),
    Killed(i32),
    TimedOut,
    Stopped,
    /// It filled the disk.
    Full,
    /// A protected file appeared that it could have read.
    Exposed,
}

/// Why a script in the foreground was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    Cancelled,
    /// `is_full` returned true.
    Full,
}
