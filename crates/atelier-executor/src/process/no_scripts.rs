//! Systems without the sandbox of Linux have no layers, so that no script runs there.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Runner;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::Workspace;

#[derive(Debug, Clone)]
pub(crate) struct LayerPlaces {
    pub(crate) upper: PathBuf,
    pub(crate) work: PathBuf,
    pub(crate) tmp: PathBuf,
    pub(crate) fifo: PathBuf,
    pub(crate) holder: PathBuf,
}

pub(crate) struct ScriptSpec<'a> {
    pub(crate) script: &'a str,
    pub(crate) time: Duration,
    pub(crate) hidden: &'a [PathBuf],
    pub(crate) job: &'a Path,
    pub(crate) most_output: u64,
    pub(crate) most_disk: u64,
    pub(crate) hosts: &'a [String],
}

#[derive(Debug)]
pub(crate) struct StartedScript {
    pub(crate) keeper: OwnedFd,
    pub(crate) owner: Option<OwnedFd>,
    pub(crate) holder: Option<OwnedFd>,
    pub(crate) proxy: Option<std::convert::Infallible>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptEnding {
    Exited(i32),
    Killed(i32),
    TimedOut,
    Stopped,
    Full,
    Exposed,
}

impl Runner {
    pub(crate) fn start_script(
        &self,
        _: &Workspace,
        _: &LayerPlaces,
        _: &ScriptSpec<'_>,
        _: bool,
        _: Option<&OwnedFd>,
    ) -> Result<StartedScript> {
        Err(Error::NoLayers)
    }
}

pub(crate) fn is_locked(_: &Path) -> bool {
    false
}

pub(crate) fn stop_script(_: &Path) -> Result<()> {
    Ok(())
}

pub(crate) fn wait_for_holder(_: &LayerPlaces) -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    Cancelled,
    Full,
}

pub(crate) fn wait_for_script(
    _: &mut StartedScript,
    _: &Cancel,
    _: impl FnMut() -> bool,
) -> Result<Option<Interrupted>> {
    Err(Error::NoLayers)
}

pub(crate) fn collect(_: &OwnedFd) -> bool {
    true
}

pub(crate) fn read_report(_: &Path) -> Result<Option<ScriptEnding>> {
    Ok(None)
}
