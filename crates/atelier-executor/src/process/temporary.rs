//! The temporary folder of a command, which may contain lent credentials. It is locked while it is
//! in use, so that folders of killed processes can be distinguished from folders in use.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::git::LENT;
use crate::error::{Error, Result};

/// A folder is lost only if another process sweeps in the moment in which it is created.
const TRIES: usize = 16;

/// A temporary folder that is deleted when this value is dropped.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    /// `None` where folders cannot be locked (NFS). Then no other process takes them for leftovers
    /// either.
    _lock: Option<OwnedFd>,
}

impl Temporary {
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        for _ in 0..TRIES {
            let path = parent.join(format!("{:016x}", rand::random::<u64>()));
            let fail = |source: io::Error| Error::Io {
                action: "make",
                path: path.display().to_string(),
                source,
            };
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(fail)?;
            match lock(&path) {
                // A sweep holds the lock until the folder is gone, so a folder that exists now
                // stays.
                Ok(lock) if path.exists() => return Ok(Self { path, _lock: Some(lock) }),
                Ok(_) | Err(Errno::NOENT | Errno::WOULDBLOCK) => {}
                Err(Errno::BADF | Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    return Ok(Self { path, _lock: None });
                }
                Err(errno) => return Err(fail(errno.into())),
            }
        }
        let source = io::Error::other("another process removes every temporary folder");
        Err(Error::Io { action: "make", path: parent.display().to_string(), source })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Deletes folders of runs whose process ended before it could delete them.
pub(crate) fn sweep(parent: &Path) {
    let entries = match std::fs::read_dir(parent) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, path = %parent.display(), "cannot look for leftover folders of \
                commands");
            return;
        }
    };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        let path = entry.path();
        let locked = lock(&path).or_else(|errno| match errno {
            // The command has removed the owner's permissions. Only the permissions of this folder
            // are restored before it is known that the folder is a leftover.
            Errno::ACCESS => open(&path, parent).map_err(|_| errno).and_then(|_| lock(&path)),
            _ => Err(errno),
        });
        // The folder is in use, already gone, or on a file system without locks.
        let Ok(_lock) = locked else { continue };
        remove(&path);
    }
}

/// The lock is held until the handle is closed, at the latest when the process ends. Commands do
/// not inherit it.
fn lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

fn remove(path: &Path) {
    // Credentials are deleted first, so that nothing else can prevent it. Usually there are none.
    std::fs::remove_file(path.join(LENT)).ok();
    let removed = std::fs::remove_dir_all(path).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            open_up(path).and_then(|()| std::fs::remove_dir_all(path))
        }
        _ => Err(error),
    });
    if let Err(error) = removed {
        tracing::warn!(%error, path = %path.display(), "cannot remove a command's temporary \
            folder");
    }
}

/// Restores the permissions of a folder below `top`, and names the folder by its handle, so that
/// nobody can put a link in its place.
#[cfg(target_os = "linux")]
fn open(dir: &Path, top: &Path) -> io::Result<Opened> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::open(dir, flags, Mode::empty())?;
    let name = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    // A process that escaped from the command may have swapped in a link.
    if !std::fs::read_link(&name)?.starts_with(top.canonicalize()?) {
        return Err(io::Error::other("the folder was moved"));
    }
    std::fs::set_permissions(&name, std::fs::Permissions::from_mode(0o700))?;
    Ok(Opened { name, _handle: Some(handle) })
}

#[cfg(not(target_os = "linux"))]
fn open(dir: &Path, _: &Path) -> io::Result<Opened> {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    Ok(Opened { name: dir.to_owned(), _handle: None })
}

struct Opened {
    name: PathBuf,
    /// The handle that the name refers to.
    _handle: Option<OwnedFd>,
}

/// Folders without permissions cannot be emptied, so their permissions are restored first.
pub(crate) fn open_up(path: &Path) -> io::Result<()> {
    let mut todo = vec![path.to_owned()];
    while let Some(dir) = todo.pop() {
        let opened = open(&dir, path)?;
        for entry in std::fs::read_dir(&opened.name)? {
            let entry = entry?;
            // For a link, this reports the link itself. No link is followed.
            if entry.file_type()?.is_dir() {
                todo.push(dir.join(entry.file_name()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// Runs `work` as an ordinary user would, because root may enter folders without permission.
    fn without_roots_rights(work: impl FnOnce() + Send) {
        let ordinary = || {
            #[cfg(target_os = "linux")]
            {
                use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
                let mut own = capabilities(None).unwrap();
                own.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                // The capabilities of this thread only.
                set_capabilities(None, own).unwrap();
            }
            work();
        };
        std::thread::scope(|scope| scope.spawn(ordinary).join().unwrap());
    }

    fn close(dir: &Path) {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o000)).unwrap();
    }

    #[test]
    fn a_folder_goes_whatever_its_command_has_closed() {
        let parent = tempfile::tempdir().unwrap();
        without_roots_rights(|| {
            let folder = Temporary::new(parent.path()).unwrap();
            std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
            std::fs::write(folder.path().join("a/b/c"), "").unwrap();
            std::fs::write(folder.path().join(LENT), "https://me:SECRET@host").unwrap();
            for dir in ["a/b", "a", ""] {
                close(&folder.path().join(dir));
            }
        });
        assert_eq!(names(parent.path()), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn what_is_left_behind_is_swept_and_what_is_in_use_is_not() {
        let parent = tempfile::tempdir().unwrap();
        without_roots_rights(|| {
            let used = Temporary::new(parent.path()).unwrap();
            std::fs::write(used.path().join(LENT), "lent").unwrap();
            for left in ["killed", "closed"] {
                std::fs::create_dir_all(parent.path().join(left).join("below")).unwrap();
                std::fs::write(parent.path().join(left).join(LENT), "lent").unwrap();
            }
            close(&parent.path().join("closed/below"));
            close(&parent.path().join("closed"));
            sweep(parent.path());
            assert_eq!(names(parent.path()), [used.path()]);
            assert_eq!(std::fs::read_to_string(used.path().join(LENT)).unwrap(), "lent");
        });
    }
}
