//! The supervisor's watch over the program, until all processes have ended.

use super::*;

/// Waits for the program or for the lifeline, and then ends all remaining processes.
pub(super) fn watch(plan: &Plan, program: libc::pid_t) -> std::convert::Infallible {
    // SAFETY: from here on, only numbers and this stack are used.
    unsafe {
        // Keeps two handles, as 0 and 1. The pipes must close when the program's own copies close.
        libc::dup2(plan.lifeline.as_raw_fd(), 0);
        libc::dup2(plan.report.as_raw_fd(), 1);
        libc::syscall(libc::SYS_close_range, 2, c_uint::MAX, 0);
        let mut children: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut children);
        libc::sigaddset(&raw mut children, libc::SIGCHLD);
        let signals =
            libc::signalfd(-1, &raw const children, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        // When the program must have ended, after it was asked to end. The time does not start
        // again when one of its children ends.
        let mut until = None;
        loop {
            if reap(program) {
                break;
            }
            let mut handles = [
                libc::pollfd {
                    fd: if until.is_some() { -1 } else { 0 },
                    events: libc::POLLIN,
                    revents: 0,
                },
                libc::pollfd { fd: signals, events: libc::POLLIN, revents: 0 },
            ];
            let wait = until.map_or(-1, |until: i64| (until - now_ms()).max(0) as c_int);
            libc::poll(handles.as_mut_ptr(), 2, wait);
            if until.is_some_and(|until| now_ms() >= until) {
                break;
            }
            if handles[0].revents != 0 {
                until = Some(now_ms() + GRACE_MS);
                libc::kill(-program, libc::SIGTERM);
            }
            let mut sink = [0u8; 128];
            libc::read(signals, sink.as_mut_ptr().cast(), sink.len());
        }
        if !plan.spaces.has(libc::CLONE_NEWPID) {
            kill_remaining(program);
        }
        // In a pid namespace, this ends all processes in it.
        libc::_exit(0)
    }
}

/// The time of a clock that nobody can set.
pub(super) fn now_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the result is on this stack.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Collects ended children. Returns true when the program itself has ended, and reports its status.
fn reap(program: libc::pid_t) -> bool {
    loop {
        let mut status = 0;
        // SAFETY: the status is on this stack.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            pid if pid == program => {
                tell(1, STATUS, status);
                return true;
            }
            pid if pid > 0 => {}
            _ => return false,
        }
    }
}

/// Kills children until none are left. Orphans become our children, because this process is a
/// subreaper, and are killed next.
fn kill_remaining(program: libc::pid_t) {
    let until = now_ms() + KILL_REMAINING_MS;
    // SAFETY: only numbers and this stack are used.
    unsafe {
        libc::kill(-program, libc::SIGKILL);
        loop {
            let mut text = [0u8; 4096];
            let fd = libc::open(
                c"/proc/thread-self/children".as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            );
            let length =
                if fd >= 0 { libc::read(fd, text.as_mut_ptr().cast(), text.len()) } else { 0 };
            libc::close(fd);
            let mut pid: libc::pid_t = 0;
            for byte in text.iter().take(usize::try_from(length).unwrap_or(0)) {
                if byte.is_ascii_digit() {
                    pid = pid.wrapping_mul(10).wrapping_add(libc::pid_t::from(byte - b'0'));
                } else if pid > 0 {
                    libc::kill(pid, libc::SIGKILL);
                    pid = 0;
                }
            }
            let ended = loop {
                match libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) {
                    pid if pid > 0 => {}
                    0 => break false,
                    _ => break true,
                }
            };
            if ended || now_ms() >= until {
                return;
            }
            libc::poll(ptr::null_mut(), 0, 2);
        }
    }
}
