//! From the folder to the object store: files that an agent created, changed, renamed or deleted.

use crate::{
    Error, Result,
    blobs::{self, HEAD, PART},
    crash,
    manifest::{Entry, Manifest, clock},
    mime,
    run::{Conflict, MissingFiles, Renamed, Run, SyncReport},
    store_to_folder::{CONCURRENCY, TOO_LARGE, UNNAMEABLE, file_path, hash, not_a_file, threads},
};
use atelier_core::{ConversationFile, FilePath};
use atelier_executor::{Kind, Leaf, Stamp, Workspace as Folder};
use atelier_store::{Blob, ContentKind, Edit, Edited, Expect, FileChanges};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::{
    collections::{HashMap, HashSet},
    io::Read,
    time::Duration,
};
use tokio::sync::Semaphore;
use tokio_util::io::ReaderStream;

/// How many edits go into one transaction.
const BATCH: usize = 500;
/// How much memory small files may use while they are sent, in KiB.
const HELD: usize = 64 << 10;
/// Time between two listings of a folder from which files are missing. Deleting one file takes a
/// fraction of this.
const SECOND_LISTING_DELAY: Duration = Duration::from_millis(50);
/// The mark in the name of the agent's version if somebody else changed the file during the run.
const AGENT_COPY: &str = "agent-copy";

/// A file whose content is new or changed.
pub(crate) struct ChangedFile {
    pub(crate) path: FilePath,
    pub(crate) stamp: Stamp,
    pub(crate) checksum: String,
}

/// The differences between the folder and the manifest.
#[derive(Default)]
struct FolderChanges {
    changed: Vec<ChangedFile>,
    renamed: Vec<(FilePath, ChangedFile)>,
    gone: Vec<FilePath>,
    /// Unchanged files. Some of them have a new stamp.
    same: Vec<(FilePath, Stamp)>,
}

impl Run {
    pub(crate) async fn record_changes(&self, missing: MissingFiles) -> Result<SyncReport> {
        let mut manifest = self.manifest().await?.unwrap_or_default();
        let taken = clock();
        let missing = if self.folder.is_at(&self.path) { missing } else { MissingFiles::Unknown };
        let (mut changes, mut report) = self.compare(&manifest, missing).await?;
        if !changes.gone.is_empty() && self.is_being_emptied(&manifest, &changes).await? {
            (changes, report) = self.compare(&manifest, MissingFiles::Unknown).await?;
        }
        report.unchanged = changes.same.len();
        for (path, stamp) in &changes.same {
            if let Some(entry) = manifest.files.get_mut(path) {
                entry.stamp = *stamp;
            }
        }
        // Deletions come first: there may now be a folder with the name of a deleted file.
        self.record_deletions(changes.gone, &mut manifest, &mut report).await?;
        self.record_renames(changes.renamed, &mut manifest, &mut report).await?;
        for batch in changes.changed.chunks(BATCH) {
            self.record_contents(batch, &mut manifest, &mut report).await?;
        }
        manifest.taken = taken;
        manifest.open = true;
        self.save_manifest(manifest).await?;
        self.workspace.update_copies().await;
        self.workspace.files.upkeep.notify_one();
        Ok(report)
    }

    async fn compare(
        &self,
        manifest: &Manifest,
        missing: MissingFiles,
    ) -> Result<(FolderChanges, SyncReport)> {
        let folder = self.folder.clone();
        let leaves = tokio::task::spawn_blocking(move || folder.leaves()).await??;
        let limit = self.workspace.files.settings.max_upload;
        let mut report = SyncReport::default();
        let (mut suspects, mut changes, mut there) =
            (Vec::new(), FolderChanges::default(), HashSet::new());
        for leaf in leaves {
            let Some(path) =
                file_path(&leaf.path).filter(|path| self.workspace.check_path_length(path).is_ok())
            else {
                report.skip(&leaf.path, UNNAMEABLE);
                continue;
            };
            if leaf.kind != Kind::File {
                report.skip(&leaf.path, not_a_file(leaf.kind));
                continue;
            }
            there.insert(path.clone());
            match manifest.files.get(&path) {
                Some(entry) if manifest.is_unchanged(entry, leaf.stamp) => {
                    changes.same.push((path, leaf.stamp));
                }
                _ if leaf.stamp.size > limit => report.skip(&leaf.path, TOO_LARGE),
                _ => suspects.push((path, leaf)),
            }
        }
        let mut gone: HashMap<String, Vec<FilePath>> = HashMap::new();
        for (path, entry) in &manifest.files {
            if missing == MissingFiles::Deleted && !there.contains(path) {
                gone.entry(entry.checksum.clone()).or_default().push(path.clone());
            }
        }
        for found in self.hash_all(suspects).await? {
            let before = manifest.files.get(&found.path);
            match before {
                Some(entry) if entry.checksum == found.checksum => {
                    changes.same.push((found.path, found.stamp));
                }
                Some(_) => changes.changed.push(found),
                // The same content under a new name, while the old file is gone, means that the
                // file was renamed. Empty files say nothing.
                None => match gone.get_mut(&found.checksum).filter(|_| found.stamp.size > 0) {
                    Some(from) if !from.is_empty() => changes.renamed.push((from.remove(0), found)),
                    _ => changes.changed.push(found),
                },
            }
        }
        changes.gone = gone.into_values().flatten().collect();
        Ok((changes, report))
    }

    /// Whether somebody is deleting the folder: more files are missing than a moment ago, or all of
    /// them are. That is not the work of the agent, which has finished by now.
    async fn is_being_emptied(&self, manifest: &Manifest, changes: &FolderChanges) -> Result<bool> {
        tokio::time::sleep(SECOND_LISTING_DELAY).await;
        let folder = self.folder.clone();
        let leaves = tokio::task::spawn_blocking(move || folder.leaves()).await?;
        // A folder that cannot be listed says nothing about deletions.
        let Ok(leaves) = leaves else { return Ok(true) };
        let there: HashSet<FilePath> =
            leaves.iter().filter_map(|leaf| file_path(&leaf.path)).collect();
        let gone = manifest.files.keys().filter(|path| !there.contains(path)).count();
        let more = gone > changes.gone.len() + changes.renamed.len();
        // An agent does not delete all files at once either.
        let all = changes.gone.len() > 1 && changes.gone.len() == manifest.files.len();
        Ok(more || all || !self.folder.is_at(&self.path))
    }

    async fn hash_all(&self, suspects: Vec<(FilePath, Leaf)>) -> Result<Vec<ChangedFile>> {
        let share = suspects.len().div_ceil(threads()).max(1);
        let work = suspects.chunks(share).map(|suspects| {
            let (folder, suspects) = (self.folder.clone(), suspects.to_vec());
            tokio::task::spawn_blocking(move || hash_some(&folder, suspects))
        });
        let mut found = Vec::with_capacity(suspects.len());
        for done in futures::future::join_all(work).await {
            found.extend(done??);
        }
        Ok(found)
    }

    async fn record_deletions(
        &self,
        gone: Vec<FilePath>,
        manifest: &mut Manifest,
        report: &mut SyncReport,
    ) -> Result<()> {
        for batch in gone.chunks(BATCH) {
            let known: Vec<(&FilePath, Entry)> = batch
                .iter()
                .filter_map(|path| Some((path, manifest.files.remove(path)?)))
                .collect();
            let edits = known.iter().map(|(_, entry)| Edit::Delete {
                file: entry.file_id,
                expect: Expect::Version(entry.version),
            });
            let edited = self.edit(edits.collect()).await?;
            for ((path, _), edited) in known.iter().zip(edited) {
                match edited {
                    Edited::Done(_) => report.deleted.push(path.to_string()),
                    // Somebody else has deleted it as well.
                    Edited::Conflict(None) | Edited::Blocked(_) => {}
                    Edited::Conflict(Some(_)) => {
                        report.conflicts.push(Conflict { path: path.to_string(), kept_as: None });
                    }
                }
            }
        }
        Ok(())
    }

    async fn record_renames(
        &self,
        renamed: Vec<(FilePath, ChangedFile)>,
        manifest: &mut Manifest,
        report: &mut SyncReport,
    ) -> Result<()> {
        for (from, found) in renamed {
            let Some(entry) = manifest.files.remove(&from) else { continue };
            let kind = self.kind(&found).await;
            let to = FileChanges { path: Some(found.path.clone()), kind, ..FileChanges::default() };
            let edit =
                Edit::Change { file: entry.file_id, to, expect: Expect::Version(entry.version) };
            let edited = self.edit(vec![edit]).await?;
            if let [Edited::Done(file)] = &edited[..] {
                report.renamed.push(Renamed { from: from.to_string(), to: found.path.to_string() });
                manifest.files.insert(found.path, entry_of(file, found.stamp));
            } else {
                if let [Edited::Conflict(_)] = edited[..] {
                    // Somebody changed the file under its old name, so both files stay.
                    let kept_as = Some(found.path.to_string());
                    report.conflicts.push(Conflict { path: from.to_string(), kept_as });
                }
                self.record_contents(&[found], manifest, report).await?;
            }
        }
        Ok(())
    }

    /// Stores contents that somebody put into the folder outside a run, so that they are not lost.
    /// `base` has the versions that they were made from.
    pub(crate) async fn record_outside_changes(
        &self,
        outside: &[ChangedFile],
        mut base: Manifest,
    ) -> Result<SyncReport> {
        let mut report = SyncReport::default();
        for batch in outside.chunks(BATCH) {
            self.record_contents(batch, &mut base, &mut report).await?;
        }
        self.workspace.update_copies().await;
        self.workspace.files.upkeep.notify_one();
        Ok(report)
    }

    /// Stores the contents, then writes their rows in one transaction.
    async fn record_contents(
        &self,
        batch: &[ChangedFile],
        manifest: &mut Manifest,
        report: &mut SyncReport,
    ) -> Result<()> {
        let held = &Semaphore::new(HELD);
        let puts = (0..batch.len()).map(|at| async move { self.put(&batch[at], held).await });
        // Results keep the order of the batch, for the rows and the report.
        let blobs: Vec<(Blob, String)> =
            futures::stream::iter(puts).buffered(CONCURRENCY).try_collect().await?;
        crash::point("pushed");
        let expected = |path: &FilePath| match manifest.files.get(path) {
            Some(entry) => Expect::Version(entry.version),
            // A new version by the agent repairs lost content.
            None => manifest
                .damaged
                .get(path)
                .map_or(Expect::Absent, |version| Expect::Version(*version)),
        };
        let write =
            |path: FilePath, original_name: String, blob: &(Blob, String), expect| Edit::Write {
                path,
                original_name,
                description: None,
                mime_type: blob.1.clone(),
                blob: blob.0.clone(),
                source: None,
                expect,
            };
        let edits = batch.iter().zip(&blobs).map(|(changed, blob)| {
            let name = changed.path.file_name().to_owned();
            write(changed.path.clone(), name, blob, expected(&changed.path))
        });
        let edited = self.edit(edits.collect()).await?;
        for ((changed, blob), edited) in batch.iter().zip(&blobs).zip(edited) {
            let path = changed.path.to_string();
            match edited {
                Edited::Done(file) => {
                    let list =
                        if file.version == 1 { &mut report.created } else { &mut report.modified };
                    list.push(path);
                    manifest.damaged.remove(&changed.path);
                    manifest.files.insert(changed.path.clone(), entry_of(&file, changed.stamp));
                }
                // Both made the same change.
                Edited::Conflict(Some(file)) if file.checksum == blob.0.checksum => {
                    self.drop_content(&blob.0).await?;
                    manifest.files.insert(changed.path.clone(), entry_of(&file, changed.stamp));
                }
                Edited::Conflict(_) => {
                    let kept_as = self.save_agent_copy(changed, &changed.path, blob, write).await?;
                    report.conflicts.push(Conflict { path, kept_as: Some(kept_as) });
                }
                // There is now a folder where the agent has a file, or the other way round.
                Edited::Blocked(by) => {
                    let kept_as =
                        self.save_agent_copy(changed, &FilePath::parse(&by)?, blob, write).await?;
                    report.conflicts.push(Conflict { path, kept_as: Some(kept_as) });
                }
            }
        }
        Ok(())
    }

    /// Saves the agent's version under another name: the file itself, or the folder above it that
    /// is in the way, gets a mark. Takes the first free name.
    async fn save_agent_copy(
        &self,
        changed: &ChangedFile,
        in_the_way: &FilePath,
        blob: &(Blob, String),
        write: impl Fn(FilePath, String, &(Blob, String), Expect) -> Edit,
    ) -> Result<String> {
        for number in 1..1000 {
            let mark =
                if number == 1 { AGENT_COPY.to_owned() } else { format!("{AGENT_COPY}-{number}") };
            let rest = &changed.path.as_str()[in_the_way.as_str().len()..];
            let path = FilePath::parse(&format!("{}{rest}", in_the_way.marked(&mark)?))?;
            let edit =
                write(path.clone(), changed.path.file_name().to_owned(), blob, Expect::Absent);
            let edited = self.edit(vec![edit]).await?;
            if matches!(edited[..], [Edited::Done(_)]) {
                return Ok(path.to_string());
            }
        }
        Err(atelier_store::Error::PathTaken(changed.path.to_string()).into())
    }

    /// The MIME type of a renamed file; `None` if the file is gone again.
    async fn kind(&self, found: &ChangedFile) -> Option<ContentKind> {
        let (folder, path, checksum) =
            (self.folder.clone(), found.path.clone(), found.checksum.clone());
        let look = move || {
            let (file, _) = folder.open_leaf(path.as_workspace()).ok()?;
            let mut head = Vec::new();
            file.take(HEAD as u64).read_to_end(&mut head).ok()?;
            Some(ContentKind { checksum, mime_type: mime::of(&head, path.file_name()) })
        };
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }

    async fn drop_content(&self, blob: &Blob) -> Result<()> {
        let keys = blob.key.clone().into_iter().collect();
        Ok(self
            .workspace
            .files
            .store
            .discard_objects(self.workspace.conversation.owned(), keys)
            .await?)
    }

    /// Stores the current content of the file, which may have changed since it was hashed.
    async fn put(&self, changed: &ChangedFile, held: &Semaphore) -> Result<(Blob, String)> {
        let files = &self.workspace.files;
        let conversation = self.workspace.conversation.id();
        let size = changed.stamp.size;
        if size > PART as u64 {
            let (folder, path) = (self.folder.clone(), changed.path.clone());
            let open = move || folder.open_leaf(path.as_workspace());
            let (file, _) = tokio::task::spawn_blocking(open).await??;
            let body = ReaderStream::with_capacity(tokio::fs::File::from_std(file), 1 << 20);
            let body = body.map_err(Error::from).boxed();
            let limit = files.settings.max_upload;
            let put =
                blobs::put(&files.content, &files.tasks, conversation, body, limit, None).await?;
            let kind = mime::of(&put.head, changed.path.file_name());
            return Ok((put.into(), kind));
        }
        let permits = u32::try_from(size.div_ceil(1024).max(1)).unwrap_or(u32::MAX);
        let _held = held.acquire_many(permits).await.map_err(|_| Error::Stopping)?;
        let (folder, path) = (self.folder.clone(), changed.path.clone());
        let (content, checksum) = tokio::task::spawn_blocking(move || {
            let (file, _) = folder.open_leaf(path.as_workspace())?;
            let mut content = Vec::with_capacity(size as usize);
            file.take(PART as u64 + 1).read_to_end(&mut content)?;
            let checksum = blobs::hex(&<sha2::Sha256 as sha2::Digest>::digest(&content));
            Ok::<_, Error>((Bytes::from(content), checksum))
        })
        .await??;
        let kind = mime::of(&content[..content.len().min(HEAD)], changed.path.file_name());
        let size = content.len() as i64;
        let key = blobs::put_bytes(&files.content, conversation, &checksum, content).await?;
        Ok((Blob { checksum, size, key: Some(key.to_string()), instead_of: None }, kind))
    }
}

fn hash_some(folder: &Folder, suspects: Vec<(FilePath, Leaf)>) -> Result<Vec<ChangedFile>> {
    let mut found = Vec::with_capacity(suspects.len());
    for (path, _) in suspects {
        match folder.open_leaf(path.as_workspace()) {
            Ok((mut file, stamp)) => {
                found.push(ChangedFile { path, stamp, checksum: hash(&mut file)? });
            }
            // Deleted since it was listed; the next sync notices.
            Err(atelier_executor::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

fn entry_of(file: &ConversationFile, stamp: Stamp) -> Entry {
    Entry { file_id: file.file_id, version: file.version, checksum: file.checksum.clone(), stamp }
}
