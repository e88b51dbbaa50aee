//! Runs a program for the person at the keyboard, as if they had started it themselves.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

/// Starts the program in a folder, with the person's own environment and terminal, and waits until
/// it ends. It is not sandboxed, because the person chose it. Blocks.
pub fn run_for_person(
    program: &OsString,
    args: &[OsString],
    folder: &Path,
) -> io::Result<ExitStatus> {
    #[expect(clippy::disallowed_methods, reason = "the person chose the program")]
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).status()
}
