//! What the entries of a layer's upper folder are.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath;
use crate::walk::Names;

pub(in crate::layer) fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_dir()
}

pub(in crate::layer) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub(in crate::layer) fn is_empty(upper: BorrowedFd<'_>, path: &Path) -> std::io::Result<bool> {
    let mut empty = true;
    Names::open(upper, path)?.each(|_, _| {
        empty = false;
        Ok(())
    })?;
    Ok(empty)
}

/// Whether a folder of the layer replaces that of the workspace.
pub(in crate::layer) fn is_opaque(upper: BorrowedFd<'_>, path: &Path) -> std::io::Result<bool> {
    let folder = beneath::open(upper, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut value = [0u8; 8];
    match rustix::fs::fgetxattr(&folder, "user.overlay.opaque", &mut value[..]) {
        Ok(length) => Ok(value.get(..length) == Some(b"y")),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
