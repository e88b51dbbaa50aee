//! What was found out about repositories, so that each history is looked through once and later
//! only what is new.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use atelier_core::policy::git::ProtectedPaths;

use super::git_queries::REMEMBERED;
use super::runner::Runner;
use crate::ignored::Ignored;

/// By which rules files were classified.
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

/// What is known of one repository. Fingerprints say whether it still holds.
#[derive(Debug, Clone)]
pub(crate) struct KnownRepository {
    /// The folder of the repository, as git names it.
    pub(crate) git_dir: PathBuf,
    /// The top of its working tree in the workspace.
    pub(crate) top: PathBuf,
    pub(crate) rules: SecretRules,
    /// The fingerprint of what decides where the top is.
    pub(crate) settings: Option<u64>,
    /// Protected files of the index, with the fingerprint of the index.
    pub(crate) index: Option<(u64, ProtectedPaths)>,
    pub(crate) history: History,
}

/// Which part of a history was looked through, and what was found there.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The fingerprint of all references when `tips` were listed.
    pub(crate) references: Option<u64>,
    /// The fingerprint of what cuts a history off or borrows from another.
    pub(crate) borders: Option<u64>,
    /// The commits that references led to.
    pub(crate) tips: Vec<String>,
    /// Ids that lead to commits whose whole history was looked through.
    pub(crate) commits: HashSet<String>,
    pub(crate) protected: ProtectedPaths,
}

impl Runner {
    /// What is known of the repository by these rules.
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
}
