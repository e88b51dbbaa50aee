//! How a script in a layer on Linux ends: waits for it, stops it, and reads its keeper's report.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open};

use super::Ending;
use super::launch;
use super::run::{ending, setup};
use super::script::{PATIENCE, StartedScript, io_error, pause, sandbox, stage_of, wait_for};
use super::script_values::{Interrupted, LayerPlaces, ScriptEnding};
use crate::cancel::Cancel;
use crate::error::Result;

/// Whether a process holds the lock of a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared),
        Err(Errno::WOULDBLOCK)
    )
}

/// Asks the keeper of a job to end it, and waits until it has.
pub(crate) fn stop_script(job: &Path) -> Result<()> {
    let alive = job.join("alive");
    let until = Instant::now() + PATIENCE;
    let mut asked = false;
    while is_locked(&alive) {
        let pid = std::fs::read_to_string(job.join("pid")).ok().and_then(|text| text.parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw)
            && let Ok(keeper) = pidfd_open(pid, PidfdFlags::empty())
            && is_locked(&alive)
        {
            use rustix::process::{Signal, pidfd_send_signal};
            let late = Instant::now() >= until;
            if !asked || late {
                let signal = if late { Signal::KILL } else { Signal::TERM };
                pidfd_send_signal(&keeper, signal).map_err(setup)?;
                asked = true;
            }
        }
        pause();
    }
    Ok(())
}

/// Waits until the holder of a layer has ended, after its jobs have.
pub(crate) fn wait_for_holder(places: &LayerPlaces) -> bool {
    let until = Instant::now() + PATIENCE;
    while is_locked(&places.holder) {
        if Instant::now() >= until {
            return false;
        }
        pause();
    }
    true
}

/// Waits for a script in the foreground. If it is cancelled, or if `is_full` says so, it is ended.
pub(crate) fn wait_for_script(
    started: &mut StartedScript,
    cancel: &Cancel,
    mut is_full: impl FnMut() -> bool,
) -> Result<Option<Interrupted>> {
    const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    let mut interrupted = None;
    loop {
        let mut handles = vec![PollFd::new(&started.keeper, PollFlags::IN)];
        if interrupted.is_none() {
            handles.push(PollFd::from_borrowed_fd(cancel.as_fd(), PollFlags::IN));
        }
        let ready = match poll(&mut handles, Some(&LOOK)) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 1,
            Err(errno) => return Err(setup(errno)),
        };
        if !handles[0].revents().is_empty() {
            wait_for(&started.keeper)?;
            return Ok(interrupted);
        }
        if interrupted.is_none() && cancel.is_cancelled() {
            interrupted = Some(Interrupted::Cancelled);
        } else if interrupted.is_none() && ready == 0 && is_full() {
            interrupted = Some(Interrupted::Full);
        }
        if interrupted.is_some() {
            started.owner = None;
        }
    }
}

/// Collects a child that has ended. Returns false if it still runs.
pub(crate) fn collect(child: &OwnedFd) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    !matches!(rustix::process::waitid(WaitId::PidFd(child.as_fd()), options), Ok(None))
}

/// How a script ended; `None` if it has not, or if it never began.
pub(crate) fn read_report(job: &Path) -> Result<Option<ScriptEnding>> {
    let path = job.join("report");
    let bytes = std::fs::read(&path).map_err(io_error("read", &path))?;
    let (mut status, mut why) = (None, None);
    for message in bytes.chunks_exact(5) {
        let Ok(message) = <[u8; 5]>::try_from(message) else { continue };
        let [code, value @ ..] = message;
        match code {
            0 => status = Some(i32::from_ne_bytes(value)),
            launch::ENDED_BY_TIME => why = Some(ScriptEnding::TimedOut),
            launch::ENDED_ON_REQUEST => why = Some(ScriptEnding::Stopped),
            launch::ENDED_FULL => why = Some(ScriptEnding::Full),
            launch::ENDED_EXPOSED => why = Some(ScriptEnding::Exposed),
            launch::KEEPER_DONE => {}
            _ => {
                if let Some((stage, source)) = stage_of(message) {
                    return Err(sandbox(stage, source));
                }
            }
        }
    }
    let own = status.map(|status| match ending(status) {
        Ending::Exited(code) => ScriptEnding::Exited(code),
        Ending::Killed(signal) => ScriptEnding::Killed(signal),
        Ending::TimedOut => ScriptEnding::TimedOut,
        Ending::Cancelled => ScriptEnding::Stopped,
    });
    Ok(why.or(own))
}
