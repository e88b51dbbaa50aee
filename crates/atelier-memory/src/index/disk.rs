//! Checks whether there is space for the next write of the embedded engine.
//!
//! The engine writes into files with holes through memory maps. When the disk has no block for such
//! a page, the system ends the process (SIGBUS), and nobody gets an error that could be handled. So
//! the engine is only used while there is more space than one operation takes.

use super::{IndexError, Result};
use std::path::Path;

const MEGABYTE: u64 = 1 << 20;
/// The space that stays free on a large disk, for operations that have begun.
const MOST: u64 = 64 * MEGABYTE;
/// The space that stays free on a small disk.
const LEAST: u64 = 8 * MEGABYTE;
/// The space that a search needs: on some file systems even reading a hole takes a block.
const READING: u64 = 2 * MEGABYTE;

/// Checks that an operation can write `bytes` more than usual.
pub(super) fn check(folder: &Path, bytes: u64) -> Result<()> {
    demand(folder, |size| (size / 50).clamp(LEAST, MOST) + bytes)
}

/// Checks that a search can be made.
pub(super) fn check_for_reading(folder: &Path) -> Result<()> {
    demand(folder, |_| READING)
}

fn demand(folder: &Path, needed: impl FnOnce(u64) -> u64) -> Result<()> {
    let disk = rustix::fs::statvfs(folder).map_err(std::io::Error::from)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = needed(disk.f_blocks.saturating_mul(disk.f_frsize));
    if free >= needed {
        return Ok(());
    }
    Err(IndexError::DiskFull {
        folder: folder.display().to_string(),
        free: free / MEGABYTE,
        needed: needed.div_ceil(MEGABYTE),
    })
}
