//! Rates options that no rule lists.

use super::{Judge, parse::Next};
use crate::policy::verdict::Verdict;
use sha2::{Digest, Sha256};
use std::borrow::Cow;

/// Words in the name of an unlisted option that suggest that the option runs a program or reads
/// more arguments from a file.
const SUSPICIOUS_WORDS: [&str; 22] = [
    "exec",
    "command",
    "cmd",
    "program",
    "plugin",
    "pager",
    "editor",
    "hook",
    "loader",
    "preload",
    "shell",
    "askpass",
    "from-file",
    "files-from",
    "files0",
    "wrapper",
    "script",
    "eval",
    "config",
    "upload-pack",
    "receive-pack",
    "proxy",
];

impl<'p> Judge<'p, '_> {
    /// Rates an option that no rule lists.
    pub(super) fn unlisted(&mut self, arg: &str) -> Next<'p> {
        self.unlisted = true;
        let name = arg.split('=').next().unwrap_or(arg);
        let suspicious = is_suspicious(arg);
        let verdict = if suspicious { Verdict::Deny } else { Verdict::High };
        self.raise(verdict, || {
            let name: String = name.chars().take(40).collect();
            let says = if suspicious {
                ", and its name says that it may run or load something"
            } else {
                ""
            };
            // Each unknown option is a finding of its own: a permission for one covers no other.
            let about = format!("option.unlisted {}", exactly(arg));
            (about.into(), format!("No rule knows the option {name:?}{says}.").into())
        });
        Next::Options
    }
}

/// The argument as part of a finding's name. A long one is cut, and told apart by its digest.
pub(super) fn exactly(arg: &str) -> Cow<'_, str> {
    const LONGEST: usize = 60;
    if arg.chars().count() <= LONGEST {
        return arg.into();
    }
    let start: String = arg.chars().take(LONGEST).collect();
    let digest: String =
        Sha256::digest(arg)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{start}… {digest}").into()
}

/// Whether the name of an option suggests that the option runs or loads something. `--no-pager`
/// does the opposite.
pub(super) fn is_suspicious(arg: &str) -> bool {
    let name = arg.split('=').next().unwrap_or(arg).trim_start_matches('-');
    !name.starts_with("no-") && SUSPICIOUS_WORDS.iter().any(|word| name.contains(word))
}
