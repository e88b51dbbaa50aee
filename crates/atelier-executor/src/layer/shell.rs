//! Runs a script in a layer.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use super::guard::{Protected, guard};
use super::jobs::OUTPUTS;
use super::live::Tail;
use super::scan::too_large;
use super::{Layer, Scan};
use crate::cancel::Cancel;
use crate::door::io_error;
use crate::error::Result;
use crate::process::{
    Interrupted, Kept, Runner, ScriptEnding, ScriptSpec, read_report, texts, wait_for_script,
};
use crate::proxy::record::{Connection, connections};
use crate::workspace::Workspace;

/// A job without a time of its own ends after this time.
const LONGEST_JOB: Duration = Duration::from_secs(8 * 3600);

/// What to run.
pub(crate) struct Shell<'a> {
    pub(crate) script: &'a str,
    /// None for a job without a limit.
    pub(crate) time: Option<Duration>,
    pub(crate) background: bool,
    /// What the script must not see.
    pub(crate) protected: Protected,
    /// The hosts that it may connect to.
    pub(crate) hosts: &'a [String],
}

/// What came of a script.
pub(crate) struct ShellRun {
    pub(crate) job_id: String,
    /// None for a job that goes on.
    pub(crate) ending: Option<ScriptEnding>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) truncated: bool,
    pub(crate) elapsed: Duration,
    pub(crate) scan: Scan,
    /// The layer holds more than it may.
    pub(crate) too_large: bool,
    /// The connections that it made; `None` if it could make none.
    pub(crate) connections: Option<Vec<Connection>>,
}

impl Layer<'_> {
    /// Runs a script until it ends, or begins a job.
    pub(crate) fn shell(
        &self,
        runner: &Runner,
        workspace: &Workspace,
        shell: Shell<'_>,
        cancel: &Cancel,
    ) -> Result<ShellRun> {
        let began = Instant::now();
        let options = &self.layers.options;
        let lock = self.lock()?;
        if !self.is_mounted() {
            self.drop_landed(workspace, &lock)?;
        }
        let scan = self.scan(workspace, &lock)?;
        if let Some(error) = too_large(&scan, options.max_bytes) {
            return Err(error);
        }
        if !self.is_mounted() {
            let mut bases = self.bases()?;
            bases.begin_at(self.moment()?);
            self.write_bases(&bases)?;
        }
        let job = self.new_job(shell.script, shell.background)?;
        let spec = ScriptSpec {
            script: shell.script,
            time: shell.time.unwrap_or(LONGEST_JOB),
            hidden: &shell.protected.hidden,
            job: &job.folder,
            most_output: options.kept_output,
            // Others use the disk, too. Only if very much is gone, the keeper ends the script
            // without a closer look.
            most_disk: options.max_bytes.saturating_mul(4),
            hosts: shell.hosts,
        };
        let room = options.max_bytes.saturating_sub(scan.bytes);
        let free_before = self.free_bytes();
        let places = self.places();
        let owner = self.layers.owner();
        let mut started =
            runner.start_script(workspace, &places, &spec, shell.background, owner)?;
        self.layers.adopt(started.holder.take());
        let handles = workspace
            .handle()
            .try_clone_to_owned()
            .and_then(|root| Ok((root, started.keeper.try_clone()?)));
        let (root, keeper) = handles.map_err(io_error("watch", workspace.root()))?;
        guard(root, keeper, shell.protected);
        lock.release();
        if shell.background {
            self.layers.adopt([started.keeper]);
            return Ok(ShellRun {
                job_id: job.id,
                ending: None,
                stdout: String::new(),
                stderr: String::new(),
                truncated: false,
                elapsed: began.elapsed(),
                scan,
                too_large: false,
                connections: None,
            });
        }
        // The disk says at no cost whether a closer look is worth while.
        let mut tail = Tail::open(&job.folder, cancel);
        let is_full = || {
            tail.pass_on(cancel);
            free_before.saturating_sub(self.free_bytes()) > room
                && self.used_bytes().is_ok_and(|used| used > options.max_bytes)
        };
        let interrupted = wait_for_script(&mut started, cancel, is_full)?;
        let ending = match (interrupted, read_report(&job.folder)?) {
            (Some(Interrupted::Full), _) => ScriptEnding::Full,
            (_, ending) => ending.unwrap_or(ScriptEnding::Killed(9)),
        };
        if let Some(proxy) = started.proxy.take() {
            proxy.finish();
        }
        let connections = connections(&job.folder)?;
        let elapsed = began.elapsed();
        let (stdout, stderr, truncated) = read_outputs(&job.folder, options.output_limit)?;
        let lock = self.lock()?;
        let scan = self.scan(workspace, &lock)?;
        let too_large = too_large(&scan, options.max_bytes).is_some();
        self.forget_old_jobs();
        lock.release();
        let ending = Some(ending);
        let job_id = job.id;
        Ok(ShellRun {
            job_id,
            ending,
            stdout,
            stderr,
            truncated,
            elapsed,
            scan,
            too_large,
            connections,
        })
    }
}

fn read_outputs(job: &Path, limit: usize) -> Result<(String, String, bool)> {
    let read = |name: &str| -> Result<Kept> {
        let path = job.join(name);
        let mut kept = Kept::new(limit);
        let mut file = File::open(&path).map_err(io_error("read", &path))?;
        let mut chunk = vec![0; 64 << 10];
        loop {
            match file.read(&mut chunk).map_err(io_error("read", &path))? {
                0 => return Ok(kept),
                n => kept.push(&chunk[..n]),
            }
        }
    };
    Ok(texts(read(OUTPUTS[0])?, read(OUTPUTS[1])?, limit))
}
