//! The functions of `script` for systems without the sandbox of Linux: these have no layers, so no
//! script runs there.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::Runner;
use super::script_values::{Interrupted, LayerPlaces, ScriptEnding, ScriptSpec};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::workspace::Workspace;

#[derive(Debug)]
pub(crate) struct StartedScript {
    pub(crate) keeper: OwnedFd,
    pub(crate) owner: Option<OwnedFd>,
    pub(crate) holder: Option<OwnedFd>,
    pub(crate) proxy: Option<std::convert::Infallible>,
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
