//! Readable copies: `{prefix}{conversation_id}/{file_path}` holds the content of the newest
//! version. Copies are made after the commit, and nothing depends on them. A path stays marked as
//! outdated until its copy is right.

use crate::{ConversationWorkspace, Error, Files, Result, content_store::ContentStore};
use atelier_core::{ConversationFile, ConversationId, FilePath};
use atelier_store::StaleCopy;
use futures::StreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};
use uuid::Uuid;

/// How many copies are made at the same time.
pub(crate) const CONCURRENCY: usize = 64;
const BATCH: i64 = 1000;
/// How long a request waits for its copies.
const COPY_WAIT: Duration = Duration::from_secs(2);

impl ConversationWorkspace {
    /// Makes the copies of this conversation that are due. Waits for them only a moment, because the
    /// files are saved already: a slow object store must not delay the answer. Copies that fail stay
    /// marked and are tried again.
    pub(crate) async fn update_copies(&self) {
        if !self.files.settings.copies {
            return;
        }
        let (files, conversation) = (self.files.clone(), self.conversation.id());
        let copying = self.files.tasks.spawn(async move {
            if let Err(error) = files.renew_copies(conversation).await {
                tracing::warn!(%error, %conversation, "cannot update copies; will try again");
            }
        });
        // The task goes on after that.
        drop(tokio::time::timeout(COPY_WAIT, copying).await);
    }
}

impl Files {
    /// Updates every marked copy that no other node is making. Tries all of them before it returns
    /// a failure.
    pub(crate) async fn renew_copies(&self, conversation: ConversationId) -> Result<()> {
        let _alone = self.copying.lock(conversation).await;
        loop {
            let stale = self.store.claim_copies(conversation, BATCH).await?;
            if stale.is_empty() {
                return Ok(());
            }
            let work = stale.into_iter().map(|copy| async move {
                let done = self.renew_copy(&copy).await;
                (copy, done)
            });
            let mut work = futures::stream::iter(work).buffer_unordered(CONCURRENCY);
            let (mut done, mut failed) = (Vec::new(), None);
            while let Some((copy, outcome)) = work.next().await {
                match outcome {
                    Ok(()) => done.push(copy),
                    Err(error) => failed = Some(error),
                }
            }
            self.store.copies_renewed(conversation, done).await?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    async fn renew_copy(&self, stale: &StaleCopy) -> Result<()> {
        match self.store.content_to_copy(stale).await? {
            Some((file, Some(content))) => self.make_copy(&file, content).await,
            // The content was deleted in the meantime, which has marked the path again.
            Some((_, None)) => Ok(()),
            None => self.remove_copy(stale.conversation, &stale.path).await,
        }
    }

    /// Makes a copy. If the content is lost or has expired, there is nothing to copy, and trying
    /// again would not help.
    async fn make_copy(&self, file: &ConversationFile, content: String) -> Result<()> {
        match self.try_copy(file, content).await {
            Err(Error::Objects(object_store::Error::NotFound { .. })) => Ok(()),
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    async fn try_copy(&self, file: &ConversationFile, content: String) -> Result<()> {
        let content = Key::from(content);
        let copy = self.content.copy(file.conversation_id, &file.file_path);
        match &self.content.disk {
            Some(disk) => {
                let (from, to) = (disk.join(content.as_ref()), disk.join(copy));
                let stage = disk.join(self.content.contents(file.conversation_id).as_ref());
                tokio::task::spawn_blocking(move || copy_on_disk(&from, &to, &stage)).await??;
            }
            None => {
                let copy = remote_key(&copy)?;
                self.content.within(self.content.objects.copy(&content, &copy)).await?;
            }
        }
        Ok(())
    }

    async fn remove_copy(&self, conversation: ConversationId, path: &FilePath) -> Result<()> {
        let copy = self.content.copy(conversation, path);
        match &self.content.disk {
            Some(disk) => {
                let (file, top) =
                    (disk.join(copy), disk.join(self.content.workspace(conversation)));
                tokio::task::spawn_blocking(move || remove_on_disk(&file, &top)).await??;
            }
            None => remove_object(&self.content, &remote_key(&copy)?).await?,
        }
        Ok(())
    }
}

/// The key unchanged. `Key::from` would percent-encode `#` and other characters.
fn remote_key(key: &str) -> Result<Key> {
    Ok(Key::parse(key).map_err(object_store::Error::from)?)
}

/// Removes an object. An object that does not exist counts as removed.
pub(crate) async fn remove_object(store: &ContentStore, key: &Key) -> Result<()> {
    match store.within(store.objects.delete(key)).await {
        Err(crate::Error::Objects(object_store::Error::NotFound { .. })) => Ok(()),
        done => done,
    }
}

/// Copies the bytes and renames the result. The object store would make a hard link, so that
/// editing the copy would edit the content; and its temporary names are too long for the longest
/// file names.
fn copy_on_disk(from: &Path, to: &Path, stage: &Path) -> io::Result<()> {
    let staged = stage.join(format!("copy-{}#0", Uuid::now_v7().simple()));
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    // The copy gets the time of the content, so that a modified copy is recognised by its time.
    let timed = |_| {
        fs::File::options().write(true).open(&staged)?.set_modified(fs::metadata(from)?.modified()?)
    };
    let done =
        fs::copy(from, &staged).and_then(timed).and_then(|()| match fs::rename(&staged, to) {
            // An empty folder that a deleted file has left.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                fs::remove_dir(to).and_then(|()| fs::rename(&staged, to))
            }
            other => other,
        });
    if done.is_err() {
        drop(fs::remove_file(&staged));
    }
    done
}

/// Whether a copy is unmodified: it has the size and the time of its content. Blocks.
pub(crate) fn is_true_copy(content: &Path, copy: &Path) -> bool {
    let size_and_time = |path: &Path| {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((found.len(), found.modified().ok()?))
    };
    // Lost content cannot be copied, so there is nothing to repair.
    size_and_time(content).is_none_or(|content| size_and_time(copy) == Some(content))
}

/// Creates a folder for a copy. Copies are made in no particular order, so an outdated file may
/// have to be removed first.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir_all(folder) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists
            ) =>
        {
            let in_the_way: Option<PathBuf> =
                folder.ancestors().find(|above| above.is_file()).map(Path::to_owned);
            if let Some(file) = in_the_way {
                fs::remove_file(file)?;
            }
            fs::create_dir_all(folder)
        }
        other => other,
    }
}

fn remove_on_disk(file: &Path, top: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::IsADirectory
            ) =>
        {
            return Err(error);
        }
        _ => {}
    }
    // Remove the folders above that are empty now.
    let folders = file.ancestors().skip(1).take_while(|folder| folder.starts_with(top));
    for folder in folders {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
    Ok(())
}
