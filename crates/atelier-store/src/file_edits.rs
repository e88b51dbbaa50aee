//! Changing a conversation's files. All edits of one call are made in one transaction with their events; the
//! database decides who wins, so the object store is asked for no conditional writes.

mod tree;

use crate::{
    Error, Fence, Owned, Result, Store, Tx,
    conversations::lock_conversation,
    db::on,
    file_leases::check_fence,
    file_upkeep::{forget_blob, mark_stale, remove_later},
    file_uploads::{Upload, complete, open_upload},
    rows::{new_id, now},
};
use atelier_core::{
    ConversationFile, ConversationId, Event, FileChange, FileId, FilePath, FileSource, UploadId, UserId,
    file::{ChangeKind, FileStatus},
};
use tree::Tree;

/// Content that is in the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub checksum: String,
    pub size: i64,
    /// The object it was just put into; `None` where equal content was found to be there already.
    pub key: Option<String>,
    /// The object that equal content was in until now, and is not any more.
    pub instead_of: Option<String>,
}

/// Who changes a file: the person who owns the conversation, or an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    Person(UserId),
    Agent,
}

/// What has to be true of the file for an edit to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    Anything,
    Absent,
    /// Its newest content is one of these (`If-Match`).
    Checksum(Vec<String>),
    Version(i64),
    /// Anything, as long as it is there (`If-Match: *`).
    Present,
}

#[derive(Debug, Clone)]
pub enum Edit {
    /// The next version of what is at this path, or a new file.
    Write {
        path: FilePath,
        original_name: String,
        /// `None` leaves what is there.
        description: Option<String>,
        mime_type: String,
        blob: Blob,
        /// Where the content came from; `None`: from whoever writes it.
        source: Option<FileSource>,
        expect: Expect,
    },
    /// The content stays.
    Change {
        file: FileId,
        to: FileChanges,
        expect: Expect,
    },
    Delete {
        file: FileId,
        expect: Expect,
    },
    /// The upload in parts that became the file at its path. Only one of those who complete it does.
    Complete {
        upload: UploadId,
    },
}

/// What to change of a file beside its content; what is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct FileChanges {
    pub path: Option<FilePath>,
    /// `Some(None)` takes it away.
    pub description: Option<Option<String>>,
    pub presented: Option<bool>,
    /// What the content of this checksum is, under its new name.
    pub kind: Option<ContentKind>,
}

#[derive(Debug, Clone)]
pub struct ContentKind {
    pub checksum: String,
    pub mime_type: String,
}

/// Where a conversation's files lie in the object store.
#[derive(Debug, Clone)]
pub struct WorkspaceStorage {
    pub path: String,
    /// Whether readable copies are kept there.
    pub copies: bool,
}

/// What became of one edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edited {
    Done(ConversationFile),
    /// The file is not what the edit expects. Nothing was changed; this is what is there.
    Conflict(Option<ConversationFile>),
    /// This is in the way: a file where there would have to be a folder, or the other way round.
    Blocked(String),
}

/// So that an event stays small however many files a run changed.
const CHANGES_PER_EVENT: usize = 100;

impl Store {
    /// Makes the edits, or none of them. With a fence, only while its lease is good; then an edit that cannot be
    /// made is passed over and told, and its content is still the caller's; otherwise it fails all of them.
    pub async fn edit_files(
        &self,
        owned: &Owned,
        conversation: ConversationId,
        author: Author,
        edits: Vec<Edit>,
        fence: Option<Fence>,
        place: WorkspaceStorage,
    ) -> Result<Vec<Edited>> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let known = lock_conversation(tx, owned.project, conversation).await?;
                if let Some(fence) = fence {
                    check_fence(tx, conversation, fence).await?;
                }
                if known.workspace_created_at.is_none() {
                    found_workspace(tx, conversation, &place.path).await?;
                }
                let mut tree = Tree::load(tx, conversation).await?;
                let copies = place.copies;
                let mut work = Work { tx, conversation, author, copies, changes: Vec::new() };
                let mut done = Vec::with_capacity(edits.len());
                for edit in edits {
                    let edited = match work.edit(&mut tree, edit).await {
                        Err(Error::PathTaken(path) | Error::FileThere(path)) if fence.is_some() => {
                            Edited::Blocked(path)
                        }
                        other => other?,
                    };
                    if fence.is_none() && matches!(edited, Edited::Conflict(_)) {
                        return Err(Error::Precondition);
                    }
                    done.push(edited);
                }
                for changes in work.changes.chunks(CHANGES_PER_EVENT) {
                    let event =
                        Event::FilesChanged { conversation_id: conversation, changes: changes.to_vec() };
                    work.tx.emit(owned.project, owned.owner, &event);
                }
                Ok(done)
            })
        })
        .await
    }

    /// Shows files to the person: marks them and says so.
    pub async fn present_files(
        &self,
        owned: &Owned,
        conversation: ConversationId,
        files: Vec<FileId>,
        description: Option<String>,
    ) -> Result<Vec<ConversationFile>> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                lock_conversation(tx, owned.project, conversation).await?;
                let mut tree = Tree::load(tx, conversation).await?;
                let mut work =
                    Work { tx, conversation, author: Author::Agent, copies: false, changes: Vec::new() };
                let mut shown = Vec::with_capacity(files.len());
                for file in files {
                    let file = tree.by_id(file).ok_or(Error::NotFound)?;
                    let mut file = file.clone();
                    file.is_presented = true;
                    file.description = description.clone().or(file.description);
                    work.save(&file).await?;
                    tree.put(file.clone());
                    shown.push(file);
                }
                let event = Event::FilesPresented {
                    conversation_id: conversation,
                    files: shown.clone(),
                    description,
                };
                work.tx.emit(owned.project, owned.owner, &event);
                Ok(shown)
            })
        })
        .await
    }
}

async fn found_workspace(tx: &mut Tx, conversation: ConversationId, place: &str) -> Result<()> {
    on!(&mut tx.conn, |c| sqlx::query(
        "UPDATE conversations SET workspace_path = $1, workspace_created_at = $2 WHERE id = $3"
    )
    .bind(place)
    .bind(now())
    .bind(conversation.0)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

struct Work<'t> {
    tx: &'t mut Tx,
    conversation: ConversationId,
    author: Author,
    copies: bool,
    changes: Vec<FileChange>,
}

impl Work<'_> {
    async fn edit(&mut self, tree: &mut Tree, edit: Edit) -> Result<Edited> {
        match edit {
            Edit::Write { path, original_name, description, mime_type, blob, source, expect } => {
                let old = tree.files.get(&path).cloned();
                if !holds(&expect, old.as_ref()) {
                    return Ok(Edited::Conflict(old));
                }
                tree.check_room(&path, None)?;
                let blob = self.keep(blob).await?;
                let content = Content {
                    original_name,
                    description,
                    mime_type,
                    checksum: blob.checksum,
                    size: blob.size,
                    source,
                };
                let file = self.write(old, path, content).await?;
                tree.put(file.clone());
                Ok(Edited::Done(file))
            }
            Edit::Change { file, to, expect } => {
                let Some(old) = tree.by_id(file).cloned() else { return Ok(Edited::Conflict(None)) };
                if !holds(&expect, Some(&old)) {
                    return Ok(Edited::Conflict(Some(old)));
                }
                let new = to.path.unwrap_or_else(|| old.file_path.clone());
                if new != old.file_path {
                    if tree.files.contains_key(&new) {
                        return Err(Error::FileThere(new.to_string()));
                    }
                    tree.check_room(&new, Some(old.file_id))?;
                }
                let kind = to.kind.filter(|kind| kind.checksum == old.checksum);
                let file = ConversationFile {
                    file_path: new,
                    description: to.description.unwrap_or_else(|| old.description.clone()),
                    is_presented: to.presented.unwrap_or(old.is_presented),
                    mime_type: kind.map_or_else(|| old.mime_type.clone(), |kind| kind.mime_type),
                    ..old.clone()
                };
                if file == old {
                    return Ok(Edited::Done(file));
                }
                let file = ConversationFile { updated_at: now(), ..file };
                self.save(&file).await?;
                if file.mime_type != old.mime_type {
                    self.save_kind(&file).await?;
                }
                if file.file_path != old.file_path {
                    self.stale(&old.file_path).await?;
                    self.stale(&file.file_path).await?;
                }
                self.tell(ChangeKind::Renamed, &file);
                tree.put(file.clone());
                Ok(Edited::Done(file))
            }
            Edit::Complete { upload } => {
                let upload = open_upload(self.tx, self.conversation, upload).await?;
                let Some(upload) = upload else { return Ok(Edited::Conflict(None)) };
                let Some(file) = tree.files.get(&upload.path).cloned() else {
                    return Ok(Edited::Conflict(None));
                };
                complete(self.tx, &Upload { done: Some(file.file_id), ..upload }).await?;
                Ok(Edited::Done(file))
            }
            Edit::Delete { file, expect } => {
                let Some(old) = tree.by_id(file).cloned() else { return Ok(Edited::Conflict(None)) };
                if !holds(&expect, Some(&old)) {
                    return Ok(Edited::Conflict(Some(old)));
                }
                let file = ConversationFile { status: FileStatus::Deleted, updated_at: now(), ..old };
                self.save(&file).await?;
                for checksum in self.contents(file.file_id).await? {
                    forget_blob(self.tx, self.conversation, &checksum).await?;
                }
                self.stale(&file.file_path).await?;
                self.tell(ChangeKind::Deleted, &file);
                tree.remove(file.file_id);
                Ok(Edited::Done(file))
            }
        }
    }

    /// Equal content is kept once: the first object stays, a second one goes; unless the first is known to be lost.
    async fn keep(&mut self, blob: Blob) -> Result<Blob> {
        let found: Option<(String,)> = on!(&mut self.tx.conn, |c| sqlx::query_as(
            "SELECT object_key FROM file_blobs WHERE conversation_id = $1 AND checksum = $2"
        )
        .bind(self.conversation.0)
        .bind(&blob.checksum)
        .fetch_optional(c)
        .await)?;
        match (&found, &blob.key) {
            (None, None) => return Err(Error::BlobGone),
            (Some((lost,)), Some(key)) if blob.instead_of.as_ref() == Some(lost) => {
                on!(&mut self.tx.conn, |c| sqlx::query(
                    "UPDATE file_blobs SET object_key = $3 WHERE conversation_id = $1 AND checksum = $2"
                )
                .bind(self.conversation.0)
                .bind(&blob.checksum)
                .bind(key)
                .execute(c)
                .await
                .map(drop))?;
                remove_later(self.tx, lost).await?;
            }
            (Some((kept,)), Some(key)) if kept != key => remove_later(self.tx, key).await?,
            (Some(_), _) => {}
            (None, Some(key)) => on!(&mut self.tx.conn, |c| sqlx::query(
                "INSERT INTO file_blobs (conversation_id, checksum, object_key, file_size)
                 VALUES ($1, $2, $3, $4)"
            )
            .bind(self.conversation.0)
            .bind(&blob.checksum)
            .bind(key)
            .bind(blob.size)
            .execute(c)
            .await
            .map(drop))?,
        }
        Ok(blob)
    }

    async fn write(
        &mut self,
        old: Option<ConversationFile>,
        path: FilePath,
        content: Content,
    ) -> Result<ConversationFile> {
        let time = now();
        let (author, created_by) = match (self.author, &old) {
            (Author::Person(user), _) => (FileSource::UserUpload, Some(user)),
            (Author::Agent, None) => (FileSource::AiCreated, None),
            (Author::Agent, Some(_)) => (FileSource::AiModified, None),
        };
        let source = content.source.unwrap_or(author);
        let file = ConversationFile {
            file_id: old.as_ref().map_or_else(|| FileId(new_id()), |old| old.file_id),
            conversation_id: self.conversation,
            file_path: path,
            original_name: content.original_name,
            description: content.description.or(old.as_ref().and_then(|old| old.description.clone())),
            file_size: content.size,
            mime_type: content.mime_type,
            version: old.as_ref().map_or(1, |old| old.version + 1),
            source,
            is_presented: old.as_ref().is_some_and(|old| old.is_presented),
            checksum: content.checksum,
            status: FileStatus::Active,
            created_by,
            created_at: old.as_ref().map_or(time, |old| old.created_at),
            updated_at: time,
        };
        match &old {
            Some(_) => self.save(&file).await?,
            None => self.insert(&file).await?,
        }
        on!(&mut self.tx.conn, |c| {
            sqlx::query(
            "INSERT INTO file_versions (file_id, version, conversation_id, original_name, file_size, mime_type,
             source, checksum, created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        )
        .bind(file.file_id.0)
        .bind(file.version)
        .bind(self.conversation.0)
        .bind(&file.original_name)
        .bind(file.file_size)
        .bind(&file.mime_type)
        .bind(file.source.as_str())
        .bind(&file.checksum)
        .bind(file.created_by.map(|user| user.0))
        .bind(time)
        .execute(c)
        .await
        .map(drop)
        })?;
        self.stale(&file.file_path).await?;
        self.tell(if old.is_some() { ChangeKind::Updated } else { ChangeKind::Created }, &file);
        Ok(file)
    }

    async fn insert(&mut self, file: &ConversationFile) -> Result<()> {
        on!(&mut self.tx.conn, |c| sqlx::query(
            "INSERT INTO conversation_files (id, conversation_id, file_path, original_name, description,
             file_size, mime_type, version, source, is_presented, checksum, status, created_by, created_at,
             updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'active', $12, $13, $13)"
        )
        .bind(file.file_id.0)
        .bind(self.conversation.0)
        .bind(file.file_path.as_str())
        .bind(&file.original_name)
        .bind(&file.description)
        .bind(file.file_size)
        .bind(&file.mime_type)
        .bind(file.version)
        .bind(file.source.as_str())
        .bind(file.is_presented)
        .bind(&file.checksum)
        .bind(file.created_by.map(|user| user.0))
        .bind(file.created_at)
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }

    async fn save(&mut self, file: &ConversationFile) -> Result<()> {
        let status = if file.status == FileStatus::Active { "active" } else { "deleted" };
        on!(&mut self.tx.conn, |c| {
            sqlx::query(
            "UPDATE conversation_files SET file_path = $1, original_name = $2, description = $3, file_size = $4,
             mime_type = $5, version = $6, source = $7, is_presented = $8, checksum = $9, status = $10,
             created_by = $11, updated_at = $12 WHERE id = $13"
        )
        .bind(file.file_path.as_str())
        .bind(&file.original_name)
        .bind(&file.description)
        .bind(file.file_size)
        .bind(&file.mime_type)
        .bind(file.version)
        .bind(file.source.as_str())
        .bind(file.is_presented)
        .bind(&file.checksum)
        .bind(status)
        .bind(file.created_by.map(|user| user.0))
        .bind(file.updated_at)
        .bind(file.file_id.0)
        .execute(c)
        .await
        .map(drop)
        })?;
        Ok(())
    }

    /// The newest version is of another kind under its new name.
    async fn save_kind(&mut self, file: &ConversationFile) -> Result<()> {
        on!(&mut self.tx.conn, |c| sqlx::query(
            "UPDATE file_versions SET mime_type = $1 WHERE file_id = $2 AND version = $3"
        )
        .bind(&file.mime_type)
        .bind(file.file_id.0)
        .bind(file.version)
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }

    async fn contents(&mut self, file: FileId) -> Result<Vec<String>> {
        let rows: Vec<(String,)> = on!(&mut self.tx.conn, |c| sqlx::query_as(
            "SELECT DISTINCT checksum FROM file_versions WHERE file_id = $1"
        )
        .bind(file.0)
        .fetch_all(c)
        .await)?;
        Ok(rows.into_iter().map(|(checksum,)| checksum).collect())
    }

    async fn stale(&mut self, path: &FilePath) -> Result<()> {
        if self.copies { mark_stale(self.tx, self.conversation, path).await } else { Ok(()) }
    }

    fn tell(&mut self, change: ChangeKind, file: &ConversationFile) {
        self.changes.push(FileChange {
            change,
            file_id: file.file_id,
            file_path: file.file_path.clone(),
            version: file.version,
            source: file.source,
        });
    }
}

struct Content {
    original_name: String,
    description: Option<String>,
    mime_type: String,
    checksum: String,
    size: i64,
    source: Option<FileSource>,
}

fn holds(expect: &Expect, found: Option<&ConversationFile>) -> bool {
    match (expect, found) {
        (Expect::Anything, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => true,
        (Expect::Checksum(good), Some(file)) => good.contains(&file.checksum),
        (Expect::Version(version), Some(file)) => file.version == *version,
        (Expect::Absent, Some(_)) | (Expect::Checksum(_) | Expect::Version(_) | Expect::Present, None) => {
            false
        }
    }
}
