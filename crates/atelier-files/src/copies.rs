//! The readable copies: `{prefix}{conversation_id}/{file_path}` holds what the newest version holds. They are
//! made after the commit and are nobody's truth; a path stays marked until its copy is right.

use crate::{Files, Result, Workspace, place::Place};
use atelier_core::{ConversationFile, ConversationId, FilePath};
use atelier_store::StaleCopy;
use futures::StreamExt;
use object_store::{ObjectStoreExt, path::Path as Key};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use uuid::Uuid;

/// How many are made at a time.
pub(crate) const AT_ONCE: usize = 64;
const BATCH: i64 = 1000;

impl Workspace {
    /// Makes the copies of this conversation that are due. What fails stays marked and is tried again.
    pub(crate) async fn settle_copies(&self) {
        if self.files.settings.copies
            && let Err(error) = self.files.renew_copies(self.conversation).await
        {
            tracing::warn!(%error, conversation = %self.conversation, "copies are behind; they are tried again");
        }
    }
}

impl Files {
    /// Brings every marked copy in step. The first failure is told when all the others were tried.
    pub(crate) async fn renew_copies(&self, conversation: ConversationId) -> Result<usize> {
        let _alone = self.copying.enter(conversation).await;
        let mut renewed = 0;
        loop {
            let stale = self.store.stale_copies(Some(conversation), BATCH).await?;
            if stale.is_empty() {
                return Ok(renewed);
            }
            let work = stale.into_iter().map(|copy| async move {
                let done = self.renew_copy(&copy).await;
                (copy, done)
            });
            let mut work = futures::stream::iter(work).buffer_unordered(AT_ONCE);
            let (mut done, mut failed) = (Vec::new(), None);
            while let Some((copy, outcome)) = work.next().await {
                match outcome {
                    Ok(()) => done.push(copy),
                    Err(error) => failed = Some(error),
                }
            }
            renewed += done.len();
            self.store.copies_renewed(done).await?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    async fn renew_copy(&self, stale: &StaleCopy) -> Result<()> {
        let file = self.store.file_at(stale.conversation, &stale.path).await?;
        match file {
            Some(file) => self.make_copy(&file).await,
            None => self.remove_copy(stale.conversation, &stale.path).await,
        }
    }

    async fn make_copy(&self, file: &ConversationFile) -> Result<()> {
        let Some(content) = self.store.blob_key(file.conversation_id, &file.checksum).await? else {
            // Deleted since; the path was marked again with it.
            return Ok(());
        };
        let content = Key::from(content);
        let copy = self.place.copy(file.conversation_id, &file.file_path);
        match &self.place.disk {
            Some(disk) => {
                let (from, to) = (disk.join(content.as_ref()), disk.join(copy));
                let stage = disk.join(self.place.contents(file.conversation_id).as_ref());
                tokio::task::spawn_blocking(move || copy_on_disk(&from, &to, &stage)).await??;
            }
            None => {
                let copy = remote_key(&copy)?;
                self.place.within(self.place.objects.copy(&content, &copy)).await?;
            }
        }
        Ok(())
    }

    async fn remove_copy(&self, conversation: ConversationId, path: &FilePath) -> Result<()> {
        let copy = self.place.copy(conversation, path);
        match &self.place.disk {
            Some(disk) => {
                let (file, top) = (disk.join(copy), disk.join(self.place.workspace(conversation)));
                tokio::task::spawn_blocking(move || remove_on_disk(&file, &top)).await??;
            }
            None => remove_object(&self.place, &remote_key(&copy)?).await?,
        }
        Ok(())
    }
}

/// The key as it stands: `Key::from` would write `#` and the like in percent signs.
fn remote_key(key: &str) -> Result<Key> {
    Ok(Key::parse(key).map_err(object_store::Error::from)?)
}

/// What is not there is removed.
pub(crate) async fn remove_object(place: &Place, key: &Key) -> Result<()> {
    match place.within(place.objects.delete(key)).await {
        Err(crate::Error::Objects(object_store::Error::NotFound { .. })) => Ok(()),
        done => done,
    }
}

/// A true copy and a rename. A hard link, which the object store would make, lets whoever edits the copy edit
/// the content; and its temporary names leave no room for names as long as names can be.
fn copy_on_disk(from: &Path, to: &Path, stage: &Path) -> io::Result<()> {
    let staged = stage.join(format!("copy-{}#0", Uuid::now_v7().simple()));
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    // With the time of the content: a copy that somebody wrote to has another.
    let timed =
        |_| fs::File::options().write(true).open(&staged)?.set_modified(fs::metadata(from)?.modified()?);
    let done = fs::copy(from, &staged).and_then(timed).and_then(|()| match fs::rename(&staged, to) {
        // A folder of a file that was deleted since.
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

/// Whether a copy is as it was made: of its content's size, and not written to since. Blocks.
pub(crate) fn is_true_copy(content: &Path, copy: &Path) -> bool {
    let seen = |path: &Path| {
        let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((found.len(), found.modified().ok()?))
    };
    // A content that is lost is nothing to copy from.
    seen(content).is_none_or(|content| seen(copy) == Some(content))
}

/// Copies are made in no order: where a file was a moment ago a folder may have to be now.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir_all(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists) => {
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
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
            ) =>
        {
            return Err(error);
        }
        _ => {}
    }
    // Folders that are empty now; the first that is not ends it.
    let folders = file.ancestors().skip(1).take_while(|folder| folder.starts_with(top));
    for folder in folders {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
    Ok(())
}
