//! Follows links that stay inside the root, for reading. Links are resolved here as text, so that
//! every opened path is free of links and the policy knows the real name.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::beneath;

/// The most links that are followed in one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Resolves all links in `path`; EXDEV if a link leads out of the root. If the last component does
/// not exist, it is kept, and opening the result fails. If an earlier component does not exist, the
/// error is ENOENT.
pub(crate) fn resolve(
    root: BorrowedFd<'_>,
    root_path: &Path,
    path: &Path,
) -> Result<PathBuf, Errno> {
    resolve_with(root_path, path, |parent, name| read_link(root, parent, name))
}

/// Resolves links like [`resolve`], in a tree whose links are read by `read_link`: it gets a
/// folder, whose path has no links, and a name in that folder, and returns the link's target.
pub(crate) fn resolve_with(
    root_path: &Path,
    path: &Path,
    read_link: impl Fn(&Path, &OsStr) -> Result<Option<PathBuf>, Errno>,
) -> Result<PathBuf, Errno> {
    let mut todo: VecDeque<OsString> = VecDeque::new();
    push_front(&mut todo, path)?;
    let mut done = PathBuf::new();
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            if !done.pop() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let Some(target) = read_link(&done, &name)? else {
            done.push(name);
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        if target.is_absolute() {
            // An absolute link is inside only if it begins with the root's own path.
            let inside = target.strip_prefix(root_path).map_err(|_| Errno::XDEV)?.to_owned();
            done = PathBuf::new();
            push_front(&mut todo, &inside)?;
        } else {
            push_front(&mut todo, &target)?;
        }
    }
    Ok(done)
}

fn push_front(todo: &mut VecDeque<OsString>, path: &Path) -> Result<(), Errno> {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => todo.push_front(name.to_owned()),
            Component::ParentDir => todo.push_front(OsString::from("..")),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    Ok(())
}

pub(crate) fn read_link(
    root: BorrowedFd<'_>,
    parent: &Path,
    name: &OsStr,
) -> Result<Option<PathBuf>, Errno> {
    let parent = beneath::open(root, parent, beneath::DIRECTORY)?;
    match rustix::fs::readlinkat(parent.as_fd(), name, Vec::new()) {
        Ok(target) => Ok(Some(PathBuf::from(OsString::from_vec(target.into_bytes())))),
        // The entry is not a link, or does not exist.
        Err(Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(other) => Err(other),
    }
}
