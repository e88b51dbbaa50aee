//! Gives a script in a layer its way to the network: none at all, or a proxy in this process.

use std::io;
use std::os::fd::OwnedFd;

use super::launch;
use super::script_values::ScriptSpec;
use crate::error::{Error, Result};
use crate::proxy::record::Record;
use crate::proxy::{Destinations, Entrance, ProxyLimits, Serving};

pub(super) enum WayOut {
    None,
    Proxy(Entrance),
}

impl WayOut {
    /// Opens the way that a script may use, in the layer's namespaces `join` of `holder`. `None` if
    /// the holder ended before it could be joined.
    pub(super) fn open(spec: &ScriptSpec<'_>, holder: &OwnedFd, join: i32) -> Result<Option<Self>> {
        if spec.hosts.is_empty() {
            return Ok(Some(Self::None));
        }
        match launch::listen_in(holder, join) {
            Ok(listener) => Ok(Some(Self::Proxy(Entrance::new(listener).map_err(failed)?))),
            Err(("join", _)) => Ok(None),
            Err((stage, source)) => Err(Error::Sandbox { stage, source }),
        }
    }

    /// The variables by which programs find the way.
    pub(super) fn environment(&self, spec: &ScriptSpec<'_>) -> Vec<(String, String)> {
        match self {
            Self::None => Vec::new(),
            Self::Proxy(entrance) => entrance.environment(spec.hosts),
        }
    }

    /// Begins to let connections through, until the script's keeper has ended.
    pub(super) fn begin(self, spec: &ScriptSpec<'_>, keeper: &OwnedFd) -> Result<Option<Serving>> {
        let Self::Proxy(entrance) = self else { return Ok(None) };
        let record = Record::begin(spec.job)?;
        let keeper = keeper.try_clone().map_err(failed)?;
        let destinations = Destinations::new(spec.hosts);
        Serving::begin(entrance, destinations, ProxyLimits::default(), record, keeper)
            .map(Some)
            .map_err(failed)
    }
}

fn failed(source: io::Error) -> Error {
    Error::Sandbox { stage: "proxy", source }
}
