//! What a command must not see: what `.atelierignore` names, and, when nobody was asked, files of secrets.

use std::path::PathBuf;

use super::Tools;
use crate::error::{Error, Result};
use crate::walk::{Kind, Names};

/// Each is a mount of its own; a workspace with more secrets than this is not what it seems.
const MAX_VEILED: usize = 4096;

impl Tools<'_> {
    /// Paths to hide, as high in the tree as they can be hidden.
    pub(super) fn veiled(&self, secrets: bool) -> Result<Vec<PathBuf>> {
        let ws = self.workspace;
        let ignored = ws.ignored()?;
        let mut veiled = Vec::new();
        if ignored.is_empty() && !secrets {
            return Ok(veiled);
        }
        let too_much = || Error::Sandbox {
            stage: "hide files",
            source: std::io::Error::other("more files to look at or to hide than this can be done for"),
        };
        let mut left = ws.options().max_entries;
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            // Gone or closed to us: then it is closed to the command, too.
            let Ok(mut names) = Names::open(ws.handle(), &dir) else { continue };
            let read = names.each(|name, kind| {
                left = left.checked_sub(1).ok_or(rustix::io::Errno::OVERFLOW)?;
                let path = dir.join(name);
                let is_dir = kind == Kind::Directory;
                if ignored.hides_entry(&path, is_dir)
                    || (secrets && kind != Kind::Symlink && self.is_secret(&path))
                {
                    veiled.push(path);
                } else if is_dir && !(ignored.is_empty() && (name == ".git" || name == "node_modules")) {
                    // Other people's packages and git's own objects hold no secrets of this project by name.
                    todo.push(path);
                }
                Ok(())
            });
            if read.is_err() || veiled.len() > MAX_VEILED {
                return Err(too_much());
            }
        }
        Ok(veiled)
    }
}
