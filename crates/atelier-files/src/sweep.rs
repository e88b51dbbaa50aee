//! Background work: removing objects that nothing refers to, updating readable copies, keeping the
//! cache small.

use crate::{
    Error, Files, Result,
    copies::{CONCURRENCY, is_true_copy, remove_object},
};
use atelier_core::{ConversationFile, ConversationId, time_delta};
use atelier_store::{Author, Edit, Expect, OwnedConversation};
use chrono::{TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, path::Path as Key};
use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

/// The repairs that a sweep made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// How many objects without a row were removed.
    pub orphans: usize,
    /// How many copies were missing or wrong.
    pub copies: usize,
}

/// How soon a failed removal or copy is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
const BATCH: i64 = 500;
/// In how many conversations copies are renewed at the same time.
const CONVERSATIONS: usize = 8;

impl Files {
    /// Removes and copies objects when they are due, and sweeps at intervals, until dropped.
    pub async fn run_background(&self) {
        let due = async {
            loop {
                self.remove_due().await;
                self.renew_all_copies().await;
                drop(tokio::time::timeout(RETRY_INTERVAL, self.upkeep.notified()).await);
            }
        };
        let sweeps = async {
            let mut rounds =
                tokio::time::interval(self.settings.sweep.max(Duration::from_millis(100)));
            rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                rounds.tick().await;
                match self.sweep().await {
                    Ok(SweepReport { orphans: 0, copies: 0 }) => {}
                    Ok(swept) => tracing::info!(?swept, "swept the object store"),
                    Err(error) => tracing::warn!(%error, "cannot sweep the object store"),
                }
            }
        };
        tokio::join!(due, sweeps, self.end_expired_runs());
    }

    /// Removes the objects that are due. Objects that cannot be removed stay due.
    pub(crate) async fn remove_due(&self) {
        if let Err(error) = self.try_remove_due().await {
            tracing::warn!(%error, "cannot remove objects; will try again");
        }
    }

    async fn try_remove_due(&self) -> Result<()> {
        while self.remove_batch().await? {}
        Ok(())
    }

    /// Removes one batch of due objects and leaves the rest to the background work.
    pub(crate) async fn remove_some(&self) {
        match self.remove_batch().await {
            Ok(false) => {}
            Ok(true) => self.upkeep.notify_one(),
            Err(error) => tracing::warn!(%error, "cannot remove objects; will try again"),
        }
    }

    /// Removes one batch of due objects. Returns whether there may be more.
    async fn remove_batch(&self) -> Result<bool> {
        let due = self.store.due_removals(BATCH).await?;
        let more = due.len() as i64 == BATCH;
        let removals = due.into_iter().map(|key| async move {
            remove_object(&self.content, &Key::from(key.as_str())).await.map(|()| key)
        });
        let outcomes: Vec<Result<String>> =
            futures::stream::iter(removals).buffer_unordered(CONCURRENCY).collect().await;
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
        let conversations = match self.store.conversations_to_copy(BATCH).await {
            Ok(conversations) => conversations,
            Err(error) => {
                return tracing::warn!(%error, "cannot find out which copies are outdated");
            }
        };
        // Several at the same time, because one of them may be slow.
        let renewals = conversations.into_iter().map(|conversation| async move {
            if let Err(error) = self.renew_copies(conversation).await {
                tracing::warn!(%error, %conversation, "cannot update copies; will try again");
            }
        });
        futures::stream::iter(renewals).buffer_unordered(CONVERSATIONS).collect::<()>().await;
    }

    /// Goes through the whole object store. Removes contents without a row once they are old
    /// enough. Replaces copies that are missing, have the wrong size or were modified.
    /// Leaves objects of unknown conversations alone, because they may belong to another server.
    pub async fn sweep(&self) -> Result<SweepReport> {
        let mut swept = SweepReport::default();
        let mut listing: HashMap<ConversationId, Vec<ObjectMeta>> = HashMap::new();
        let mut objects = self.content.objects.list(self.content.top().as_ref());
        while let Some(object) = objects.try_next().await? {
            if let Some(conversation) = self.content.conversation_of(&object.location) {
                listing.entry(conversation).or_default().push(object);
            }
        }
        for (conversation, objects) in listing {
            let Some(owned) = self.store.conversation_for_upkeep(conversation).await? else {
                continue;
            };
            // A failure in one conversation must not stop the sweep of the others.
            if let Err(error) = self.workspace(&owned).place_contents().await {
                tracing::warn!(%error, %conversation, "cannot move the contents of a conversation");
            }
            match self.sweep_contents(&owned, &objects).await {
                Ok(removed) => swept.orphans += removed,
                Err(error) => {
                    tracing::warn!(%error, %conversation, "cannot sweep the contents of a \
                        conversation");
                }
            }
            match self.sweep_copies(&owned, &objects).await {
                Ok(renewed) => swept.copies += renewed,
                Err(error) => {
                    tracing::warn!(%error, %conversation, "cannot sweep the copies of a \
                        conversation");
                }
            }
        }
        self.end_old_uploads().await?;
        self.delete_archived_files().await?;
        self.remove_due().await;
        self.renew_all_copies().await;
        self.sweep_cache().await?;
        Ok(swept)
    }

    async fn sweep_contents(
        &self,
        conversation: &OwnedConversation,
        objects: &[ObjectMeta],
    ) -> Result<usize> {
        let contents = self.content.contents(conversation.id());
        let archived = self.content.archived_contents(conversation.id());
        let is_content = |key: &Key| key.prefix_matches(&contents) || key.prefix_matches(&archived);
        let oldest = Utc::now() - time_delta(self.settings.grace);
        let old: Vec<&ObjectMeta> = objects
            .iter()
            .filter(|object| is_content(&object.location) && object.last_modified <= oldest)
            .collect();
        if let Some(disk) = &self.content.disk {
            let (folder, grace) = (disk.join(contents.as_ref()), self.settings.grace);
            tokio::task::spawn_blocking(move || sweep_staged(&folder, grace)).await?;
        }
        if old.is_empty() {
            return Ok(0);
        }
        // Read after the listing, so that rows that were written in the meantime count.
        let mut known: HashSet<String> =
            self.store.blob_keys(conversation).await?.into_iter().map(|(_, key)| key).collect();
        known.extend(self.store.part_keys(conversation).await?);
        let mut removed = 0;
        for object in old.into_iter().filter(|object| !known.contains(object.location.as_ref())) {
            remove_object(&self.content, &object.location).await?;
            removed += 1;
        }
        Ok(removed)
    }

    async fn sweep_copies(
        &self,
        conversation: &OwnedConversation,
        objects: &[ObjectMeta],
    ) -> Result<usize> {
        if !self.settings.copies {
            return Ok(0);
        }
        let files = self.store.files(conversation).await?;
        if self.workspace(conversation).is_archived().await? {
            return self.sweep_archived_copies(conversation, files, objects).await;
        }
        let wrong: Vec<ConversationFile> = match &self.content.disk {
            Some(disk) => {
                let keys: HashMap<String, String> =
                    self.store.blob_keys(conversation).await?.into_iter().collect();
                let (disk, folder) =
                    (disk.clone(), disk.join(self.content.workspace(conversation.id())));
                let is_right = move |file: &ConversationFile| {
                    keys.get(&file.checksum).is_none_or(|key| {
                        is_true_copy(&disk.join(key), &folder.join(file.file_path.as_str()))
                    })
                };
                let check = move || files.into_iter().filter(|file| !is_right(file)).collect();
                tokio::task::spawn_blocking(check).await?
            }
            None => {
                let keys: HashMap<String, String> =
                    self.store.blob_keys(conversation).await?.into_iter().collect();
                let found: HashMap<&str, &ObjectMeta> =
                    objects.iter().map(|object| (object.location.as_ref(), object)).collect();
                let is_right = |file: &ConversationFile| {
                    let copy = self.content.copy(conversation.id(), &file.file_path);
                    let Some(copy) = found.get(copy.as_str()) else { return false };
                    let content = keys.get(&file.checksum).and_then(|key| found.get(key.as_str()));
                    copy.size == file.file_size as u64
                        && content.is_none_or(|content| may_be_equal(content, copy))
                };
                files.into_iter().filter(|file| !is_right(file)).collect()
            }
        };
        let count = wrong.len();
        if count > 0 {
            self.store.mark_copies_stale(conversation, wrong).await?;
        }
        Ok(count)
    }

    /// Removes the copies of an archived conversation that are still there.
    async fn sweep_archived_copies(
        &self,
        conversation: &OwnedConversation,
        files: Vec<ConversationFile>,
        objects: &[ObjectMeta],
    ) -> Result<usize> {
        let found: HashSet<&str> = objects.iter().map(|object| object.location.as_ref()).collect();
        let is_there = |file: &ConversationFile| {
            let copy = self.content.copy(conversation.id(), &file.file_path);
            found.contains(Key::from(copy.as_str()).as_ref()) || found.contains(copy.as_str())
        };
        let left: Vec<ConversationFile> = files.into_iter().filter(is_there).collect();
        let count = left.len();
        if count > 0 {
            self.store.mark_copies_stale(conversation, left).await?;
        }
        Ok(count)
    }

    /// Deletes the files of conversations that were archived long enough ago.
    async fn delete_archived_files(&self) -> Result<()> {
        let Some(days) = self.settings.keep_archived_days else { return Ok(()) };
        let Some(before) = Utc::now().checked_sub_signed(TimeDelta::days(days.into())) else {
            return Ok(());
        };
        for owned in self.store.archived_with_files(before, BATCH).await? {
            let workspace = self.workspace(&owned);
            let author = Author::Person(owned.owned().owner);
            let files = [workspace.list().await?, workspace.deleted().await?].concat();
            let edits = files
                .iter()
                .map(|file| Edit::Delete { file: file.file_id, expect: Expect::Anything });
            match workspace.edit(author, edits.collect(), None).await {
                Ok(_) => {
                    tracing::info!(conversation = %owned.id(), files = files.len(), "deleted the \
                        files of an archived conversation");
                }
                // One of them has just been deleted; the next sweep deletes the others.
                Err(Error::Store(atelier_store::Error::Precondition)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn end_old_uploads(&self) -> Result<()> {
        for (owned, upload) in self.store.expired_uploads(Utc::now()).await? {
            self.store.end_upload(&owned, upload).await?;
        }
        Ok(())
    }

    /// Removes folders of deleted conversations, and folders that no longer fit into the cache.
    async fn sweep_cache(&self) -> Result<()> {
        for conversation in self.cache.conversations() {
            if self.store.conversation_for_upkeep(conversation).await?.is_some() {
                continue;
            }
            let Some(folder_lock) = self.cache.folder_locks.try_lock(conversation) else {
                continue;
            };
            let files = self.clone();
            let remove = move || {
                let _folder_lock = folder_lock;
                files.cache.remove(conversation)
            };
            tokio::task::spawn_blocking(remove).await??;
        }
        let files = self.clone();
        tokio::task::spawn_blocking(move || files.cache.shrink()).await??;
        Ok::<_, Error>(())
    }
}

/// Whether two objects may have the same content, by their tags. The tag of an object that was
/// written in one piece is a digest of its content; other tags say nothing.
fn may_be_equal(content: &ObjectMeta, copy: &ObjectMeta) -> bool {
    let digest = |object: &ObjectMeta| {
        let tag = object.e_tag.as_deref()?.trim_matches('"').to_ascii_lowercase();
        let is_md5 = tag.len() == 32 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_md5.then_some(tag)
    };
    match (digest(content), digest(copy)) {
        (Some(content), Some(copy)) => content == copy,
        _ => true,
    }
}

/// Removes unfinished writes that a crash has left. Listings of the object store do not show them.
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
            tracing::warn!(%error, path = %entry.path().display(), "cannot remove an unfinished \
                file");
        }
    }
}
