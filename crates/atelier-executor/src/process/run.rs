//! One run on Linux: plan, launch, and read the output until the end.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};

use super::isolation::{MAX_PROCESSES, sandbox_support};
use super::launch::{self, GRACE_MS, KILL_REMAINING_MS, Plan, Resource, STAGES, START_STAGE};
use super::output::{Kept, texts};
use super::runner::Runner;
use super::{Access, CommandSpec, Ending, Outcome, filter, landlock_rules};
use crate::beneath;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::{Workspace, relative};

/// How late a supervisor may be on a busy machine.
const LATE_MS: i64 = 400;
/// After this time the supervisor itself is killed, and its namespace with it. It is not killed
/// earlier, because without a namespace the processes that it has not found would keep running.
const END_BY: Duration = Duration::from_millis((GRACE_MS + KILL_REMAINING_MS + LATE_MS) as u64);
const _: () = assert!(END_BY.as_millis() < 2000, "a command ends within two seconds");

/// CHOWN, DAC_OVERRIDE, FOWNER and FSETID: root can still work on files of other users, inside the
/// sandbox.
pub(super) const ROOT_KEEPS: u64 = 0b1_1011;

impl Runner {
    pub(super) fn start(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        mut environment: Vec<(String, String)>,
        cancel: &Cancel,
    ) -> Result<Outcome> {
        let (isolation, _) = sandbox_support();
        let started = Instant::now();
        let tmp = self.temporary()?;
        self.lend(spec, tmp.path())?;
        environment.push(("TMPDIR".to_owned(), tmp.path().display().to_string()));
        let pipes = Pipes::new().map_err(setup)?;
        let plan = self.plan(workspace, spec, &environment, tmp.path(), &pipes)?;
        let supervisor =
            launch::launch(&plan).map_err(|source| Error::Sandbox { stage: "fork", source })?;
        // The children have their own copies. Ours would keep the pipes open for ever.
        drop(plan);
        let mut running = pipes.into_running(supervisor, spec.output_limit);
        let stopped = running.drain(started + spec.timeout, cancel, spec.live).map_err(setup)?;
        let ending = match (running.report()?, stopped) {
            (_, Some(stopped)) => stopped,
            (Some(status), None) => ending(status),
            (None, None) => Ending::Killed(libc::SIGKILL),
        };
        let (stdout_bytes, stderr_bytes) = (running.stdout.kept.seen(), running.stderr.kept.seen());
        let (stdout, stderr, truncated) =
            texts(running.stdout.kept, running.stderr.kept, spec.output_limit);
        Ok(Outcome {
            ending,
            stdout,
            stderr,
            truncated,
            stdout_bytes,
            stderr_bytes,
            elapsed: started.elapsed(),
            isolation: isolation.clone(),
            access: spec.access,
            network: spec.network,
        })
    }

    fn plan(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        environment: &[(String, String)],
        tmp: &Path,
        pipes: &Pipes,
    ) -> Result<Plan> {
        let (isolation, sandbox_support) = sandbox_support();
        let program = self.find(workspace, &spec.program)?;
        let shown = spec.cwd.as_str();
        if workspace.ignored()?.hides(relative(&spec.cwd), true) {
            return Err(Error::NotFound { path: shown.to_owned() });
        }
        let cwd = beneath::open(workspace.handle(), relative(&spec.cwd), beneath::DIRECTORY)
            .map_err(|errno| Error::from_os(errno, "enter", shown))?;
        let mut argv = vec![text(&spec.program)?];
        for arg in &spec.args {
            argv.push(text(arg)?);
        }
        let envp = environment
            .iter()
            .map(|(name, value)| text(&format!("{name}={value}")))
            .collect::<Result<_>>()?;
        let mut spaces = sandbox_support.spaces.clone();
        if spec.network {
            spaces.flags &= !libc::CLONE_NEWNET;
        }
        let mut writable = vec![c_path(tmp)?];
        if spec.access == Access::Workspace {
            writable.push(c_path(&self.home)?);
            writable.push(c_path(workspace.root())?);
        }
        let filters = if sandbox_support.seccomp {
            let attributes = isolation.mounts || spec.access == Access::Workspace;
            let set_id = spec.program == "git";
            filter::compile(filter::Wanted {
                network: spec.network,
                attributes,
                set_id,
                xattrs: true,
            })
            .map_err(|error| Error::Sandbox { stage: "seccomp", source: io::Error::other(error) })?
        } else {
            Vec::new()
        };
        let folders =
            landlock_rules::Folders { workspace: workspace.handle(), home: &self.home, tmp };
        let ruleset = match isolation.landlock {
            0 => None,
            _ => landlock_rules::ruleset(&self.system, &folders, spec.access)
                .map_err(|source| Error::Sandbox { stage: "landlock", source })?,
        };
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(setup)?;
        Ok(Plan {
            program: c_path(&program)?,
            argv,
            envp,
            cwd,
            cwd_path: c_path(&workspace.root().join(relative(&spec.cwd)))?,
            stdin: high(&null)?,
            stdout: high(&pipes.stdout.1)?,
            stderr: high(&pipes.stderr.1)?,
            lifeline: high(&pipes.lifeline.0)?,
            report: high(&pipes.report.1)?,
            spaces,
            tmp: c_path(tmp)?,
            writable,
            pinned: match spec.access {
                Access::ReadOnly => Vec::new(),
                Access::Workspace => pinned(workspace, spec.hidden.iter().chain(&spec.in_place))?,
            },
            hidden: covers(
                workspace,
                spec.hidden.iter().chain(&spec.hooks),
                (&self.empty_dir, &self.empty_file),
            )?,
            read_only: match spec.access {
                Access::ReadOnly => Vec::new(),
                Access::Workspace => {
                    let path = |path| c_path(&workspace.root().join(path));
                    spec.read_only.iter().map(path).collect::<Result<_>>()?
                }
            },
            ruleset: ruleset.as_ref().map(high).transpose()?,
            filters,
            limits: limits(),
            keep_capabilities: ROOT_KEEPS,
            layered: false,
            inside: Vec::new(),
        })
    }
}

/// What is mounted over each hidden path: an empty folder over a folder, an empty file over a file.
pub(super) fn covers<'p>(
    workspace: &Workspace,
    paths: impl Iterator<Item = &'p PathBuf>,
    (empty_dir, empty_file): (&Path, &Path),
) -> Result<Vec<(CString, CString)>> {
    if !sandbox_support().0.mounts {
        return Ok(Vec::new());
    }
    let mut covers = Vec::new();
    for path in paths {
        let Ok(fd) = beneath::open(workspace.handle(), path, OFlags::PATH) else { continue };
        let is_dir = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
        let cover = c_path(if is_dir { empty_dir } else { empty_file })?;
        covers.push((cover, c_path(&workspace.root().join(path))?));
    }
    Ok(covers)
}

/// The folders that these paths lie in, from the outside in. Moved elsewhere, what is in them would
/// have another name the next time: a file would be hidden no more, and a repository could be
/// replaced by another.
fn pinned<'p>(
    workspace: &Workspace,
    paths: impl Iterator<Item = &'p PathBuf>,
) -> Result<Vec<CString>> {
    if !sandbox_support().0.mounts {
        return Ok(Vec::new());
    }
    let above =
        paths.flat_map(|path| path.ancestors().skip(1)).filter(|dir| !dir.as_os_str().is_empty());
    let folders: BTreeSet<&Path> = above.collect();
    folders.into_iter().map(|dir| c_path(&workspace.root().join(dir))).collect()
}

pub(super) fn setup(error: impl Into<io::Error>) -> Error {
    Error::Sandbox { stage: "pipes", source: error.into() }
}

pub(super) fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::NulArgument)
}

pub(super) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::NulArgument)
}

/// A copy of the handle with a number above those that the children rearrange.
pub(super) fn high(fd: &OwnedFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 10).map_err(setup)
}

pub(super) fn limits() -> Vec<(Resource, libc::rlimit)> {
    const GIB: u64 = 1 << 30;
    let at_most = |resource: Resource, value: u64| {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        (resource, limit)
    };
    vec![
        at_most(libc::RLIMIT_CORE, 0),
        at_most(libc::RLIMIT_FSIZE, 4 * GIB),
        at_most(libc::RLIMIT_NOFILE, 4096),
        // Not RLIMIT_AS, because node and Go reserve far more memory than they use. RLIMIT_DATA
        // counts writable memory.
        at_most(libc::RLIMIT_DATA, 8 * GIB),
        at_most(libc::RLIMIT_NPROC, u64::from(MAX_PROCESSES) + others()),
    ]
}

/// How many processes the user already has. Outside our own user namespace, the limit counts all of
/// them.
fn others() -> u64 {
    let own = rustix::process::getuid();
    // The limit never applies to root, so nothing needs to be counted.
    if sandbox_support().0.user_namespace || own.is_root() {
        return 0;
    }
    let mine = |entry: io::Result<std::fs::DirEntry>| -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        let entry = entry.ok()?;
        entry.file_name().to_str()?.parse::<u32>().ok()?;
        if entry.metadata().ok()?.uid() != own.as_raw() {
            return None;
        }
        // Threads count as processes.
        Some(std::fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64))
    };
    std::fs::read_dir("/proc").map_or(0, |entries| entries.filter_map(mine).sum())
}

pub(super) fn ending(status: i32) -> Ending {
    if libc::WIFEXITED(status) {
        Ending::Exited(libc::WEXITSTATUS(status))
    } else {
        Ending::Killed(libc::WTERMSIG(status))
    }
}

/// The read end and the write end.
type Pipe = (OwnedFd, OwnedFd);

struct Pipes {
    stdout: Pipe,
    stderr: Pipe,
    lifeline: Pipe,
    report: Pipe,
}

impl Pipes {
    fn new() -> Result<Self, Errno> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        Ok(Self { stdout: pipe()?, stderr: pipe()?, lifeline: pipe()?, report: pipe()? })
    }

    fn into_running(self, supervisor: OwnedFd, limit: usize) -> Running {
        let stream = |(reader, _): Pipe| Stream { reader: Some(reader), kept: Kept::new(limit) };
        Running {
            supervisor,
            lifeline: Some(self.lifeline.1),
            report: self.report.0,
            stdout: stream(self.stdout),
            stderr: stream(self.stderr),
        }
    }
}

struct Stream {
    /// `None` after the other side has closed it.
    reader: Option<OwnedFd>,
    kept: Kept,
}

struct Running {
    supervisor: OwnedFd,
    lifeline: Option<OwnedFd>,
    report: OwnedFd,
    stdout: Stream,
    stderr: Stream,
}

impl Running {
    /// Reads output until the supervisor has ended. Returns the reason if the run was ended early.
    fn drain(
        &mut self,
        deadline: Instant,
        cancel: &Cancel,
        live: bool,
    ) -> io::Result<Option<Ending>> {
        let mut stopped = None;
        let mut deadline = deadline;
        let mut chunk = vec![0; 64 << 10];
        loop {
            let ready =
                self.wait(deadline, if stopped.is_none() { Some(cancel.as_fd()) } else { None })?;
            for (stream, ready) in
                [(&mut self.stdout, ready.stdout), (&mut self.stderr, ready.stderr)]
            {
                if ready {
                    let count = stream.read(&mut chunk)?;
                    if live {
                        cancel.printed(&chunk[..count]);
                    }
                }
            }
            if ready.ended {
                break;
            }
            if stopped.is_none() && cancel.is_cancelled() {
                stopped = Some(Ending::Cancelled);
                self.lifeline = None;
                deadline = Instant::now() + END_BY;
            } else if Instant::now() >= deadline {
                if stopped.is_some() {
                    // The supervisor had enough time. In a pid namespace, this ends all processes
                    // immediately.
                    rustix::process::pidfd_send_signal(
                        &self.supervisor,
                        rustix::process::Signal::KILL,
                    )?;
                }
                stopped = stopped.or(Some(Ending::TimedOut));
                self.lifeline = None;
                deadline = Instant::now() + END_BY;
            }
        }
        let exited = rustix::process::WaitIdOptions::EXITED;
        rustix::process::waitid(rustix::process::WaitId::PidFd(self.supervisor.as_fd()), exited)?;
        // Reads what is still in the pipes. A process that escaped may hold them open, so this does
        // not wait.
        self.stdout.rest(&mut chunk)?;
        self.stderr.rest(&mut chunk)?;
        Ok(stopped)
    }

    fn wait(&self, deadline: Instant, cancel: Option<BorrowedFd<'_>>) -> io::Result<Ready> {
        let mut handles = vec![PollFd::new(&self.supervisor, PollFlags::IN)];
        let stdout = self.stdout.reader.is_some().then_some(handles.len());
        handles.extend(self.stdout.reader.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let stderr = self.stderr.reader.is_some().then_some(handles.len());
        handles.extend(self.stderr.reader.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        handles.extend(cancel.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut handles, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_ready = |at: Option<usize>| at.is_some_and(|at| !handles[at].revents().is_empty());
        Ok(Ready { ended: is_ready(Some(0)), stdout: is_ready(stdout), stderr: is_ready(stderr) })
    }

    /// The program's wait status, or the stage that failed before the program started.
    fn report(&self) -> Result<Option<i32>> {
        rustix::fs::fcntl_setfl(&self.report, OFlags::NONBLOCK).map_err(setup)?;
        let mut status = None;
        let mut message = [0u8; 5];
        while let Ok(5) = rustix::io::read(&self.report, &mut message) {
            let [stage, value @ ..] = message;
            let value = i32::from_ne_bytes(value);
            match STAGES.get(usize::from(stage)) {
                Some(&"status") => status = Some(value),
                stage => {
                    let stage = stage.copied().unwrap_or(START_STAGE);
                    return Err(Error::Sandbox {
                        stage,
                        source: io::Error::from_raw_os_error(value),
                    });
                }
            }
        }
        Ok(status)
    }
}

struct Ready {
    ended: bool,
    stdout: bool,
    stderr: bool,
}

impl Stream {
    /// Reads what is in the pipe now and no more, because a process that escaped may keep writing.
    fn rest(&mut self, chunk: &mut [u8]) -> io::Result<()> {
        let Some(reader) = &self.reader else { return Ok(()) };
        rustix::fs::fcntl_setfl(reader, OFlags::NONBLOCK)?;
        let mut left = fcntl_getpipe_size(reader)?;
        while left > 0 {
            let most = chunk.len().min(left);
            match self.read(&mut chunk[..most])? {
                0 => break,
                n => left -= n,
            }
        }
        Ok(())
    }

    /// Reads once. Returns 0 if there is nothing to read now, or ever.
    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        let Some(reader) = &self.reader else { return Ok(0) };
        match rustix::io::retry_on_intr(|| rustix::io::read(reader, &mut *chunk)) {
            Ok(0) => {
                self.reader = None;
                Ok(0)
            }
            Ok(n) => {
                self.kept.push(&chunk[..n]);
                Ok(n)
            }
            Err(Errno::AGAIN) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan without namespaces, whatever the machine supports.
    fn bare(program: &str, args: &[&str], pipes: &Pipes) -> Plan {
        let open = |path: &str| {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        let c = |text: &str| CString::new(text).unwrap();
        Plan {
            program: c(program),
            argv: [&[program], args].concat().into_iter().map(c).collect(),
            envp: vec![c("PATH=/usr/bin:/bin")],
            cwd: open("/"),
            cwd_path: c("/"),
            stdin: high(&open("/dev/null")).unwrap(),
            stdout: high(&pipes.stdout.1).unwrap(),
            stderr: high(&pipes.stderr.1).unwrap(),
            lifeline: high(&pipes.lifeline.0).unwrap(),
            report: high(&pipes.report.1).unwrap(),
            spaces: launch::Spaces::default(),
            tmp: c("/tmp"),
            writable: Vec::new(),
            pinned: Vec::new(),
            hidden: Vec::new(),
            read_only: Vec::new(),
            ruleset: None,
            filters: Vec::new(),
            limits: Vec::new(),
            keep_capabilities: ROOT_KEEPS,
            layered: false,
            inside: Vec::new(),
        }
    }

    /// Whether any process on the machine still has the mark in its command line.
    fn alive(mark: &str) -> bool {
        let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.any(|entry| {
            std::fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
        })
    }

    /// The program ignores SIGTERM and hides a child. Grandchildren end all the time, and the
    /// supervisor is notified of each.
    #[test]
    fn without_a_pid_namespace_nothing_is_left_either() {
        let mark = format!("atelier-bare-{}", std::process::id());
        let script = "trap '' TERM; echo up; setsid sh -c 'sleep 15; :' \"$0\" & \
                      for i in $(seq 300); do (sleep 0.02 &); sleep 0.05; done";
        let pipes = Pipes::new().unwrap();
        let plan = bare("/bin/sh", &["-c", script, &mark], &pipes);
        let supervisor = launch::launch(&plan).unwrap();
        drop(plan);
        let mut running = pipes.into_running(supervisor, 1 << 20);
        let deadline = Instant::now() + Duration::from_secs(2);
        let stopped = running.drain(deadline, &Cancel::new().unwrap()).unwrap();
        assert_eq!(stopped, Some(Ending::TimedOut));
        assert!(deadline.elapsed() < Duration::from_secs(2), "{:?}", deadline.elapsed());
        assert_eq!(running.stdout.kept.text(100).0, "up\n");
        assert!(!alive(&mark));
    }

    #[test]
    fn a_pipe_that_somebody_goes_on_filling_is_read_once() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let capacity = fcntl_getpipe_size(&reader).unwrap();
        rustix::io::write(&writer, &vec![b'x'; capacity]).unwrap();
        let mut stream = Stream { reader: Some(reader), kept: Kept::new(1 << 10) };
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                // Writes until there is no reader any more.
                while rustix::io::write(&writer, &[b'y'; 4096]).is_ok() {}
            });
            begun.wait();
            // Reads in small pieces, so that the writer has time to refill the pipe.
            stream.rest(&mut [0; 16]).unwrap();
            stream.reader = None;
        });
        assert_eq!(stream.kept.seen(), capacity as u64);
    }
}
