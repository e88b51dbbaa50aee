//! Limits of tool calls. A server can configure each of them.

use serde::{Deserialize, Serialize};

const MIB: u64 = 1024 * 1024;

/// Bytes, seconds and counts that no call may exceed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The largest file that a call may read.
    pub read_bytes: u64,
    /// The largest file that a call may write.
    pub write_bytes: u64,
    /// The largest output of a command. Of a longer one, the beginning and the end are kept.
    pub output_bytes: u64,
    /// The most entries that a listing returns.
    pub list_entries: usize,
    /// The most results that a search returns.
    pub search_results: usize,
    /// How long a command may run if the call does not say.
    pub timeout_default: u32,
    /// How long a command may run if it downloads packages or repositories and the call does not
    /// say.
    pub timeout_slow: u32,
    /// The longest timeout that a call may ask for.
    pub timeout_max: u32,
    /// How long a script in a layer may run if the call does not say.
    pub shell_timeout_default: u32,
    /// The longest timeout that a call may ask for a script in a layer.
    pub shell_timeout_max: u32,
    /// The longest script that a call may run in a layer.
    pub script_bytes: u64,
    /// The most arguments of a command.
    pub arguments: usize,
    /// The longest argument of a command. Linux itself stops at 128 KiB.
    pub argument_bytes: usize,
    /// The longest command line, all arguments together.
    pub arguments_bytes: usize,
    /// The most edits of one `edit_file` call.
    pub edits: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            read_bytes: 100 * MIB,
            write_bytes: 100 * MIB,
            output_bytes: MIB,
            list_entries: 1000,
            search_results: 1000,
            timeout_default: 30,
            timeout_slow: 300,
            timeout_max: 300,
            shell_timeout_default: 120,
            shell_timeout_max: 1800,
            script_bytes: MIB,
            arguments: 4096,
            argument_bytes: 64 * 1024,
            arguments_bytes: 128 * 1024,
            edits: 1000,
        }
    }
}

impl Limits {
    /// The smaller of the two values for each limit.
    #[must_use]
    pub fn stricter(&self, other: &Limits) -> Limits {
        Limits {
            read_bytes: self.read_bytes.min(other.read_bytes),
            write_bytes: self.write_bytes.min(other.write_bytes),
            output_bytes: self.output_bytes.min(other.output_bytes),
            list_entries: self.list_entries.min(other.list_entries),
            search_results: self.search_results.min(other.search_results),
            timeout_default: self.timeout_default.min(other.timeout_default),
            timeout_slow: self.timeout_slow.min(other.timeout_slow),
            timeout_max: self.timeout_max.min(other.timeout_max),
            shell_timeout_default: self.shell_timeout_default.min(other.shell_timeout_default),
            shell_timeout_max: self.shell_timeout_max.min(other.shell_timeout_max),
            script_bytes: self.script_bytes.min(other.script_bytes),
            arguments: self.arguments.min(other.arguments),
            argument_bytes: self.argument_bytes.min(other.argument_bytes),
            arguments_bytes: self.arguments_bytes.min(other.arguments_bytes),
            edits: self.edits.min(other.edits),
        }
    }
}
