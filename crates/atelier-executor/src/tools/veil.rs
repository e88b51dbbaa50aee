//! What a command must not see: what `.atelierignore` names, and, when nobody was asked, files of secrets.

use std::path::{Path, PathBuf};

use atelier_core::policy::call;

use super::Tools;
use crate::beneath;
use crate::error::{Error, Result};
use crate::process::leaving_out;
use crate::walk::{Kind, Names};
use crate::workspace::relative;

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

    /// For a git command that runs unasked: its arguments with what is guarded left out. Hiding files does not do it,
    /// because git has their content, too, and says that a tracked file it cannot see has changed.
    pub(super) fn git_without_guarded(
        &self,
        command: &call::Command,
        veiled: &[PathBuf],
    ) -> Option<Vec<String>> {
        let ws = self.workspace;
        let mut place = relative(&command.cwd).to_owned();
        if let [option, dir, ..] = command.args.as_slice()
            && option == "-C"
        {
            place.push(dir);
        }
        let exists = |path: &Path| beneath::open(ws.handle(), path, rustix::fs::OFlags::PATH).is_ok();
        let top = place.ancestors().find(|dir| exists(&dir.join(".git")))?;
        let globs = self.policy.guarded_globs().into_iter().map(|glob| format!("glob,icase){glob}"));
        let here = veiled.iter().filter_map(|path| path.strip_prefix(top).ok());
        let here = here.map(|path| format!("literal){}", path.display()));
        let excluded: Vec<String> = globs.chain(here).collect();
        leaving_out(&command.args, &excluded, |name| exists(&place.join(name)))
    }
}
