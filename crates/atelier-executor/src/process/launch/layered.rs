//! Programs in a layer.
//!
//! ```text
//! atelier ─┬─ holder  (its namespaces hold the layer's mount and loopback device)
//!          └─ keeper ── supervisor (joins the holder's namespaces) ── bash
//! ```
//!
//! The holder lives as long as somebody holds the write end of its FIFO: every keeper does. Scripts
//! that run at the same time so share one mount of the layer, because the kernel does not define
//! what two mounts of the same files show. The keeper writes the output of a script into files and
//! ends it in time. It goes on if atelier ends, unless it was given an owner to watch.

use super::overlay::open_again;
use super::*;

/// What a keeper adds to a report, beside stages and the status.
pub(in crate::process) const ENDED_BY_TIME: u8 = 100;
pub(in crate::process) const ENDED_ON_REQUEST: u8 = 101;
pub(in crate::process) const ENDED_FULL: u8 = 102;
pub(in crate::process) const ENDED_EXPOSED: u8 = 103;
pub(in crate::process) const KEEPER_DONE: u8 = 255;

/// How long a supervisor has to end its processes before it is killed.
const END_MS: i64 = GRACE_MS + KILL_REMAINING_MS + 400;
/// How often a keeper looks at the free space of the disk.
const LOOK_MS: i64 = 500;

/// Everything that is needed to make the namespaces of a layer.
pub(in crate::process) struct HolderPlan {
    pub(in crate::process) spaces: Spaces,
    pub(in crate::process) overlay: Overlay,
    /// The layer's private `/tmp`, with its path.
    pub(in crate::process) tmp: (OwnedFd, CString),
    /// The read end of the FIFO.
    pub(in crate::process) users: OwnedFd,
    /// The file whose lock says that the holder lives.
    pub(in crate::process) alive: OwnedFd,
    /// Gets one report: status 0 when the layer is mounted, or the stage that failed.
    pub(in crate::process) ready: OwnedFd,
}

/// Starts a holder.
pub(in crate::process) fn hold(plan: &HolderPlan) -> io::Result<(OwnedFd, libc::pid_t)> {
    start(plan.spaces.flags, || {
        let ready = plan.ready.as_raw_fd();
        if let Err((stage, errno)) = mount_layer(plan) {
            tell(ready, stage, errno);
            // SAFETY: ends this child.
            unsafe { libc::_exit(127) };
        }
        // SAFETY: plain numbers and this stack.
        unsafe {
            // The last handle that refers to the old places must go, or the disk stays busy.
            libc::chdir(c"/".as_ptr());
            let alive = above_standard(plan.alive.as_raw_fd());
            let users = above_standard(plan.users.as_raw_fd());
            if alive < 0 || users < 0 {
                // It would hold the layer for ever.
                tell(ready, LAYER, *libc::__errno_location());
                libc::_exit(127);
            }
            tell(ready, STATUS, 0);
            close_all_but(&[alive, users]);
            loop {
                let mut handle = libc::pollfd { fd: users, events: libc::POLLIN, revents: 0 };
                libc::poll(&raw mut handle, 1, -1);
                if handle.revents & libc::POLLHUP != 0 {
                    libc::_exit(0);
                }
            }
        }
    })
}

fn mount_layer(plan: &HolderPlan) -> Stage<()> {
    let HolderPlan { spaces, .. } = plan;
    // SAFETY: calls with plain numbers.
    unsafe { libc::setsid() };
    if let Some((uid_map, gid_map)) = &spaces.maps {
        write_file(c"/proc/self/setgroups", b"deny", USER)?;
        write_file(c"/proc/self/uid_map", uid_map.as_bytes(), USER)?;
        write_file(c"/proc/self/gid_map", gid_map.as_bytes(), USER)?;
    }
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE, MOUNTS)?;
    // All of them first, because the private `/tmp` may cover their paths.
    plan.overlay.open_again()?;
    let (tmp, path) = &plan.tmp;
    open_again(tmp.as_raw_fd(), path)?;
    let mut name = [0u8; 32];
    mount(Some(handle_path(tmp.as_raw_fd(), &mut name)), c"/tmp", libc::MS_BIND, LAYER)?;
    plan.overlay.mount()?;
    loopback()
}

/// `/proc/self/fd/N` in memory of the caller, because a child must not allocate.
fn handle_path(fd: RawFd, name: &mut [u8; 32]) -> &CStr {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    name[..PREFIX.len()].copy_from_slice(PREFIX);
    let mut digits = [0u8; 12];
    let (mut at, mut left) = (digits.len(), fd.max(0));
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let digits = &digits[at..];
    name[PREFIX.len()..PREFIX.len() + digits.len()].copy_from_slice(digits);
    name[PREFIX.len() + digits.len()] = 0;
    CStr::from_bytes_until_nul(name).unwrap_or(c"/")
}

/// Starts the loopback device of the network namespace.
fn loopback() -> Stage<()> {
    // SAFETY: the request is plain memory with the layout of netdevice(7).
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(LOOPBACK, c_long::from(socket))?;
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as c_char;
        request.ifr_name[1] = b'o' as c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let done = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
        let done = check(LOOPBACK, c_long::from(done));
        libc::close(socket);
        done.map(drop)
    }
}

/// Returns a handle whose number is above those of standard input, output and errors: this handle,
/// or a duplicate of it if its number is one of those. Returns -1 if there is no number left.
///
/// # Safety
/// Only a number is given and returned.
unsafe fn above_standard(fd: RawFd) -> RawFd {
    // SAFETY: plain numbers.
    if (0..3).contains(&fd) { unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) } } else { fd }
}

/// Closes everything but these handles, and gives standard input, output and errors to nobody.
///
/// # Safety
/// Nothing may use the closed handles afterwards.
unsafe fn close_all_but(keep: &[c_int]) {
    // SAFETY: plain numbers; the caller uses no other handle any more.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for number in 0..3 {
            libc::dup2(null, number);
        }
        let mut from = 3;
        loop {
            let next = keep.iter().copied().filter(|fd| *fd >= from).min();
            let Some(next) = next else { break };
            if next > from {
                libc::syscall(libc::SYS_close_range, from, next - 1, 0);
            }
            from = next + 1;
        }
        libc::syscall(libc::SYS_close_range, from, c_uint::MAX, 0);
    }
}

/// Everything that is needed to keep one script.
pub(in crate::process) struct KeeperPlan {
    pub(in crate::process) program: Plan,
    /// The holder of the layer.
    pub(in crate::process) holder: OwnedFd,
    /// The namespaces of the holder that the script joins.
    pub(in crate::process) join: c_int,
    /// The write end of the holder's FIFO.
    pub(in crate::process) user: OwnedFd,
    /// A pipe that closes when whoever waits for the script gives up. For a job: when the owner of
    /// the layer ends, if the job is to end with it.
    pub(in crate::process) owner: Option<OwnedFd>,
    /// The file whose lock says that the script runs.
    pub(in crate::process) alive: OwnedFd,
    /// What the script prints, as the read ends of its pipes, and the files that keep it.
    pub(in crate::process) outputs: [(OwnedFd, OwnedFd); 2],
    /// The write end of the supervisor's lifeline.
    pub(in crate::process) lifeline: OwnedFd,
    /// The most bytes that each output file gets.
    pub(in crate::process) most_output: u64,
    /// When the script is ended, in milliseconds from its start.
    pub(in crate::process) time_ms: i64,
    /// A folder on the disk that the layer grows on, and how many bytes the disk may lose.
    pub(in crate::process) disk: OwnedFd,
    pub(in crate::process) most_disk: u64,
    /// Gets one byte when the namespaces are joined.
    pub(in crate::process) joined: OwnedFd,
}

/// Starts a keeper, which starts the script.
pub(in crate::process) fn keep(plan: &KeeperPlan) -> io::Result<(OwnedFd, libc::pid_t)> {
    let argv = pointers(&plan.program.argv);
    let envp = pointers(&plan.program.envp);
    start(0, || {
        let report = plan.program.report.as_raw_fd();
        match begin(plan, &argv, &envp) {
            Ok(supervisor) => pump(plan, supervisor),
            Err((stage, errno)) => tell(report, stage, errno),
        }
        tell(report, KEEPER_DONE, 0);
        // SAFETY: ends this child.
        unsafe { libc::_exit(0) }
    })
}

/// Joins the namespaces of the holder and starts the supervisor. Returns a handle to it.
fn begin(plan: &KeeperPlan, argv: &[*const c_char], envp: &[*const c_char]) -> Stage<c_int> {
    // SAFETY: plain numbers and memory that the parent prepared.
    unsafe {
        libc::setsid();
        check(JOIN, c_long::from(libc::setns(plan.holder.as_raw_fd(), plan.join)))?;
        libc::write(plan.joined.as_raw_fd(), c"j".as_ptr().cast(), 1);
        let mut pidfd: c_int = -1;
        let flags = plan.program.spaces.flags | libc::CLONE_PIDFD | libc::SIGCHLD;
        let (flags, pidfd_at) = (c_long::from(flags), &raw mut pidfd);
        let pid = check(FORK, libc::syscall(libc::SYS_clone, flags, 0, pidfd_at, 0, 0))?;
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            supervise(&plan.program, argv, envp);
        }
        Ok(pidfd)
    }
}

/// Copies output into the files until the supervisor has ended, and ends it in time.
fn pump(plan: &KeeperPlan, supervisor: c_int) {
    // SAFETY: plain numbers and this stack.
    unsafe {
        // Only what is needed stays open. The pipes must close with the program's own copies.
        let keep = |fd: RawFd| above_standard(fd);
        let report = keep(plan.program.report.as_raw_fd());
        let outputs = plan
            .outputs
            .each_ref()
            .map(|(from, to)| (keep(from.as_raw_fd()), keep(to.as_raw_fd())));
        let mut lifeline = keep(plan.lifeline.as_raw_fd());
        let owner = plan.owner.as_ref().map(|owner| keep(owner.as_raw_fd()));
        let (user, alive) = (keep(plan.user.as_raw_fd()), keep(plan.alive.as_raw_fd()));
        let disk = keep(plan.disk.as_raw_fd());
        let kept = keep(supervisor);
        let [(out, out_file), (err, err_file)] = outputs;
        let all = [
            report,
            out,
            out_file,
            err,
            err_file,
            lifeline,
            owner.unwrap_or(report),
            user,
            alive,
            disk,
            kept,
        ];
        if all.iter().any(|fd| *fd < 0) {
            return give_up(plan, supervisor);
        }
        let owner = owner.unwrap_or(-1);
        close_all_but(&all);
        let supervisor = kept;
        let mut wanted: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut wanted);
        libc::sigaddset(&raw mut wanted, libc::SIGTERM);
        libc::sigaddset(&raw mut wanted, libc::SIGUSR1);
        let signals = libc::signalfd(-1, &raw const wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if signals < 0 {
            return give_up(plan, supervisor);
        }
        let started = now_ms();
        let free_at_start = free(disk);
        let mut ended_at: Option<i64> = None;
        let mut looked = started;
        let mut files = [Copying::new(out, out_file), Copying::new(err, err_file)];
        loop {
            let now = now_ms();
            let deadline = match ended_at {
                Some(at) => at + END_MS,
                None => started.saturating_add(plan.time_ms),
            };
            let wait = (deadline - now).clamp(0, LOOK_MS) as c_int;
            let mut handles = [supervisor, files[0].from, files[1].from, signals, owner]
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            if ended_at.is_some() {
                handles[4].fd = -1;
            }
            libc::poll(handles.as_mut_ptr(), 5, wait);
            for (file, handle) in files.iter_mut().zip(&handles[1..3]) {
                if handle.revents != 0 {
                    file.copy(plan.most_output);
                }
            }
            if handles[0].revents != 0 {
                break;
            }
            let now = now_ms();
            let mut end = None;
            if handles[3].revents != 0 || handles[4].revents != 0 {
                end = Some(ENDED_ON_REQUEST);
                if got(signals, libc::SIGUSR1) {
                    end = Some(ENDED_EXPOSED);
                    // It must not read on while it is asked to end.
                    let kill = libc::SYS_pidfd_send_signal;
                    libc::syscall(kill, supervisor, libc::SIGKILL, 0, 0);
                }
            } else if now >= deadline {
                end = Some(ENDED_BY_TIME);
            } else if now - looked >= LOOK_MS {
                looked = now;
                let lost = free_at_start.saturating_sub(free(disk));
                end = (lost > plan.most_disk).then_some(ENDED_FULL);
            }
            match (end, ended_at) {
                (Some(why), None) => {
                    tell(report, why, 0);
                    ended_at = Some(now);
                    libc::close(lifeline);
                    lifeline = -1;
                }
                (Some(ENDED_BY_TIME), Some(_)) => {
                    let kill = libc::SYS_pidfd_send_signal;
                    libc::syscall(kill, supervisor, libc::SIGKILL, 0, 0);
                }
                _ => {}
            }
        }
        libc::waitpid(-1, ptr::null_mut(), libc::__WALL);
        for file in &mut files {
            file.rest(plan.most_output);
        }
        tell(report, KEEPER_DONE, 0);
        libc::_exit(0)
    }
}

/// Ends a script that cannot be watched: nothing would end it in time, or when it is asked to.
///
/// # Safety
/// The handle is of the supervisor, the only child of this process.
unsafe fn give_up(plan: &KeeperPlan, supervisor: c_int) {
    // SAFETY: plain numbers.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_pidfd_send_signal, supervisor, libc::SIGKILL, 0, 0);
        libc::waitpid(-1, ptr::null_mut(), libc::__WALL);
        tell(plan.program.report.as_raw_fd(), FORK, errno);
    }
}

/// Reads the signals that came. Whether this one is among them.
///
/// # Safety
/// The handle is of signals, and does not block.
unsafe fn got(signals: c_int, wanted: c_int) -> bool {
    let mut found = false;
    // SAFETY: the memory is plain, and on this stack.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        while usize::try_from(libc::read(signals, (&raw mut info).cast(), size)) == Ok(size) {
            found |= i32::try_from(info.ssi_signo) == Ok(wanted);
        }
    }
    found
}

/// How many bytes the disk has left.
fn free(disk: c_int) -> u64 {
    // SAFETY: the result is on this stack.
    unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        match libc::fstatvfs(disk, &raw mut about) {
            0 => (about.f_bavail as u64).saturating_mul(about.f_frsize as u64),
            _ => u64::MAX,
        }
    }
}

/// One output that is copied into its file.
struct Copying {
    /// -1 after the other side has closed it.
    from: c_int,
    to: c_int,
    written: u64,
}

impl Copying {
    fn new(from: c_int, to: c_int) -> Self {
        Self { from, to, written: 0 }
    }

    /// Copies once. Returns how much was read. What is beyond the limit is read and dropped.
    fn copy(&mut self, most: u64) -> usize {
        let mut chunk = [0u8; 16 << 10];
        // SAFETY: the buffer is on this stack.
        unsafe {
            let n = libc::read(self.from, chunk.as_mut_ptr().cast(), chunk.len());
            let again = [libc::EAGAIN, libc::EINTR].contains(&*libc::__errno_location());
            if n == 0 || (n < 0 && !again) {
                libc::close(self.from);
                self.from = -1;
            }
            let Ok(n) = usize::try_from(n) else { return 0 };
            let room = usize::try_from(most.saturating_sub(self.written)).unwrap_or(usize::MAX);
            let mut rest = &chunk[..n.min(room)];
            while !rest.is_empty() {
                let done = libc::write(self.to, rest.as_ptr().cast(), rest.len());
                // A full disk: the script goes on, and its output ends here.
                let Ok(done @ 1..) = usize::try_from(done) else { break };
                self.written += done as u64;
                rest = &rest[done..];
            }
            n
        }
    }

    /// Copies what is in the pipe now, and no more.
    fn rest(&mut self, most: u64) {
        if self.from < 0 {
            return;
        }
        // SAFETY: plain numbers.
        unsafe { libc::fcntl(self.from, libc::F_SETFL, libc::O_NONBLOCK) };
        // A pipe holds at most a mebibyte.
        for _ in 0..128 {
            if self.copy(most) == 0 {
                break;
            }
        }
    }
}
