//! Layers that nobody uses any more. They are dropped after a while, and only after somebody was
//! told.

use std::path::Path;

use chrono::{DateTime, Days, Utc};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::scan::is_empty;
use super::{Layer, Layers};
use crate::door::{io_error, now, replace_file};
use crate::error::{Error, Result};

/// So many days before a layer is dropped, somebody must have been told.
const NOTICE: u64 = 7;

/// A layer that is dropped soon, or that was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgingLayer {
    /// The key of the layer; `None` for a layer that an older version made.
    pub key: Option<String>,
    pub last_used: DateTime<Utc>,
    /// When it is dropped if nobody uses it. `None` if it was dropped now.
    pub until: Option<DateTime<Utc>>,
}

impl Layers {
    /// Drops layers that nobody has used for long, if somebody was told in time, and lists those
    /// that must be spoken of. A layer in which a job runs is in use. One without changes is
    /// dropped silently.
    pub fn review(&self) -> Result<Vec<AgingLayer>> {
        let mut aging = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(io_error("list", &self.folder))? {
            let folder = entry.map_err(io_error("list", &self.folder))?.path();
            let layer = Layer { layers: self, folder };
            aging.extend(layer.review()?);
        }
        aging.sort_by_key(|layer| layer.last_used);
        Ok(aging)
    }
}

impl Layer<'_> {
    fn review(&self) -> Result<Option<AgingLayer>> {
        let days = u64::from(self.layers.options.keep_days);
        let Some(last_used) = self.last_used()? else { return Ok(None) };
        if later(last_used, days.saturating_sub(NOTICE)) > now() {
            return Ok(None);
        }
        let lock = self.lock()?;
        // Somebody may have used it in the meantime.
        let Some(last_used) = self.last_used()? else { return Ok(None) };
        let is_old = later(last_used, days) <= now();
        if later(last_used, days.saturating_sub(NOTICE)) > now() || self.is_mounted() {
            return Ok(None);
        }
        let is_unchanged = {
            use std::os::fd::AsFd;
            let upper = self.upper()?;
            is_empty(upper.as_fd(), Path::new("")).map_err(io_error("list", &self.folder))?
        };
        let told = self.time_of("told")?.filter(|told| *told > last_used);
        let key = std::fs::read_to_string(self.folder.join("key")).ok();
        if is_old && (is_unchanged || told.is_some_and(|told| later(told, NOTICE) <= now())) {
            self.remove_all()?;
            std::fs::remove_dir_all(&self.folder).map_err(io_error("remove", &self.folder))?;
            drop(lock);
            let dropped = AgingLayer { key, last_used, until: None };
            return Ok((!is_unchanged).then_some(dropped));
        }
        if is_unchanged {
            return Ok(None);
        }
        let told = match told {
            Some(told) => told,
            None => {
                replace_file(&self.folder.join("told"), b"", false)?;
                now()
            }
        };
        let until = Some(later(last_used, days).max(later(told, NOTICE)));
        Ok(Some(AgingLayer { key, last_used, until }))
    }

    /// When the layer is dropped if nobody uses it from now on.
    pub(crate) fn kept_until(&self) -> DateTime<Utc> {
        later(now(), u64::from(self.layers.options.keep_days))
    }

    /// When somebody last ran a script in the layer or looked at it.
    fn last_used(&self) -> Result<Option<DateTime<Utc>>> {
        match self.time_of("clock")? {
            Some(time) => Ok(Some(time)),
            None => self.time_of("upper"),
        }
    }

    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    fn time_of(&self, name: &str) -> Result<Option<DateTime<Utc>>> {
        let path = self.folder.join(name);
        match rustix::fs::statat(rustix::fs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(DateTime::from_timestamp(stat.st_mtime as i64, 0)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(Error::Io {
                action: "read",
                path: path.display().to_string(),
                source: errno.into(),
            }),
        }
    }
}

fn later(time: DateTime<Utc>, days: u64) -> DateTime<Utc> {
    time.checked_add_days(Days::new(days)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
