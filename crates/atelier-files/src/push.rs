//! From the folder into the object store: what an agent created, changed, renamed or deleted.

use crate::{
    Error, Result,
    blobs::{self, HEAD, PART},
    crash,
    manifest::{Entry, Manifest, clock},
    mime,
    pull::{AT_ONCE, TOO_LARGE, UNNAMEABLE, file_path, hash, not_a_file, threads},
    run::{Conflict, Renamed, Run, SyncReport, Trust},
};
use atelier_core::{ConversationFile, FilePath};
use atelier_executor::{Kind, Leaf, Stamp, Workspace as Folder};
use atelier_store::{Author, Blob, ContentKind, Edit, Edited, Expect, FileChanges};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use std::{
    collections::{HashMap, HashSet},
    io::Read,
    time::Duration,
};
use tokio::sync::Semaphore;
use tokio_util::io::ReaderStream;

/// As many edits as one transaction takes.
const BATCH: usize = 500;
/// Small files that are held in memory at a time, in KiB, however many are on their way.
const HELD: usize = 64 << 10;
/// Between two looks at a folder that files are missing from. Deleting one file takes a fraction of this.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// What the agent's version is called when somebody else changed the file meanwhile.
const MARK: &str = "agent-copy";

/// A file that is not as it was, by its content.
struct Changed {
    path: FilePath,
    stamp: Stamp,
    checksum: String,
}

/// What there is to do, found by comparing the folder with the manifest.
#[derive(Default)]
struct Plan {
    changed: Vec<Changed>,
    renamed: Vec<(FilePath, Changed)>,
    gone: Vec<FilePath>,
    /// Unchanged, some with a new stamp.
    same: Vec<(FilePath, Stamp)>,
}

impl Run {
    pub(crate) async fn push(&self, trust: Trust) -> Result<SyncReport> {
        let mut manifest = self.manifest().await?.unwrap_or_default();
        let taken = clock();
        let trust = if self.folder.is_at(&self.path) { trust } else { Trust::Leftovers };
        let (mut plan, mut report) = self.plan(&manifest, trust).await?;
        if !plan.gone.is_empty() && self.is_being_emptied(&manifest, &plan).await? {
            (plan, report) = self.plan(&manifest, Trust::Leftovers).await?;
        }
        report.unchanged = plan.same.len();
        for (path, stamp) in &plan.same {
            if let Some(entry) = manifest.files.get_mut(path) {
                entry.stamp = *stamp;
            }
        }
        // Deletions first: a folder may have taken the place of a file.
        self.push_deletions(plan.gone, &mut manifest, &mut report).await?;
        self.push_renames(plan.renamed, &mut manifest, &mut report).await?;
        for batch in plan.changed.chunks(BATCH) {
            self.push_contents(batch, &mut manifest, &mut report).await?;
        }
        manifest.taken = taken;
        manifest.open = true;
        self.save_manifest(manifest).await?;
        self.workspace.settle_copies().await;
        self.workspace.files.upkeep.notify_one();
        Ok(report)
    }

    async fn plan(&self, manifest: &Manifest, trust: Trust) -> Result<(Plan, SyncReport)> {
        let folder = self.folder.clone();
        let leaves = tokio::task::spawn_blocking(move || folder.leaves()).await??;
        let limit = self.workspace.files.settings.max_upload;
        let mut report = SyncReport::default();
        let (mut suspects, mut plan, mut there) = (Vec::new(), Plan::default(), HashSet::new());
        for leaf in leaves {
            let Some(path) = file_path(&leaf.path).filter(|path| self.workspace.check_room(path).is_ok())
            else {
                report.leave(&leaf.path, UNNAMEABLE);
                continue;
            };
            if leaf.kind != Kind::File {
                report.leave(&leaf.path, not_a_file(leaf.kind));
                continue;
            }
            there.insert(path.clone());
            match manifest.files.get(&path) {
                Some(entry) if manifest.is_unchanged(entry, leaf.stamp) => plan.same.push((path, leaf.stamp)),
                _ if leaf.stamp.size > limit => report.leave(&leaf.path, TOO_LARGE),
                _ => suspects.push((path, leaf)),
            }
        }
        let mut gone: HashMap<String, Vec<FilePath>> = HashMap::new();
        for (path, entry) in &manifest.files {
            if trust == Trust::Run && !there.contains(path) {
                gone.entry(entry.checksum.clone()).or_default().push(path.clone());
            }
        }
        for found in self.hash_all(suspects).await? {
            let before = manifest.files.get(&found.path);
            match before {
                Some(entry) if entry.checksum == found.checksum => plan.same.push((found.path, found.stamp)),
                Some(_) => plan.changed.push(found),
                // The same content under a new name, where the old one is gone: the file was renamed. Nothing
                // can be said of empty files.
                None => match gone.get_mut(&found.checksum).filter(|_| found.stamp.size > 0) {
                    Some(from) if !from.is_empty() => plan.renamed.push((from.remove(0), found)),
                    _ => plan.changed.push(found),
                },
            }
        }
        plan.gone = gone.into_values().flatten().collect();
        Ok((plan, report))
    }

    /// Whether more goes than went, or everything did. Whoever deletes the folder does so file by file, and that is not
    /// the agent's work, which is over by now.
    async fn is_being_emptied(&self, manifest: &Manifest, plan: &Plan) -> Result<bool> {
        tokio::time::sleep(SECOND_LOOK).await;
        let folder = self.folder.clone();
        let leaves = tokio::task::spawn_blocking(move || folder.leaves()).await?;
        // Where the folder cannot be walked, nothing can be told from it.
        let Ok(leaves) = leaves else { return Ok(true) };
        let there: HashSet<FilePath> = leaves.iter().filter_map(|leaf| file_path(&leaf.path)).collect();
        let gone = manifest.files.keys().filter(|path| !there.contains(path)).count();
        let more = gone > plan.gone.len() + plan.renamed.len();
        // All of it at once is no agent's wish either.
        let all = plan.gone.len() > 1 && plan.gone.len() == manifest.files.len();
        Ok(more || all || !self.folder.is_at(&self.path))
    }

    async fn hash_all(&self, suspects: Vec<(FilePath, Leaf)>) -> Result<Vec<Changed>> {
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

    async fn push_deletions(
        &self,
        gone: Vec<FilePath>,
        manifest: &mut Manifest,
        report: &mut SyncReport,
    ) -> Result<()> {
        for batch in gone.chunks(BATCH) {
            let known: Vec<(&FilePath, Entry)> =
                batch.iter().filter_map(|path| Some((path, manifest.files.remove(path)?))).collect();
            let edits = known.iter().map(|(_, entry)| Edit::Delete {
                file: entry.file_id,
                expect: Expect::Version(entry.version),
            });
            let edited = self.workspace.edit(Author::Agent, edits.collect(), Some(self.fence)).await?;
            for ((path, _), edited) in known.iter().zip(edited) {
                match edited {
                    Edited::Done(_) => report.deleted.push(path.to_string()),
                    // Deleted by both.
                    Edited::Conflict(None) | Edited::Blocked(_) => {}
                    Edited::Conflict(Some(_)) => {
                        report.conflicts.push(Conflict { path: path.to_string(), kept_as: None });
                    }
                }
            }
        }
        Ok(())
    }

    async fn push_renames(
        &self,
        renamed: Vec<(FilePath, Changed)>,
        manifest: &mut Manifest,
        report: &mut SyncReport,
    ) -> Result<()> {
        for (from, found) in renamed {
            let Some(entry) = manifest.files.remove(&from) else { continue };
            let kind = self.kind(&found).await;
            let to = FileChanges { path: Some(found.path.clone()), kind, ..FileChanges::default() };
            let edit = Edit::Change { file: entry.file_id, to, expect: Expect::Version(entry.version) };
            let edited = self.workspace.edit(Author::Agent, vec![edit], Some(self.fence)).await?;
            if let [Edited::Done(file)] = &edited[..] {
                report.renamed.push(Renamed { from: from.to_string(), to: found.path.to_string() });
                manifest.files.insert(found.path, entry_of(file, found.stamp));
            } else {
                if let [Edited::Conflict(_)] = edited[..] {
                    // Somebody changed it under its old name: both stay.
                    let kept_as = Some(found.path.to_string());
                    report.conflicts.push(Conflict { path: from.to_string(), kept_as });
                }
                self.push_contents(&[found], manifest, report).await?;
            }
        }
        Ok(())
    }

    /// Puts contents, then makes their rows in one transaction.
    async fn push_contents(
        &self,
        batch: &[Changed],
        manifest: &mut Manifest,
        report: &mut SyncReport,
    ) -> Result<()> {
        let held = &Semaphore::new(HELD);
        let puts = (0..batch.len()).map(|at| async move { self.put(&batch[at], held).await });
        // In their order, so that rows and report have one.
        let blobs: Vec<(Blob, String)> = futures::stream::iter(puts).buffered(AT_ONCE).try_collect().await?;
        crash::point("pushed");
        let expected = |path: &FilePath| match manifest.files.get(path) {
            Some(entry) => Expect::Version(entry.version),
            // Where a content is lost, what the agent wrote mends it.
            None => manifest.damaged.get(path).map_or(Expect::Absent, |version| Expect::Version(*version)),
        };
        let write = |path: FilePath, original_name: String, blob: &(Blob, String), expect| Edit::Write {
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
        let edited = self.workspace.edit(Author::Agent, edits.collect(), Some(self.fence)).await?;
        for ((changed, blob), edited) in batch.iter().zip(&blobs).zip(edited) {
            let path = changed.path.to_string();
            match edited {
                Edited::Done(file) => {
                    let list = if file.version == 1 { &mut report.created } else { &mut report.modified };
                    list.push(path);
                    manifest.damaged.remove(&changed.path);
                    manifest.files.insert(changed.path.clone(), entry_of(&file, changed.stamp));
                }
                // Both came to the same.
                Edited::Conflict(Some(file)) if file.checksum == blob.0.checksum => {
                    self.drop_content(&blob.0).await?;
                    manifest.files.insert(changed.path.clone(), entry_of(&file, changed.stamp));
                }
                Edited::Conflict(_) => {
                    let kept_as = self.keep_beside(changed, &changed.path, blob, write).await?;
                    report.conflicts.push(Conflict { path, kept_as: Some(kept_as) });
                }
                // A folder came to be where the agent has a file, or the other way round.
                Edited::Blocked(by) => {
                    let kept_as = self.keep_beside(changed, &FilePath::parse(&by)?, blob, write).await?;
                    report.conflicts.push(Conflict { path, kept_as: Some(kept_as) });
                }
            }
        }
        Ok(())
    }

    /// Keeps the agent's version where what is in its way, the file itself or a folder above it, has another name. The
    /// first that is free is taken.
    async fn keep_beside(
        &self,
        changed: &Changed,
        in_the_way: &FilePath,
        blob: &(Blob, String),
        write: impl Fn(FilePath, String, &(Blob, String), Expect) -> Edit,
    ) -> Result<String> {
        for number in 1..1000 {
            let mark = if number == 1 { MARK.to_owned() } else { format!("{MARK}-{number}") };
            let rest = &changed.path.as_str()[in_the_way.as_str().len()..];
            let path = FilePath::parse(&format!("{}{rest}", in_the_way.marked(&mark)?))?;
            let edit = write(path.clone(), changed.path.file_name().to_owned(), blob, Expect::Absent);
            let edited = self.workspace.edit(Author::Agent, vec![edit], Some(self.fence)).await?;
            if matches!(edited[..], [Edited::Done(_)]) {
                return Ok(path.to_string());
            }
        }
        Err(atelier_store::Error::PathTaken(changed.path.to_string()).into())
    }

    /// What a file that was only renamed is under its new name; nothing, where it is gone again by now.
    async fn kind(&self, found: &Changed) -> Option<ContentKind> {
        let (folder, path, checksum) = (self.folder.clone(), found.path.clone(), found.checksum.clone());
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
        Ok(self.workspace.files.store.discard_objects(&self.workspace.owned, keys).await?)
    }

    /// Stores what the file holds now: it may have been written to since it was hashed.
    async fn put(&self, changed: &Changed, held: &Semaphore) -> Result<(Blob, String)> {
        let files = &self.workspace.files;
        let conversation = self.workspace.conversation;
        let size = changed.stamp.size;
        if size > PART as u64 {
            let (folder, path) = (self.folder.clone(), changed.path.clone());
            let open = move || folder.open_leaf(path.as_workspace());
            let (file, _) = tokio::task::spawn_blocking(open).await??;
            let body = ReaderStream::with_capacity(tokio::fs::File::from_std(file), 1 << 20);
            let body = body.map_err(Error::from).boxed();
            let limit = files.settings.max_upload;
            let put = blobs::put(&files.place, &files.tasks, conversation, body, limit, None).await?;
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
        let key = blobs::put_bytes(&files.place, conversation, &checksum, content).await?;
        Ok((Blob { checksum, size, key: Some(key.to_string()), instead_of: None }, kind))
    }
}

fn hash_some(folder: &Folder, suspects: Vec<(FilePath, Leaf)>) -> Result<Vec<Changed>> {
    let mut found = Vec::with_capacity(suspects.len());
    for (path, _) in suspects {
        match folder.open_leaf(path.as_workspace()) {
            Ok((mut file, stamp)) => found.push(Changed { path, stamp, checksum: hash(&mut file)? }),
            // Gone since it was listed: the next sync will see it.
            Err(atelier_executor::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

fn entry_of(file: &ConversationFile, stamp: Stamp) -> Entry {
    Entry { file_id: file.file_id, version: file.version, checksum: file.checksum.clone(), stamp }
}
