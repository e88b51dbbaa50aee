//! Other ways to a protected file: what a link leads to whose own name is protected, and other names
//! of the same file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use atelier_core::policy::verdict::Verdict;
use rustix::fs::{FileType, OFlags};

use super::Tools;
use super::path_restrictions::too_much;
use crate::beneath;
use crate::error::Result;
use crate::walk::{Kind, Names};
use crate::workspace::to_workspace_path;

impl Tools<'_> {
    /// Whether a folder of this name would hold protected files because of where they lie.
    pub(super) fn leads_to_secrets(&self, folder: &Path) -> bool {
        let judged = to_workspace_path(folder, "").map(|folder| self.policy.judge_copied(&folder));
        judged.map_or(true, |judged| judged.verdict > Verdict::Low)
    }

    /// What these links lead to in the workspace. What is outside of it no command reads.
    pub(super) fn led_to(&self, links: &[PathBuf]) -> Vec<PathBuf> {
        let root = self.workspace.root();
        let is_link =
            |path: &Path| path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_symlink());
        let links = links.iter().map(|link| root.join(link)).filter(|link| is_link(link));
        let targets = links.filter_map(|link| link.canonicalize().ok());
        let inside = targets.filter_map(|path| path.strip_prefix(root).ok().map(Path::to_owned));
        // The workspace itself is never covered by a mount.
        inside.filter(|path| !path.as_os_str().is_empty()).collect()
    }

    /// Other names of the hidden files. They are looked for only if there are some, because that
    /// means to list all folders.
    pub(super) fn other_names(&self, hidden: &[PathBuf]) -> Result<Vec<PathBuf>> {
        // Names that are missing, by the number of the file.
        let mut missing: HashMap<(u64, u64), u64> = HashMap::new();
        for path in hidden {
            let Some((id, names)) = self.linked_file(path) else { continue };
            let left = missing.entry(id).or_insert(names);
            *left = left.saturating_sub(1);
        }
        missing.retain(|_, left| *left > 0);
        let mut found = Vec::new();
        if missing.is_empty() {
            return Ok(found);
        }
        let hidden: HashSet<&Path> = hidden.iter().map(PathBuf::as_path).collect();
        let mut left = self.workspace.options().max_entries;
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            // The folder is gone or not readable, so the command cannot read it either.
            let Ok(mut names) = Names::open(self.workspace.handle(), &dir) else { continue };
            let mut entries = Vec::new();
            let listed = names.each(|name, kind| {
                entries.push((dir.join(name), kind));
                Ok(())
            });
            listed.map_err(|_| too_much())?;
            left = left.checked_sub(entries.len() as u64).ok_or_else(too_much)?;
            for (path, kind) in entries {
                if hidden.contains(path.as_path()) {
                    continue;
                }
                if kind == Kind::Directory {
                    todo.push(path);
                } else if kind == Kind::File
                    && self.linked_file(&path).is_some_and(|(id, _)| missing.contains_key(&id))
                {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// The number of a file that has several names, and how many they are.
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    fn linked_file(&self, path: &Path) -> Option<((u64, u64), u64)> {
        let fd = beneath::open(self.workspace.handle(), path, OFlags::PATH).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let several = FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink > 1;
        several.then_some(((stat.st_dev as u64, stat.st_ino as u64), stat.st_nlink as u64))
    }
}
