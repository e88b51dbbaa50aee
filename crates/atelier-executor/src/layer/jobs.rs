//! Scripts that were run in a layer: what they wrote, and whether they still run.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Layer;
use crate::door::{io_error, now, private_folder, replace_file};
use crate::error::{Error, Result};
use crate::process::{ScriptEnding, is_locked, read_report, stop_script, wait_for_holder};
use crate::proxy::record::{Connection, connections};

pub(super) const OUTPUTS: [&str; 2] = ["stdout", "stderr"];
/// So many scripts that have ended are kept, with their output.
const KEPT_JOBS: usize = 50;

/// The folder of one script.
#[derive(Debug)]
pub(super) struct JobFile {
    pub(super) id: String,
    pub(super) folder: PathBuf,
}

/// A script, as it was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) job_id: String,
    pub(crate) script: String,
    pub(crate) background: bool,
    pub(crate) started_at: DateTime<Utc>,
}

/// A script and how it is.
#[derive(Debug, Clone)]
pub(crate) struct JobState {
    pub(crate) job: Job,
    pub(crate) running: bool,
    pub(crate) ending: Option<ScriptEnding>,
    /// How many bytes it has written to standard output and standard error.
    pub(crate) written: [u64; 2],
    /// The connections of it that have ended; `None` if it could make none.
    pub(crate) connections: Option<Vec<Connection>>,
}

/// A part of what a script wrote.
pub(crate) struct JobOutput {
    pub(crate) state: JobState,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Where the next part begins.
    pub(crate) next: u64,
}

impl Layer<'_> {
    pub(super) fn new_job(&self, script: &str, background: bool) -> Result<JobFile> {
        let started_at = now();
        let id = format!("{:012x}{:04x}", started_at.timestamp_micros(), rand::random::<u16>());
        let folder = self.folder.join("jobs").join(&id);
        private_folder(&folder)?;
        let job = Job { job_id: id.clone(), script: script.to_owned(), background, started_at };
        let path = folder.join("job.json");
        let text =
            serde_json::to_vec(&job).map_err(|error| io_error("write", &path)(error.into()))?;
        replace_file(&path, &text, false)?;
        for name in OUTPUTS.iter().chain(&["report", "alive"]) {
            let path = folder.join(name);
            File::create(&path).map_err(io_error("make", &path))?;
        }
        Ok(JobFile { id, folder })
    }

    fn job_folder(&self, id: &str) -> Result<PathBuf> {
        let folder = self.folder.join("jobs").join(id);
        let known = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
        match known && folder.is_dir() {
            true => Ok(folder),
            false => Err(Error::Unknown { what: format!("the job {id}") }),
        }
    }

    /// All jobs in the background that are known, newest first.
    pub(crate) fn jobs(&self) -> Result<Vec<JobState>> {
        let mut jobs = Vec::new();
        for id in self.job_ids()? {
            let state = self.job(&id)?;
            if state.job.background || state.running {
                jobs.push(state);
            }
        }
        Ok(jobs)
    }

    fn job_ids(&self) -> Result<Vec<String>> {
        let folder = self.folder.join("jobs");
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io_error("list", &folder))? {
            let entry = entry.map_err(io_error("list", &folder))?;
            if entry.path().join("job.json").exists() {
                ids.extend(entry.file_name().to_str().map(str::to_owned));
            }
        }
        ids.sort();
        ids.reverse();
        Ok(ids)
    }

    pub(crate) fn job(&self, id: &str) -> Result<JobState> {
        let folder = self.job_folder(id)?;
        let path = folder.join("job.json");
        let text = std::fs::read(&path).map_err(io_error("read", &path))?;
        let job =
            serde_json::from_slice(&text).map_err(|error| io_error("read", &path)(error.into()))?;
        let running = is_locked(&folder.join("alive"));
        let ending = match running {
            true => None,
            // A script whose machine was switched off has no report.
            false => Some(read_report(&folder)?.unwrap_or(ScriptEnding::Killed(9))),
        };
        let length = |name: &str| folder.join(name).metadata().map_or(0, |meta| meta.len());
        let connections = connections(&folder)?;
        Ok(JobState { job, running, ending, written: OUTPUTS.map(length), connections })
    }

    /// What a script wrote, from a byte on. Both outputs are read at the same offset.
    pub(crate) fn job_output(&self, id: &str, offset: u64, limit: u64) -> Result<JobOutput> {
        let folder = self.job_folder(id)?;
        let state = self.job(id)?;
        let part = |name: &str| -> Result<(String, u64)> {
            let path = folder.join(name);
            let mut file = File::open(&path).map_err(io_error("read", &path))?;
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(offset)).map_err(io_error("read", &path))?;
            file.take(limit).read_to_end(&mut bytes).map_err(io_error("read", &path))?;
            Ok((String::from_utf8_lossy(&bytes).into_owned(), bytes.len() as u64))
        };
        let (stdout, out) = part(OUTPUTS[0])?;
        let (stderr, err) = part(OUTPUTS[1])?;
        Ok(JobOutput { state, stdout, stderr, next: offset.saturating_add(out.max(err)) })
    }

    pub(crate) fn stop_job(&self, id: &str) -> Result<JobState> {
        stop_script(&self.job_folder(id)?)?;
        self.job(id)
    }

    /// Ends everything that runs in the layer.
    pub(crate) fn stop_all(&self) -> Result<()> {
        for id in self.job_ids()? {
            stop_script(&self.job_folder(&id)?)?;
        }
        match wait_for_holder(&self.places()) {
            true => Ok(()),
            false => {
                let source = std::io::Error::other("a process of the layer does not end");
                Err(Error::Sandbox { stage: "end", source })
            }
        }
    }

    /// Refuses a job if as many run as may. Each holds processes and handles of this machine.
    pub(super) fn check_room_for_job(&self) -> Result<()> {
        let options = &self.layers.options;
        let layers = &self.layers.folder;
        let running = self.running_jobs();
        let mut all = 0;
        for entry in std::fs::read_dir(layers).map_err(io_error("list", layers))? {
            let folder = entry.map_err(io_error("list", layers))?.path();
            all += Layer { layers: self.layers, folder, cancel: None }.running_jobs();
        }
        match (running >= options.max_jobs, all >= options.max_jobs_in_all) {
            (true, _) => Err(Error::TooManyJobs { limit: options.max_jobs }),
            (_, true) => Err(Error::TooManyJobs { limit: options.max_jobs_in_all }),
            _ => Ok(()),
        }
    }

    /// How many scripts run in the layer.
    fn running_jobs(&self) -> usize {
        let jobs = self.folder.join("jobs");
        let ids = self.job_ids().unwrap_or_default();
        ids.iter().filter(|id| is_locked(&jobs.join(id).join("alive"))).count()
    }

    pub(super) fn has_running_jobs(&self) -> bool {
        let jobs = self.folder.join("jobs");
        // If it cannot be found out, there may be some.
        self.job_ids()
            .map_or(true, |ids| ids.iter().any(|id| is_locked(&jobs.join(id).join("alive"))))
    }

    /// Removes the oldest scripts that have ended.
    pub(super) fn forget_old_jobs(&self) {
        let ended =
            |id: &String| self.job_folder(id).is_ok_and(|folder| !is_locked(&folder.join("alive")));
        let Ok(ids) = self.job_ids() else { return };
        for id in ids.into_iter().filter(ended).skip(KEPT_JOBS) {
            let folder = self.folder.join("jobs").join(id);
            if let Err(error) = std::fs::remove_dir_all(&folder) {
                tracing::warn!(%error, "cannot remove the output of an old script");
            }
        }
    }
}
