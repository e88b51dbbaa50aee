//! How much a layer holds.

use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, Stat};

use super::scan::is_dir;
use super::{Layer, Scan};
use crate::door::stat_at;
use crate::error::Error;
use crate::walk::Names;

impl Layer<'_> {
    /// How many bytes the disk has left.
    pub(super) fn free_bytes(&self) -> u64 {
        rustix::fs::statvfs(&self.folder)
            .map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// How many bytes the layer and its `/tmp` hold. Scripts may be changing it.
    pub(super) fn used_bytes(&self) -> std::io::Result<u64> {
        let mut used = 0;
        for part in ["upper", "tmp"] {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let top = rustix::fs::open(self.folder.join(part), flags, Mode::empty())?;
            let mut todo = vec![PathBuf::new()];
            while let Some(dir) = todo.pop() {
                let Ok(mut names) = Names::open(top.as_fd(), &dir) else { continue };
                let mut found = Vec::new();
                names.each(|name, _| {
                    found.push(dir.join(name));
                    Ok(())
                })?;
                for path in found {
                    let Some(stat) = stat_at(top.as_fd(), &path)? else { continue };
                    used += bytes_of(&stat);
                    if is_dir(&stat) {
                        todo.push(path);
                    }
                }
            }
        }
        Ok(used)
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub(super) fn bytes_of(stat: &Stat) -> u64 {
    (stat.st_blocks as u64).saturating_mul(512)
}

/// How large a file claims to be. A sparse one takes as long to read as any other.
#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
pub(super) fn apparent_bytes_of(stat: &Stat) -> u64 {
    match FileType::from_raw_mode(stat.st_mode).is_file() {
        true => bytes_of(stat).max(stat.st_size as u64),
        false => bytes_of(stat),
    }
}

/// The error for a layer that has grown too large.
pub(super) fn too_large(scan: &Scan, most: u64) -> Option<Error> {
    if scan.too_many {
        return Some(Error::TooManyFiles);
    }
    (scan.bytes > most).then(|| Error::TooLarge {
        path: "the layer".to_owned(),
        size: scan.bytes,
        limit: most,
    })
}
