//! What goes on beside the requests: removing what nothing points to, renewing copies, keeping the cache small.

use crate::{
    Error, Files, Result,
    copies::{AT_ONCE, is_true_copy, remove_object},
};
use atelier_core::{ConversationFile, ConversationId, time_delta};
use chrono::Utc;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, path::Path as Key};
use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

/// What a sweep found and mended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Objects without a row that were removed.
    pub orphans: usize,
    /// Copies that were missing or wrong.
    pub copies: usize,
}

/// How soon what failed is tried again.
const AGAIN: Duration = Duration::from_secs(10);
const BATCH: i64 = 500;

impl Files {
    /// Runs until dropped.
    pub async fn tend(&self) {
        let due = async {
            loop {
                self.remove_due().await;
                self.renew_all_copies().await;
                drop(tokio::time::timeout(AGAIN, self.upkeep.notified()).await);
            }
        };
        let sweeps = async {
            let mut rounds = tokio::time::interval(self.settings.sweep.max(Duration::from_millis(100)));
            rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                rounds.tick().await;
                match self.sweep().await {
                    Ok(Swept { orphans: 0, copies: 0 }) => {}
                    Ok(swept) => tracing::info!(?swept, "swept the object store"),
                    Err(error) => tracing::warn!(%error, "cannot sweep the object store"),
                }
            }
        };
        tokio::join!(due, sweeps);
    }

    /// Removes the objects that are due. What fails stays due.
    pub(crate) async fn remove_due(&self) {
        if let Err(error) = self.try_remove_due().await {
            tracing::warn!(%error, "cannot remove objects; trying again");
        }
    }

    async fn try_remove_due(&self) -> Result<()> {
        while self.remove_batch().await? {}
        Ok(())
    }

    /// Removes the first of them; the rest is left to the upkeep.
    pub(crate) async fn remove_some(&self) {
        match self.remove_batch().await {
            Ok(false) => {}
            Ok(true) => self.upkeep.notify_one(),
            Err(error) => tracing::warn!(%error, "cannot remove objects; trying again"),
        }
    }

    /// Whether there may be more.
    async fn remove_batch(&self) -> Result<bool> {
        let due = self.store.due_removals(BATCH).await?;
        let more = due.len() as i64 == BATCH;
        let removals = due.into_iter().map(|key| async move {
            remove_object(&self.place, &Key::from(key.as_str())).await.map(|()| key)
        });
        let outcomes: Vec<Result<String>> =
            futures::stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
        let mut failed = None;
        let mut gone = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            match outcome {
                Ok(key) => gone.push(key),
                Err(error) => failed = Some(error),
            }
        }
        if !gone.is_empty() {
            self.store.removals_done(gone).await?;
        }
        failed.map_or(Ok(more), Err)
    }

    async fn renew_all_copies(&self) {
        let stale = match self.store.stale_copies(None, BATCH).await {
            Ok(stale) => stale,
            Err(error) => return tracing::warn!(%error, "cannot look for copies to renew"),
        };
        let conversations: HashSet<ConversationId> = stale.iter().map(|copy| copy.conversation).collect();
        for conversation in conversations {
            if let Err(error) = self.renew_copies(conversation).await {
                tracing::warn!(%error, %conversation, "copies are behind; trying again");
            }
        }
    }

    /// Looks through the object store: contents without a row go once they are old enough, copies that are missing,
    /// of another size or (on a disk) written to are made anew. Objects of conversations that this database does not know are left alone:
    /// they may be another server's.
    pub async fn sweep(&self) -> Result<Swept> {
        let mut swept = Swept::default();
        let mut listing: HashMap<ConversationId, Vec<ObjectMeta>> = HashMap::new();
        let mut objects = self.place.objects.list(self.place.top().as_ref());
        while let Some(object) = objects.try_next().await? {
            if let Some(conversation) = self.conversation_of(&object.location) {
                listing.entry(conversation).or_default().push(object);
            }
        }
        for (conversation, objects) in listing {
            if !self.store.conversation_exists(conversation).await? {
                continue;
            }
            // Trouble in one of them is no reason to leave out the others.
            match self.sweep_contents(conversation, &objects).await {
                Ok(removed) => swept.orphans += removed,
                Err(error) => tracing::warn!(%error, %conversation, "cannot sweep contents"),
            }
            match self.sweep_copies(conversation, &objects).await {
                Ok(renewed) => swept.copies += renewed,
                Err(error) => tracing::warn!(%error, %conversation, "cannot sweep copies"),
            }
        }
        self.end_old_uploads().await?;
        self.remove_due().await;
        self.renew_all_copies().await;
        self.sweep_cache().await?;
        Ok(swept)
    }

    /// `{prefix}{conversation}.blobs/…` or `{prefix}{conversation}/…`.
    fn conversation_of(&self, key: &Key) -> Option<ConversationId> {
        let rest = key.as_ref().strip_prefix(&self.settings.prefix)?;
        let (folder, _) = rest.split_once('/')?;
        folder.strip_suffix(".blobs").unwrap_or(folder).parse().ok()
    }

    async fn sweep_contents(&self, conversation: ConversationId, objects: &[ObjectMeta]) -> Result<usize> {
        let contents = self.place.contents(conversation);
        let oldest = Utc::now() - time_delta(self.settings.grace);
        let old: Vec<&ObjectMeta> = objects
            .iter()
            .filter(|object| object.location.prefix_matches(&contents) && object.last_modified <= oldest)
            .collect();
        if let Some(disk) = &self.place.disk {
            let (folder, grace) = (disk.join(contents.as_ref()), self.settings.grace);
            tokio::task::spawn_blocking(move || sweep_staged(&folder, grace)).await?;
        }
        if old.is_empty() {
            return Ok(0);
        }
        // Asked after the listing: a row that came meanwhile counts.
        let mut known: HashSet<String> =
            self.store.blob_keys(conversation).await?.into_iter().map(|(_, key)| key).collect();
        known.extend(self.store.part_keys(conversation).await?);
        let mut removed = 0;
        for object in old.into_iter().filter(|object| !known.contains(object.location.as_ref())) {
            remove_object(&self.place, &object.location).await?;
            removed += 1;
        }
        Ok(removed)
    }

    async fn sweep_copies(&self, conversation: ConversationId, objects: &[ObjectMeta]) -> Result<usize> {
        if !self.settings.copies {
            return Ok(0);
        }
        let files = self.store.files(conversation).await?;
        let wrong: Vec<ConversationFile> = match &self.place.disk {
            Some(disk) => {
                let keys: HashMap<String, String> =
                    self.store.blob_keys(conversation).await?.into_iter().collect();
                let (disk, folder) = (disk.clone(), disk.join(self.place.workspace(conversation)));
                let is_right = move |file: &ConversationFile| {
                    keys.get(&file.checksum).is_none_or(|key| {
                        is_true_copy(&disk.join(key), &folder.join(file.file_path.as_str()))
                    })
                };
                let check = move || files.into_iter().filter(|file| !is_right(file)).collect();
                tokio::task::spawn_blocking(check).await?
            }
            None => {
                let sizes: HashMap<&str, u64> =
                    objects.iter().map(|object| (object.location.as_ref(), object.size)).collect();
                let size = |file: &ConversationFile| {
                    sizes.get(self.place.copy(conversation, &file.file_path).as_str()).copied()
                };
                files.into_iter().filter(|file| size(file) != Some(file.file_size as u64)).collect()
            }
        };
        let count = wrong.len();
        if count > 0 {
            self.store.mark_copies_stale(wrong).await?;
        }
        Ok(count)
    }

    async fn end_old_uploads(&self) -> Result<()> {
        for (conversation, upload) in self.store.expired_uploads(Utc::now()).await? {
            let owned = self.store.conversation_owner(conversation).await?;
            self.store.end_upload(&owned, upload).await?;
        }
        Ok(())
    }

    /// Folders of conversations that are gone, and those that do not fit any more.
    async fn sweep_cache(&self) -> Result<()> {
        for conversation in self.cache.conversations() {
            if self.store.conversation_exists(conversation).await? {
                continue;
            }
            let Some(desk) = self.cache.desks.try_enter(conversation) else { continue };
            let files = self.clone();
            let remove = move || {
                let _desk = desk;
                files.cache.remove(conversation)
            };
            tokio::task::spawn_blocking(remove).await??;
        }
        let files = self.clone();
        tokio::task::spawn_blocking(move || files.cache.shrink()).await??;
        Ok::<_, Error>(())
    }
}

/// What a crash left of writes that were never finished; listings do not show them.
fn sweep_staged(folder: &Path, grace: Duration) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let staged = name.to_str().and_then(|name| name.rsplit_once('#')).is_some();
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let age = age.and_then(|time| SystemTime::now().duration_since(time).ok());
        if staged
            && age.is_some_and(|age| age >= grace)
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::warn!(%error, path = %entry.path().display(), "an unfinished file stays behind");
        }
    }
}
