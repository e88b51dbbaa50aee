//! Finds other names of protected files: targets of links whose own names are protected, and hard
//! links.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use atelier_core::policy::Policy;
use atelier_core::policy::verdict::Verdict;
use rustix::fs::{AtFlags, FileType, OFlags, Stat};

use super::Tools;
use super::judge::is_secret;
use super::path_restrictions::too_much;
use crate::beneath;
use crate::error::Result;
use crate::layer::Hides;
use crate::walk::{Kind, Names};
use crate::workspace::to_workspace_path;

impl Tools<'_> {
    /// Tells what must be hidden if an entry appears later: the entry, or the target of the link.
    pub(super) fn hides_new(&self) -> Result<Hides> {
        let (policy, ignored) = (self.policy.clone(), self.workspace.ignored()?);
        let root = self.workspace.root().to_owned();
        Ok(Box::new(move |path: &Path, kind: Kind| {
            let is_link = kind == Kind::Symlink;
            let named = is_secret(&policy, path)
                || ignored.hides_entry(path, kind != Kind::File)
                || (is_link && leads_to_secrets(&policy, path));
            match named {
                true if is_link => link_target(&root, path),
                true => Some(path.to_owned()),
                false => None,
            }
        }))
    }

    /// The targets of these links in the workspace. No command reads targets outside of it.
    pub(super) fn link_targets(&self, links: &[PathBuf]) -> Vec<PathBuf> {
        let root = self.workspace.root();
        links.iter().filter_map(|link| link_target(root, link)).collect()
    }

    /// Other names of the hidden files. They are looked for only if a hidden file has several
    /// names, because the search lists all folders.
    pub(super) fn other_names(&self, hidden: &[PathBuf]) -> Result<Vec<PathBuf>> {
        // How many names of each file are still missing, by the file's number.
        let mut missing: HashMap<(u64, u64), u64> = HashMap::new();
        for path in hidden {
            let fd = beneath::open(self.workspace.handle(), path, OFlags::PATH);
            let stat = fd.and_then(rustix::fs::fstat).ok();
            let Some((id, names)) = stat.and_then(|stat| linked(&stat)) else { continue };
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
                entries.push((name.to_owned(), kind));
                Ok(())
            });
            listed.map_err(|_| too_much())?;
            left = left.checked_sub(entries.len() as u64).ok_or_else(too_much)?;
            let is_missing = |name: &OsStr| {
                let stat = rustix::fs::statat(names.handle(), name, AtFlags::SYMLINK_NOFOLLOW);
                let linked = stat.ok().and_then(|stat| linked(&stat));
                linked.is_some_and(|(id, _)| missing.contains_key(&id))
            };
            for (name, kind) in entries {
                let path = dir.join(&name);
                match kind {
                    _ if hidden.contains(path.as_path()) => {}
                    Kind::Directory => todo.push(path),
                    Kind::File if is_missing(&name) => found.push(path),
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}

/// The number of a file that has several names, and how many they are.
#[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
fn linked(stat: &Stat) -> Option<((u64, u64), u64)> {
    let several = FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink > 1;
    several.then_some(((stat.st_dev as u64, stat.st_ino as u64), stat.st_nlink as u64))
}

/// Whether a folder of this name would make files in it protected.
pub(super) fn leads_to_secrets(policy: &Policy, folder: &Path) -> bool {
    let judged = to_workspace_path(folder, "").map(|folder| policy.judge_copied(&folder));
    judged.map_or(true, |judged| judged.verdict > Verdict::Low)
}

/// The target of the link, if it is in the workspace.
fn link_target(root: &Path, link: &Path) -> Option<PathBuf> {
    let link = root.join(link);
    link.symlink_metadata().ok().filter(|meta| meta.file_type().is_symlink())?;
    let target = link.canonicalize().ok()?;
    // The workspace itself is never covered by a mount.
    target.strip_prefix(root).ok().filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned)
}
