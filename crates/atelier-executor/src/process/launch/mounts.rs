//! The mounts of one program: what it can write, and what it does not see.

use super::*;

/// The mounts for one program.
#[derive(Default)]
pub(super) struct Mounts<'a> {
    pub(super) overlay: Option<&'a Overlay>,
    pub(super) writable: &'a [CString],
    pub(super) pinned: &'a [CString],
    pub(super) tmp: Option<&'a CStr>,
    pub(super) hidden: &'a [(CString, CString)],
    pub(super) read_only: &'a [CString],
}

/// Makes everything read-only except the given folders. Landlock does not cover modes, owners and
/// times, but mounts do.
pub(super) fn arrange_mounts(spaces: &Spaces, mounts: &Mounts<'_>) -> Stage<()> {
    const READ_ONLY: u64 = 1;
    let Mounts { overlay, writable, pinned, tmp, hidden, read_only } = *mounts;
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE, MOUNTS)?;
    if let Some(overlay) = overlay {
        overlay.open_again()?;
        overlay.mount()?;
    }
    for dir in writable {
        mount(Some(dir), dir, libc::MS_BIND | libc::MS_REC, MOUNTS)?;
    }
    set_mount(c"/", READ_ONLY, 0, libc::AT_RECURSIVE)?;
    for dir in writable {
        // A mount below that was read-only before stays read-only and may be locked. Then only the
        // top is made writable.
        set_mount(dir, 0, READ_ONLY, libc::AT_RECURSIVE)
            .or_else(|_| set_mount(dir, 0, READ_ONLY, 0))?;
    }
    for dir in pinned {
        match mount(Some(dir), dir, libc::MS_BIND | libc::MS_REC, HIDE) {
            Ok(()) | Err((_, libc::ENOENT)) => {}
            Err(failed) => return Err(failed),
        }
    }
    for path in read_only {
        match mount(Some(path), path, libc::MS_BIND | libc::MS_REC, MOUNTS) {
            Ok(()) => set_mount(path, READ_ONLY, 0, 0)?,
            // The folder does not exist, so it needs no protection.
            Err((_, libc::ENOENT)) => {}
            Err(failed) => return Err(failed),
        }
    }
    for (cover, path) in hidden {
        let covered = match cover.is_empty() {
            true => mount_empty(path),
            false => mount(Some(cover), path, libc::MS_BIND, HIDE),
        };
        match covered {
            // The path was deleted after it was found, or a layer has something else in its place.
            // So there is nothing to hide.
            Ok(()) | Err((_, libc::ENOENT | libc::ENOTDIR)) => {}
            Err(failed) => return Err(failed),
        }
    }
    // The place for semaphores and shared memory, which Python's multiprocessing needs. A failure
    // here does not matter. The mount must not cover a folder that the command works in.
    let in_use = writable.iter().any(|dir| dir.to_bytes().starts_with(b"/dev/shm"));
    if tmp.is_some() && !in_use {
        mount(tmp, c"/dev/shm", libc::MS_BIND, MOUNTS).ok();
    }
    if spaces.fresh_proc {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        // Hides the supervisor, which is a copy of atelier and has its command line, including
        // tokens. It is not dumpable, so other processes may not inspect it. Before Linux 5.8,
        // group 0 still could.
        let proc = |options: &CStr| {
            let (name, place) = (c"proc".as_ptr(), c"/proc".as_ptr());
            // SAFETY: constant strings.
            let done = unsafe { libc::mount(name, place, name, flags, options.as_ptr().cast()) };
            check(MOUNTS, c_long::from(done))
        };
        proc(c"hidepid=4").or_else(|_| proc(c"hidepid=2"))?;
    }
    Ok(())
}

pub(super) fn mount(source: Option<&CStr>, target: &CStr, flags: c_ulong, stage: u8) -> Stage<()> {
    let source = source.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the strings are NUL-terminated and outlive the call.
    let done = unsafe { libc::mount(source, target.as_ptr(), ptr::null(), flags, ptr::null()) };
    check(stage, c_long::from(done)).map(drop)
}

/// Covers a folder by an empty one.
fn mount_empty(target: &CStr) -> Stage<()> {
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let (kind, options) = (c"tmpfs".as_ptr(), c"size=4k,mode=555".as_ptr().cast());
    // SAFETY: the strings are NUL-terminated and outlive the call.
    let done = unsafe { libc::mount(kind, target.as_ptr(), kind, flags, options) };
    check(HIDE, c_long::from(done)).map(drop)
}

fn set_mount(path: &CStr, set: u64, clear: u64, flags: c_int) -> Stage<()> {
    let attributes: [u64; 4] = [set, clear, 0, 0];
    let size = std::mem::size_of_val(&attributes);
    // SAFETY: the structure has four 64-bit words, and its size is passed too.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            attributes.as_ptr(),
            size,
        )
    };
    check(MOUNTS, done).map(drop)
}
