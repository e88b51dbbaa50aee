//! Starts a process from a complete plan. Only this file and those below `launch/` have `unsafe`.
//!
//! ```text
//! atelier ── supervisor (pid 1 of its own namespace, if there are namespaces) ── program
//! ```
//!
//! The parent prepares everything: strings, filters, rules, handles. Between `clone` and `execve`,
//! the two children only make system calls, because a process that was forked from one with many
//! threads must not use the allocator or any lock.
//!
//! The supervisor waits for the program and for its lifeline, a pipe whose other end only atelier
//! holds. When the lifeline closes, because time is up or because atelier died, the supervisor ends
//! all processes of the command.
#![allow(unsafe_code)]

mod layered;
mod listening;
mod mounts;
mod overlay;
mod watching;

pub(super) use layered::{
    ENDED_BY_TIME, ENDED_EXPOSED, ENDED_FULL, ENDED_ON_REQUEST, HolderPlan, KEEPER_DONE,
    KeeperPlan, hold, keep,
};
pub(super) use listening::listen_in;
pub(super) use overlay::Overlay;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_char, c_int, c_long, c_uint, c_ulong};
use mounts::{Mounts, arrange_mounts, mount};
use watching::{now_ms, watch};

#[cfg(target_env = "gnu")]
pub(super) type Resource = c_uint;
#[cfg(not(target_env = "gnu"))]
pub(super) type Resource = c_int;

/// Everything that is needed to start a program.
pub(super) struct Plan {
    pub(super) program: CString,
    pub(super) argv: Vec<CString>,
    pub(super) envp: Vec<CString>,
    /// The working directory, as a handle and as the name that it must still have.
    pub(super) cwd: OwnedFd,
    pub(super) cwd_path: CString,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) lifeline: OwnedFd,
    pub(super) report: OwnedFd,
    pub(super) spaces: Spaces,
    pub(super) writable: Vec<CString>,
    /// Folders that cannot be moved, because a mount point cannot be renamed. Outer folders come
    /// first.
    pub(super) pinned: Vec<CString>,
    /// The command's own temporary folder, which it also finds at `/dev/shm`.
    pub(super) tmp: CString,
    /// Paths that are hidden by an empty file or directory mounted over them. If the first is empty,
    /// the second is covered by a new folder.
    pub(super) hidden: Vec<(CString, CString)>,
    /// Paths that are read-only, although the folders around them are not.
    pub(super) read_only: Vec<CString>,
    pub(super) ruleset: Option<OwnedFd>,
    pub(super) filters: Vec<Vec<seccompiler::sock_filter>>,
    pub(super) limits: Vec<(Resource, libc::rlimit)>,
    /// The capabilities that the program keeps if it runs as root.
    pub(super) keep_capabilities: u64,
    /// Whether the program runs in a layer. Then its directory is not the one of the workspace.
    pub(super) layered: bool,
    /// The layer that only this program has, if it has one.
    pub(super) overlay: Option<Overlay>,
    /// Landlock rules for paths that only exist inside the sandbox: the path and what is allowed.
    pub(super) inside: Vec<(CString, u64)>,
}

/// The namespaces of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Spaces {
    pub(super) flags: c_int,
    /// For a user namespace: the single lines of its uid and gid maps.
    pub(super) maps: Option<(CString, CString)>,
    pub(super) fresh_proc: bool,
    /// The highest process number in the namespace, if the kernel counts per namespace.
    pub(super) pid_max: Option<CString>,
}

impl Spaces {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }
}

/// The children report the stage that failed, with its errno, or stage 0 with the program's wait
/// status.
pub(super) const STAGES: [&str; 15] = [
    "status",
    "user namespace",
    "mounts",
    "hide files",
    "process limit",
    "fork",
    "working directory",
    "limits",
    "capabilities",
    "landlock",
    "seccomp",
    "start",
    "layer",
    "loopback",
    "join",
];
const STATUS: u8 = 0;
const USER: u8 = 1;
const MOUNTS: u8 = 2;
const HIDE: u8 = 3;
const PID_MAX: u8 = 4;
const FORK: u8 = 5;
const CWD: u8 = 6;
const LIMITS: u8 = 7;
const CAPABILITIES: u8 = 8;
const LANDLOCK: u8 = 9;
const SECCOMP: u8 = 10;
const START: u8 = 11;
const LAYER: u8 = 12;
const LOOPBACK: u8 = 13;
const JOIN: u8 = 14;
pub(super) const START_STAGE: &str = STAGES[START as usize];

/// How long the program has between SIGTERM and SIGKILL.
pub(super) const GRACE_MS: i64 = 500;
/// Without a pid namespace: how long the supervisor looks for remaining processes.
pub(super) const KILL_REMAINING_MS: i64 = 900;

/// Starts the supervisor, which starts the program. Returns a handle to the supervisor.
pub(super) fn launch(plan: &Plan) -> io::Result<OwnedFd> {
    let argv = pointers(&plan.argv);
    let envp = pointers(&plan.envp);
    start(plan.spaces.flags, || supervise(plan, &argv, &envp)).map(|(pidfd, _)| pidfd)
}

/// Tries namespaces in the way in which a launch would use them.
pub(super) fn probe(spaces: &Spaces) -> bool {
    let attempt = start(spaces.flags, || {
        let entered = enter(spaces, &Mounts::default());
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(c_int::from(entered.is_err())) }
    });
    attempt.is_ok_and(|(pidfd, _)| {
        let options = rustix::process::WaitIdOptions::EXITED;
        rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd.as_fd()), options)
            .is_ok_and(|status| status.is_some_and(|status| status.exit_status() == Some(0)))
    })
}

/// The kernel's Landlock ABI; 0 if it has no Landlock.
pub(super) fn landlock_abi() -> u8 {
    const VERSION: c_ulong = 1;
    // SAFETY: with this flag the call takes no attributes and only returns a number.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<u8>(), 0usize, VERSION)
    };
    u8::try_from(abi).unwrap_or(0)
}

pub(super) fn seccomp_available() -> bool {
    // SAFETY: only queries; returns -1 if the kernel has no seccomp.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Clones the process. The child runs `child`, which never returns. Returns a handle to the child,
/// and its number.
fn start(
    flags: c_int,
    child: impl FnOnce() -> std::convert::Infallible,
) -> io::Result<(OwnedFd, libc::pid_t)> {
    let mut pidfd: c_int = -1;
    // SAFETY: the sets are plain memory and are filled before use.
    let mut old: libc::sigset_t = unsafe { std::mem::zeroed() };
    // Signals are blocked during the clone: the parent's handlers must not run in the child.
    // SAFETY: both sets are on this stack.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
    }
    let flags = c_long::from(flags | libc::CLONE_PIDFD | libc::SIGCHLD);
    // SAFETY: without CLONE_VM this is a fork. The child only makes system calls and ends with
    // execve or _exit.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, &raw mut pidfd, 0usize, 0usize) };
    let failed = io::Error::last_os_error();
    if pid == 0 {
        child();
    }
    // SAFETY: restores the mask that was read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, ptr::null_mut()) };
    if pid < 0 {
        return Err(failed);
    }
    // SAFETY: the kernel has just created this handle for us.
    Ok((unsafe { OwnedFd::from_raw_fd(pidfd) }, pid as libc::pid_t))
}

type Stage<T> = Result<T, (u8, c_int)>;

fn check(stage: u8, result: c_long) -> Stage<c_long> {
    if result < 0 { Err((stage, errno())) } else { Ok(result) }
}

fn errno() -> c_int {
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() }
}

fn tell(report: RawFd, stage: u8, value: c_int) {
    let mut message = [0u8; 5];
    message[0] = stage;
    message[1..].copy_from_slice(&value.to_ne_bytes());
    // SAFETY: writes five bytes from this stack. If the message is lost, the other side reports
    // "killed".
    unsafe { libc::write(report, message.as_ptr().cast(), message.len()) };
}

/// The first child. It sets up the sandbox, starts the program and outlives it.
fn supervise(
    plan: &Plan,
    argv: &[*const c_char],
    envp: &[*const c_char],
) -> std::convert::Infallible {
    let report = plan.report.as_raw_fd();
    let mounts = Mounts {
        overlay: plan.overlay.as_ref(),
        writable: &plan.writable,
        pinned: &plan.pinned,
        tmp: Some(&plan.tmp),
        hidden: &plan.hidden,
        read_only: &plan.read_only,
    };
    let started = enter(&plan.spaces, &mounts).and_then(|()| {
        // SAFETY: a plain fork. The child becomes the program.
        let pid = check(FORK, unsafe {
            libc::syscall(libc::SYS_clone, c_long::from(libc::SIGCHLD), 0, 0, 0, 0)
        })?;
        if pid == 0 {
            let Err((stage, errno)) = become_program(plan, argv, envp);
            tell(report, stage, errno);
            // SAFETY: ends this child.
            unsafe { libc::_exit(127) };
        }
        Ok(pid as libc::pid_t)
    });
    match started {
        Ok(program) => watch(plan, program),
        Err((stage, errno)) => {
            tell(report, stage, errno);
            // SAFETY: ends this child.
            unsafe { libc::_exit(127) }
        }
    }
}

/// Enters the namespaces that `clone` made.
fn enter(spaces: &Spaces, mounts: &Mounts<'_>) -> Stage<()> {
    // SAFETY: calls with plain numbers. The new session keeps terminals and job control away from
    // this process. As a subreaper, it becomes the parent of every orphan below it if there is no
    // pid namespace.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
    if let Some((uid_map, gid_map)) = &spaces.maps {
        write_file(c"/proc/self/setgroups", b"deny", USER)?;
        write_file(c"/proc/self/uid_map", uid_map.as_bytes(), USER)?;
        write_file(c"/proc/self/gid_map", gid_map.as_bytes(), USER)?;
    }
    if let Some(pid_max) = &spaces.pid_max {
        write_file(c"/proc/sys/kernel/pid_max", pid_max.as_bytes(), PID_MAX)?;
    }
    // If memory runs out, this process is killed before the user's other processes. A failure here
    // does not matter.
    write_file(c"/proc/self/oom_score_adj", b"1000", USER).ok();
    if spaces.has(libc::CLONE_NEWNS) {
        arrange_mounts(spaces, mounts)?;
    }
    // SAFETY: called after the maps are written, because an undumpable process may not write them.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    Ok(())
}

fn write_file(path: &CStr, bytes: &[u8], stage: u8) -> Stage<()> {
    // SAFETY: the path is NUL-terminated, the buffer outlives the call, and the handle is closed
    // here.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(stage, c_long::from(fd))?;
        let written = check(stage, libc::write(fd, bytes.as_ptr().cast(), bytes.len()) as c_long);
        libc::close(fd);
        written.map(drop)
    }
}

/// The second child. It drops all its rights and then becomes the program.
fn become_program(
    plan: &Plan,
    argv: &[*const c_char],
    envp: &[*const c_char],
) -> Result<std::convert::Infallible, (u8, c_int)> {
    // SAFETY: every call below takes plain numbers, or memory that the parent prepared and that
    // outlives the call.
    unsafe {
        libc::setpgid(0, 0);
        libc::umask(0o022);
        // The parent is a Rust program, which ignores SIGPIPE. Programs expect the default
        // handlers.
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        enter_directory(plan)?;
        for (fd, number) in [(&plan.stdin, 0), (&plan.stdout, 1), (&plan.stderr, 2)] {
            check(START, c_long::from(libc::dup2(fd.as_raw_fd(), number)))?;
        }
        // Closes handles that a library opened without close-on-exec. Older kernels lack this call;
        // our own handles are close-on-exec.
        libc::syscall(libc::SYS_close_range, 3, c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
        for (resource, limit) in &plan.limits {
            check(LIMITS, c_long::from(libc::setrlimit(*resource, limit)))?;
        }
        check(CAPABILITIES, c_long::from(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))?;
        drop_capabilities(plan.keep_capabilities)?;
        if let Some(ruleset) = &plan.ruleset {
            restrict(ruleset.as_raw_fd(), &plan.inside)?;
        }
        for filter in &plan.filters {
            let program = libc::sock_fprog {
                len: filter.len() as u16,
                filter: filter.as_ptr().cast_mut().cast(),
            };
            let mode = c_long::from(libc::SECCOMP_SET_MODE_FILTER);
            check(SECCOMP, libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program))?;
        }
        libc::execve(plan.program.as_ptr(), argv.as_ptr(), envp.as_ptr());
    }
    Err((START, errno()))
}

/// Enters the directory by name if there are mounts, because a handle would bypass them. The handle
/// then shows whether the name still means the same directory.
fn enter_directory(plan: &Plan) -> Stage<()> {
    // SAFETY: the handles and paths are valid, and the stat buffers are on this stack.
    unsafe {
        if !plan.spaces.has(libc::CLONE_NEWNS) {
            return check(CWD, c_long::from(libc::fchdir(plan.cwd.as_raw_fd()))).map(drop);
        }
        check(CWD, c_long::from(libc::chdir(plan.cwd_path.as_ptr())))?;
        if plan.layered {
            return Ok(());
        }
        let (mut here, mut wanted): (libc::stat, libc::stat) =
            (std::mem::zeroed(), std::mem::zeroed());
        check(CWD, c_long::from(libc::stat(c".".as_ptr(), &raw mut here)))?;
        check(CWD, c_long::from(libc::fstat(plan.cwd.as_raw_fd(), &raw mut wanted)))?;
        if (here.st_dev, here.st_ino) == (wanted.st_dev, wanted.st_ino) {
            Ok(())
        } else {
            Err((CWD, libc::ESTALE))
        }
    }
}

fn drop_capabilities(keep: u64) -> Stage<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: c_int,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let (low, high) = (keep as u32, (keep >> 32) as u32);
    let sets: [u32; 6] = [low, low, 0, high, high, 0];
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: calls with plain numbers; the structures have the layout of capset(2).
    unsafe {
        for capability in (0..64).filter(|capability| keep & (1 << capability) == 0) {
            // Fails for capabilities that the kernel does not have, and for users without
            // capabilities. In both cases there is nothing to drop.
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
        // An ordinary user may not add capabilities, and has none to drop.
        if libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) < 0 {
            let nothing = [0u32; 6];
            check(
                CAPABILITIES,
                libc::syscall(libc::SYS_capset, &raw const header, nothing.as_ptr()),
            )?;
        }
    }
    Ok(())
}

/// Adds `/proc` of this namespace and the paths of a layer, which the parent cannot see, and applies
/// the rules.
fn restrict(ruleset: RawFd, inside: &[(CString, u64)]) -> Stage<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        allowed: u64,
        parent: c_int,
    }
    const READ_FILE_AND_DIR: u64 = 0b1100;
    const RULE_PATH_BENEATH: c_int = 1;
    // SAFETY: the structure has the kernel's layout, and the handles are open.
    unsafe {
        let add = |path: &CStr, allowed: u64| {
            let parent = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if parent < 0 {
                // A path that does not exist needs no rule.
                return Ok(0);
            }
            let rule = PathBeneath { allowed, parent };
            let (add, kind) = (libc::SYS_landlock_add_rule, RULE_PATH_BENEATH);
            check(LANDLOCK, libc::syscall(add, ruleset, kind, &raw const rule, 0))
        };
        add(c"/proc", READ_FILE_AND_DIR)?;
        for (path, allowed) in inside {
            add(path, *allowed)?;
        }
        check(LANDLOCK, libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0)).map(drop)
    }
}
