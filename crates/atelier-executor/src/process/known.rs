//! Remembers what was found in repositories and folders, so that each is examined once, and later
//! only its new parts.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use atelier_core::policy::git::ProtectedPaths;
use rustix::fs::Stat;

use super::git_queries::REMEMBERED;
use super::runner::Runner;
use crate::ignored::Ignored;

/// The rules by which files were classified.
#[derive(Debug, Clone)]
pub(crate) struct SecretRules {
    pub(crate) ignored: Arc<Ignored>,
    pub(crate) secrets: Vec<String>,
}

impl SecretRules {
    fn same(&self, other: &Self) -> bool {
        let unruled = self.ignored.is_empty() && other.ignored.is_empty();
        self.secrets == other.secrets && (unruled || Arc::ptr_eq(&self.ignored, &other.ignored))
    }
}

/// The findings about one repository. Fingerprints tell whether they are still valid.
#[derive(Debug, Clone)]
pub(crate) struct KnownRepository {
    /// The folder of the repository, as git names it.
    pub(crate) git_dir: PathBuf,
    /// The top of its working tree in the workspace.
    pub(crate) top: PathBuf,
    pub(crate) rules: SecretRules,
    /// The fingerprint of the files that decide where the top is.
    pub(crate) settings: Option<u64>,
    /// Protected files of the index, with the fingerprint of the index.
    pub(crate) index: Option<(u64, ProtectedPaths)>,
    pub(crate) history: History,
}

/// The part of a history that was examined, and the protected files that it contains.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The fingerprint of all references when `tips` were listed.
    pub(crate) references: Option<u64>,
    /// The fingerprint of the files that cut a history off or borrow objects from another
    /// repository.
    pub(crate) borders: Option<u64>,
    /// The commits that references led to.
    pub(crate) tips: Vec<String>,
    /// Ids that lead to commits whose whole history was examined.
    pub(crate) commits: HashSet<String>,
    pub(crate) protected: ProtectedPaths,
}

/// The files with objects of git that are hidden from scripts and commands, because they may hold
/// protected content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seal {
    /// These files, which hold one object each.
    Files(Vec<PathBuf>),
    /// Everything in the repository that only git reads.
    Everything,
}

/// The result of the last look into the objects of one repository. While the state of the repository
/// is the same, the result holds.
#[derive(Debug)]
pub(crate) struct KnownStore {
    pub(crate) git_dir: PathBuf,
    pub(crate) rules: SecretRules,
    /// The state of the references, the index and the folders of objects; `None` if they had only
    /// just changed.
    pub(crate) state: Option<(u64, Vec<FolderStamp>)>,
    /// The fingerprint of the files that cut a history off or borrow objects from another
    /// repository.
    pub(crate) borders: Option<u64>,
    /// The commits that references led to.
    pub(crate) tips: Vec<String>,
    /// The objects that have a name which is not protected.
    pub(crate) seen: HashSet<u128>,
    pub(crate) seal: Seal,
}

/// The entries of one folder that scripts must not see. Names are those in the folder.
#[derive(Debug, Default)]
pub(crate) struct FolderLook {
    pub(crate) entries: u64,
    /// Whether the folder itself is a repository without a `.git`.
    pub(crate) is_bare: bool,
    pub(crate) hidden: Vec<OsString>,
    /// Links whose own names are protected, so that their targets are hidden, too.
    pub(crate) links: Vec<OsString>,
    /// Names of repositories, each with whether it is a folder.
    pub(crate) repositories: Vec<(OsString, bool)>,
    /// Folders to look into.
    pub(crate) below: Vec<OsString>,
}

/// Changes when an entry of a folder is added, removed or renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderStamp {
    inode: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FolderStamp {
    #[allow(clippy::unnecessary_cast, reason = "the types differ between systems")]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            inode: (stat.st_dev as u64, stat.st_ino as u64),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Whether the folder was changed after this time, or so shortly before that it cannot be told.
    pub(crate) fn is_newer(self, time: SystemTime) -> bool {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.changed.0 >= i64::try_from(time).unwrap_or(0) - 1
    }

    /// Whether the folder was last changed long enough ago. The clock of a file system ticks, and a
    /// further change in the same tick would leave the stamp as it is.
    pub(crate) fn is_settled(self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.changed.0 < i64::try_from(now).unwrap_or(0) - 2
    }
}

/// The findings in folders, made by these rules.
#[derive(Debug)]
pub(super) struct KnownFolders {
    rules: SecretRules,
    folders: HashMap<PathBuf, (FolderStamp, Arc<FolderLook>)>,
}

/// More folders than this are not remembered.
const MOST_FOLDERS: usize = 200_000;

impl Runner {
    /// Forgets findings that were made by other rules.
    pub(crate) fn know_folders_by(&self, rules: SecretRules) {
        let mut known = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.as_ref().is_some_and(|known| known.rules.same(&rules)) {
            *known = Some(KnownFolders { rules, folders: HashMap::new() });
        }
    }

    pub(crate) fn known_folder(&self, dir: &Path, stamp: FolderStamp) -> Option<Arc<FolderLook>> {
        let known = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, look) = known.as_ref()?.folders.get(dir)?;
        (*seen == stamp).then(|| look.clone())
    }

    pub(crate) fn remember_folder(&self, dir: &Path, stamp: FolderStamp, look: Arc<FolderLook>) {
        let mut known = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_mut().filter(|known| known.folders.len() < MOST_FOLDERS) {
            known.folders.insert(dir.to_owned(), (stamp, look));
        }
    }

    /// The findings about the repository that were made by these rules.
    pub(crate) fn known_repository(
        &self,
        git_dir: &Path,
        rules: &SecretRules,
    ) -> Option<KnownRepository> {
        let known = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|known| known.git_dir == git_dir && known.rules.same(rules)).cloned()
    }

    pub(crate) fn remember_repository(&self, repository: KnownRepository) {
        let mut known = self.histories.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.git_dir != repository.git_dir);
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push(repository);
    }

    pub(crate) fn known_store(
        &self,
        git_dir: &Path,
        rules: &SecretRules,
    ) -> Option<Arc<KnownStore>> {
        let known = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|known| known.git_dir == git_dir && known.rules.same(rules)).cloned()
    }

    pub(crate) fn remember_store(&self, store: Arc<KnownStore>) {
        let mut known = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.git_dir != store.git_dir);
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push(store);
    }
}
