//! Opens files and directories beneath the root's handle, and never through a link.
//!
//! The kernel resolves no links for us (`RESOLVE_NO_SYMLINKS`). If a link is swapped in at any
//! moment, the open fails instead of leading elsewhere. For reading, `links` follows links that
//! stay inside: it rewrites the path, and the rewritten path is opened here.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A race with a rename makes the kernel answer EAGAIN. Losing the race this often means that
/// somebody provokes it.
#[cfg(target_os = "linux")]
const RETRIES: usize = 64;

/// Every handle is close-on-exec, never becomes a controlling terminal and never blocks on a FIFO.
fn always(flags: OFlags) -> OFlags {
    // openat2 refuses flags that have no meaning for an `O_PATH` handle.
    #[cfg(target_os = "linux")]
    if flags.contains(OFlags::PATH) {
        return flags | OFlags::CLOEXEC;
    }
    flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
}

/// Opens `path` beneath `root` and refuses every link in it.
pub(crate) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::ResolveFlags;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        for _ in 0..RETRIES {
            match rustix::fs::openat2(root, path, always(flags), Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NOSYS) => return walk(root, path, flags),
                other => return other,
            }
        }
        Err(Errno::AGAIN)
    }
    #[cfg(not(target_os = "linux"))]
    walk(root, path, flags)
}

/// Gives the same guarantee without openat2: opens one component at a time and refuses links.
pub(crate) fn walk(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let step = always(DIRECTORY | OFlags::NOFOLLOW);
    let mut here: Option<OwnedFd> = None;
    let mut names = path.components().filter(|part| *part != Component::CurDir).peekable();
    while let Some(part) = names.next() {
        let Component::Normal(name) = part else { return Err(Errno::XDEV) };
        let from = here.as_ref().map_or(root, AsFd::as_fd);
        let last = names.peek().is_none();
        let wanted = if last { always(flags | OFlags::NOFOLLOW) } else { step };
        let opened =
            rustix::fs::openat(from, name, wanted, Mode::empty()).map_err(|errno| match errno {
                // For a link, O_DIRECTORY with O_NOFOLLOW fails with ENOTDIR, while openat2 fails
                // with ELOOP.
                Errno::NOTDIR if is_link(from, name) => Errno::LOOP,
                other => other,
            })?;
        here = Some(opened);
    }
    match here {
        Some(fd) => Ok(fd),
        None => rustix::fs::openat(root, ".", always(flags), Mode::empty()),
    }
}

/// Flags for a directory in which entries are opened or created.
#[cfg(target_os = "linux")]
pub(crate) const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
#[cfg(not(target_os = "linux"))]
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Flags for a directory whose entries are read.
pub(crate) const LISTING: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

pub(crate) fn is_link(dir: BorrowedFd<'_>, name: &OsStr) -> bool {
    rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
}

/// Changes the permissions of the folder that a handle is of.
#[cfg(target_os = "linux")]
pub(crate) fn change_mode(folder: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // The kernel refuses `fchmod` for such a handle. This path leads to the folder of the handle,
    // whatever has its name now.
    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), mode)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn change_mode(folder: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::fchmod(folder, mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Both implementations must give the same answers, so that old kernels and other systems have
    /// the same guarantee.
    #[test]
    fn openat2_and_the_walk_agree() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("ws");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/f"), "x").unwrap();
        std::fs::write(base.path().join("secret"), "x").unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("/etc", root.join("abs")).unwrap();
        symlink("a", root.join("in")).unwrap();
        let handle = rustix::fs::open(&root, DIRECTORY, Mode::empty()).unwrap();
        for path in [
            "a/b/f",
            "",
            ".",
            "a",
            "./a/./b",
            "up/secret",
            "abs/passwd",
            "in/b/f",
            "in",
            "up",
            "no",
            "a/b/f/g",
            "../secret",
            "a/../../secret",
        ] {
            let kernel = open(handle.as_fd(), Path::new(path), OFlags::RDONLY).err();
            let walked = walk(handle.as_fd(), Path::new(path), OFlags::RDONLY).err();
            assert_eq!(kernel, walked, "{path}");
        }
    }
}
