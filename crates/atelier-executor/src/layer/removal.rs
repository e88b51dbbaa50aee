//! Removes what scripts have written, however deep it lies and whatever permissions it has.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath;
use crate::walk::Names;

/// Removes an entry of a folder with everything in it. Returns how many files that were. It is taken
/// away under another name first, so that a part of it is never left behind.
pub(super) fn remove_from(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    trash: &Path,
) -> std::io::Result<u64> {
    if let Some(removed) = unlink(folder, name)? {
        return Ok(removed);
    }
    open_up(folder, name)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let trash = rustix::fs::open(trash, flags, Mode::empty())?;
    let gone = OsString::from(format!("gone-{:016x}", rand::random::<u64>()));
    rustix::fs::renameat(folder, name, &trash, &gone)?;
    Ok(remove_folder(trash.as_fd(), &gone)?)
}

/// Removes a file. `None` if it is a folder.
fn unlink(folder: BorrowedFd<'_>, name: &OsStr) -> Result<Option<u64>, Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => Ok(Some(1)),
        Err(Errno::NOENT) => Ok(Some(0)),
        Err(Errno::ISDIR | Errno::PERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Lets the owner list and change a folder.
fn open_up(folder: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let inner = beneath::open(folder, Path::new(name), beneath::DIRECTORY)?;
    beneath::change_mode(&inner, Mode::RWXU)?;
    Ok(inner)
}

/// Folders are moved up to the folder that is removed, so that paths stay short and few handles are
/// open, however deep they were.
fn remove_folder(parent: BorrowedFd<'_>, name: &OsStr) -> Result<u64, Errno> {
    let top = open_up(parent, name)?;
    let mut removed = 0;
    loop {
        let folders = remove_files(top.as_fd(), &mut removed)?;
        if folders.is_empty() {
            break;
        }
        for folder in folders {
            let inner = open_up(top.as_fd(), &folder)?;
            for below in remove_files(inner.as_fd(), &mut removed)? {
                open_up(inner.as_fd(), &below)?;
                let up = format!("up-{:016x}", rand::random::<u64>());
                rustix::fs::renameat(&inner, &below, &top, up)?;
            }
            rustix::fs::unlinkat(&top, &folder, AtFlags::REMOVEDIR)?;
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    Ok(removed)
}

/// Removes the files of a folder. Returns the folders in it.
fn remove_files(folder: BorrowedFd<'_>, removed: &mut u64) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    Names::open(folder, Path::new(""))?.each(|name, _| {
        names.push(name.to_owned());
        Ok(())
    })?;
    let mut folders = Vec::new();
    for name in names {
        match unlink(folder, &name)? {
            Some(files) => *removed += files,
            None => folders.push(name),
        }
    }
    Ok(folders)
}
