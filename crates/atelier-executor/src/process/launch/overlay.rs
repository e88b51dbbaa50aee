//! An overlay mount over a workspace.

use super::*;

/// What is mounted over a workspace: its layer.
pub(in crate::process) struct Overlay {
    /// The workspace, the layer's upper folder and its work folder: a handle of each, and the path
    /// that it must still have. The kernel mounts only what was opened in the same mount namespace,
    /// so the folders are opened again there.
    pub(in crate::process) folders: [(OwnedFd, CString); 3],
    /// The options of the mount, which name the folders by the numbers of their handles, because
    /// another mount may cover their paths.
    pub(in crate::process) options: CString,
    /// Where the workspace lies.
    pub(in crate::process) root: CString,
}

impl Overlay {
    /// Opens the folders in this mount namespace.
    pub(super) fn open_again(&self) -> Stage<()> {
        self.folders.iter().try_for_each(|(handle, path)| open_again(handle.as_raw_fd(), path))
    }

    /// Mounts the layer over the workspace, and closes the handles: by them, a program would reach
    /// the workspace below its layer.
    pub(super) fn mount(&self) -> Stage<()> {
        // SAFETY: the strings are NUL-terminated and outlive the call. The handles are of this
        // child, which uses them no more and ends without dropping them.
        unsafe {
            let done = libc::mount(
                c"overlay".as_ptr(),
                self.root.as_ptr(),
                c"overlay".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                self.options.as_ptr().cast(),
            );
            check(LAYER, c_long::from(done))?;
            for (handle, _) in &self.folders {
                libc::close(handle.as_raw_fd());
            }
        }
        Ok(())
    }
}

/// Gives a handle to the same folder in this mount namespace. Fails if the path means another one.
pub(super) fn open_again(handle: RawFd, path: &CStr) -> Stage<()> {
    // SAFETY: the path is NUL-terminated, and the stat buffers are on this stack.
    unsafe {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let fd = libc::open(path.as_ptr(), flags);
        check(LAYER, c_long::from(fd))?;
        let (mut here, mut wanted): (libc::stat, libc::stat) =
            (std::mem::zeroed(), std::mem::zeroed());
        check(LAYER, c_long::from(libc::fstat(fd, &raw mut here)))?;
        check(LAYER, c_long::from(libc::fstat(handle, &raw mut wanted)))?;
        if (here.st_dev, here.st_ino) != (wanted.st_dev, wanted.st_ino) {
            return Err((LAYER, libc::ESTALE));
        }
        check(LAYER, c_long::from(libc::dup3(fd, handle, libc::O_CLOEXEC)))?;
        libc::close(fd);
        Ok(())
    }
}
