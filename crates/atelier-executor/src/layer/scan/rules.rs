//! What git ignores, as a layer has its rules.

use std::io::Read;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, OFlags};

use super::{Walk, is_whiteout};
use crate::beneath;
use crate::door::stat_at;

/// Files of rules longer than this are not read.
const LONGEST_RULES: u64 = 1 << 20;

/// The rules of one folder about what git ignores.
pub(super) struct Rules {
    pub(super) dir: PathBuf,
    rules: Gitignore,
}

impl Walk<'_> {
    pub(super) fn is_ignored(&self, path: &Path, is_dir: bool) -> bool {
        for rules in self.rules.iter().rev() {
            let Ok(below) = path.strip_prefix(&rules.dir) else { continue };
            let found = rules.rules.matched_path_or_any_parents(below, is_dir);
            if !found.is_none() {
                return found.is_ignore();
            }
        }
        false
    }

    /// Reads the rules of a folder, as the layer has them.
    pub(super) fn add_rules(&mut self, dir: &Path, depth: usize) -> std::io::Result<()> {
        let mut texts = Vec::new();
        if depth == 0 {
            texts.extend(self.read(Path::new(".git/info/exclude"))?);
        }
        texts.extend(self.read(&dir.join(".gitignore"))?);
        if texts.is_empty() {
            return Ok(());
        }
        let mut builder = GitignoreBuilder::new("");
        for line in texts.iter().flat_map(|text| text.lines()) {
            // A line that git does not understand ignores nothing.
            builder.add_line(None, line).ok();
        }
        if let Ok(rules) = builder.build() {
            self.rules.push(Rules { dir: dir.to_owned(), rules });
        }
        Ok(())
    }

    /// A text file as the layer shows it. If everything is listed, the workspace's own rules count:
    /// a command must not decide which of its changes are products.
    fn read(&self, path: &Path) -> std::io::Result<Option<String>> {
        let side = match stat_at(self.upper, path)? {
            _ if self.whole.is_some() => self.lower,
            Some(stat) if is_whiteout(&stat) => return Ok(None),
            Some(_) => self.upper,
            None => self.lower,
        };
        let Ok(fd) = beneath::open(side, path, OFlags::RDONLY | OFlags::NOFOLLOW) else {
            return Ok(None);
        };
        if !rustix::fs::fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file())
        {
            return Ok(None);
        }
        let mut text = Vec::new();
        std::fs::File::from(fd).take(LONGEST_RULES).read_to_end(&mut text)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}
