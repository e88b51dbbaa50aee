//! Systems without the sandbox of Linux: a process group, a clean environment, limits on time and
//! output. [`Isolation::none`] reports this, and every command is then at least MEDIUM.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};

use super::output::{Kept, texts};
use super::runner::Runner;
use super::{CommandLayer, CommandSpec, Ending, Isolation, Outcome};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::{Workspace, relative};

/// How often a run checks for cancellation.
const TICK: std::time::Duration = std::time::Duration::from_millis(50);

impl Runner {
    pub(super) fn start(
        &self,
        workspace: &Workspace,
        spec: &CommandSpec,
        _: Option<&CommandLayer>,
        environment: Vec<(String, String)>,
        cancel: &Cancel,
    ) -> Result<Outcome> {
        let fail = |source| Error::Sandbox { stage: "start", source };
        let started = Instant::now();
        let tmp = self.temporary()?;
        self.lend(spec, tmp.path())?;
        #[expect(clippy::disallowed_methods, reason = "this is the executor")]
        let mut command = Command::new(self.find(workspace, &spec.program)?);
        command
            .args(&spec.args)
            .env_clear()
            .envs(environment)
            .env("TMPDIR", tmp.path())
            .current_dir(workspace.root().join(relative(&spec.cwd)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(fail)?;
        let (sender, ended) = mpsc::channel();
        let out = child.stdout.take().map(|pipe| collect(pipe, spec.output_limit, sender.clone()));
        let err = child.stderr.take().map(|pipe| collect(pipe, spec.output_limit, sender));
        let mut stopped = None;
        while stopped.is_none() && ended.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout)
        {
            if cancel.is_cancelled() {
                stopped = Some(Ending::Cancelled);
            } else if started.elapsed() >= spec.timeout {
                stopped = Some(Ending::TimedOut);
            }
        }
        if let Some(group) = Pid::from_raw(i32::try_from(child.id()).unwrap_or(0)) {
            if stopped.is_some() {
                kill_process_group(group, Signal::KILL).ok();
            }
        }
        let status = child.wait().map_err(fail)?;
        let join = |thread: Option<std::thread::JoinHandle<Kept>>| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_else(|| Kept::new(0))
        };
        let (out, err) = (join(out), join(err));
        let (stdout_bytes, stderr_bytes) = (out.seen(), err.seen());
        let (stdout, stderr, truncated) = texts(out, err, spec.output_limit);
        let ended =
            status.code().map_or(Ending::Killed(status.signal().unwrap_or(0)), Ending::Exited);
        Ok(Outcome {
            ending: stopped.unwrap_or(ended),
            stdout,
            stderr,
            truncated,
            stdout_bytes,
            stderr_bytes,
            elapsed: started.elapsed(),
            isolation: Isolation::none(),
            access: spec.access,
            network: spec.network,
        })
    }
}

/// Reads one pipe to its end. Dropping the sender reports the end.
fn collect(
    mut pipe: impl Read + Send + 'static,
    limit: usize,
    ended: mpsc::Sender<()>,
) -> std::thread::JoinHandle<Kept> {
    std::thread::spawn(move || {
        let mut kept = Kept::new(limit);
        let mut chunk = vec![0; 64 << 10];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            kept.push(&chunk[..n]);
        }
        drop(ended);
        kept
    })
}
