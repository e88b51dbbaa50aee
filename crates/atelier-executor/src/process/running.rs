//! A command that was started: its pipes, its output, and its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};

use super::Ending;
use super::launch::{GRACE_MS, KILL_REMAINING_MS, STAGES, START_STAGE};
use super::output::Kept;
use super::run::setup;
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// How late a supervisor may be on a busy machine.
const LATE_MS: i64 = 400;
/// After this time the supervisor itself is killed, and with it its namespace. It is not killed
/// earlier, because without a namespace, processes that it has not found would keep running.
const END_BY: Duration = Duration::from_millis((GRACE_MS + KILL_REMAINING_MS + LATE_MS) as u64);
const _: () = assert!(END_BY.as_millis() < 2000, "a command ends within two seconds");

/// The read end and the write end.
pub(super) type Pipe = (OwnedFd, OwnedFd);

pub(super) struct Pipes {
    pub(super) stdout: Pipe,
    pub(super) stderr: Pipe,
    pub(super) lifeline: Pipe,
    pub(super) report: Pipe,
}

impl Pipes {
    pub(super) fn new() -> Result<Self, Errno> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        Ok(Self { stdout: pipe()?, stderr: pipe()?, lifeline: pipe()?, report: pipe()? })
    }

    pub(super) fn into_running(self, supervisor: OwnedFd, limit: usize) -> Running {
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

pub(super) struct Stream {
    /// `None` after the other side has closed it.
    reader: Option<OwnedFd>,
    pub(super) kept: Kept,
}

pub(super) struct Running {
    supervisor: OwnedFd,
    lifeline: Option<OwnedFd>,
    report: OwnedFd,
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
}

impl Running {
    /// Reads output until the supervisor has ended. Returns the reason if the run was ended early.
    pub(super) fn drain(
        &mut self,
        deadline: Instant,
        cancel: &Cancel,
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
                    stream.read(&mut chunk)?;
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
    pub(super) fn report(&self) -> Result<Option<i32>> {
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
    /// Reads only the bytes that are in the pipe now, because a process that escaped may keep
    /// writing.
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
    use std::ffi::CString;

    use rustix::fs::Mode;

    use super::*;
    use crate::process::launch::{self, Plan};
    use crate::process::run::{ROOT_KEEPS, high};

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
            overlay: None,
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
