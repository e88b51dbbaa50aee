//! Other ways to a protected file: what a link leads to whose own name is protected, and other names
//! of the same file.

use std::cell::OnceCell;
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
    /// Tells what must be hidden if an entry appears later: the entry, or what the link leads to.
    pub(super) fn hides_new(&self) -> Result<Hides> {
        let (policy, ignored) = (self.policy.clone(), self.workspace.ignored()?);
        let root = self.workspace.root().to_owned();
        Ok(Box::new(move |path: &Path, kind: Kind| {
            let is_link = kind == Kind::Symlink;
            let named = is_secret(&policy, path)
                || ignored.hides_entry(path, kind != Kind::File)
                || (is_link && leads_to_secrets(&policy, path));
            match named {
                true if is_link => led_to(&root, path),
                true => Some(path.to_owned()),
                false => None,
            }
        }))
    }

    /// Tells whether the content that the workspace has at a path is kept from those whom nobody has
    /// approved to read it: because of its name, or as another name of such a file.
    pub(super) fn withheld(&self) -> impl Fn(&Path) -> bool {
        // If the rules cannot be read, everything may be hidden.
        let rules = self.workspace.ignored();
        let hidden = OnceCell::new();
        move |path| {
            if rules.as_ref().map_or(true, |rules| rules.hides(path, false)) || self.is_secret(path)
            {
                return true;
            }
            let fd = beneath::open(self.workspace.handle(), path, OFlags::PATH);
            let stat = fd.and_then(rustix::fs::fstat).ok();
            let Some((id, _)) = stat.and_then(|stat| linked(&stat)) else { return false };
            let hidden = hidden.get_or_init(|| self.linked_in_hidden());
            hidden.as_ref().map_or(true, |hidden| hidden.contains(&id))
        }
    }

    /// The numbers of protected files that have several names.
    fn linked_in_hidden(&self) -> Result<HashSet<(u64, u64)>> {
        let mut found = HashSet::new();
        let mut left = self.workspace.options().max_entries;
        let mut todo = self.hidden_everywhere()?;
        while let Some(path) = todo.pop() {
            left = left.checked_sub(1).ok_or_else(too_much)?;
            let fd = beneath::open(self.workspace.handle(), &path, OFlags::PATH);
            // It is gone, or a link, which has no content.
            let Ok(stat) = fd.and_then(rustix::fs::fstat) else { continue };
            found.extend(linked(&stat).map(|(id, _)| id));
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                let listed = Names::open(self.workspace.handle(), &path).and_then(|mut names| {
                    names.each(|name, _| {
                        todo.push(path.join(name));
                        Ok(())
                    })
                });
                listed.map_err(|_| too_much())?;
            }
        }
        Ok(found)
    }

    /// What these links lead to in the workspace. What is outside of it no command reads.
    pub(super) fn led_to(&self, links: &[PathBuf]) -> Vec<PathBuf> {
        let root = self.workspace.root();
        links.iter().filter_map(|link| led_to(root, link)).collect()
    }

    /// Other names of the hidden files. They are looked for only if there are some, because that
    /// means to list all folders.
    pub(super) fn other_names(&self, hidden: &[PathBuf]) -> Result<Vec<PathBuf>> {
        // Names that are missing, by the number of the file.
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

/// Whether a folder of this name would hold protected files because of where they lie.
pub(super) fn leads_to_secrets(policy: &Policy, folder: &Path) -> bool {
    let judged = to_workspace_path(folder, "").map(|folder| policy.judge_copied(&folder));
    judged.map_or(true, |judged| judged.verdict > Verdict::Low)
}

/// What the link leads to in the workspace.
fn led_to(root: &Path, link: &Path) -> Option<PathBuf> {
    let link = root.join(link);
    link.symlink_metadata().ok().filter(|meta| meta.file_type().is_symlink())?;
    let target = link.canonicalize().ok()?;
    // The workspace itself is never covered by a mount.
    target.strip_prefix(root).ok().filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned)
}
