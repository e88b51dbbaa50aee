//! Changes to a conversation's files. All edits of one call are made in one transaction with their
//! events. The database decides which of two writers wins, so the object store needs no conditional
//! writes.

mod tree;

use crate::{
    Error, Fence, Owned, Result, Store, Tx,
    conversations::lock_conversation,
    db::sql,
    file_leases::check_fence,
    file_upkeep::{forget_blob, mark_stale, remove_later},
    file_uploads::{Upload, complete, open_upload},
    files::{COLUMNS, read_file},
    rows::{new_id, now},
};
use atelier_core::{
    ConversationFile, ConversationId, Event, FileChange, FileId, FilePath, FileSource, NodeId,
    UploadId, UserId,
    file::{ChangeKind, FileStatus},
};
use tree::Tree;

/// Content that is in the object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    pub checksum: String,
    pub size: i64,
    /// The object that was just created for the content; `None` if equal content was stored before.
    pub key: Option<String>,
    /// The object that used to hold equal content and was found to be lost.
    pub instead_of: Option<String>,
}

/// Who changes a file: the person who owns the conversation, or an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    Person(UserId),
    Agent,
}

/// A condition on the current file, without which an edit is not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    Anything,
    Absent,
    /// The checksum of the newest version is one of these (`If-Match`).
    Checksum(Vec<String>),
    Version(i64),
    /// The file exists (`If-Match: *`).
    Present,
    /// This file is at the path, with any content.
    File(FileId),
}

#[derive(Debug, Clone)]
pub enum Edit {
    /// Adds a version to the file at this path, or creates the file.
    Write {
        path: FilePath,
        original_name: String,
        /// `None` leaves the description as it is.
        description: Option<String>,
        mime_type: String,
        blob: Blob,
        /// Where the content comes from; `None` if it comes from the author of the edit.
        source: Option<FileSource>,
        expect: Expect,
    },
    /// Changes a file but not its content.
    Change { file: FileId, to: FileChanges, expect: Expect },
    /// Deletes a file. What an agent deletes can be restored; what a person deletes is removed with
    /// all its versions.
    Delete { file: FileId, expect: Expect },
    /// Brings back a file that can be restored, with the version that it had.
    Undelete { file: FileId },
    /// Completes an upload in parts, which became the file at its path. If several requests
    /// complete it at the same time, one succeeds.
    Complete { upload: UploadId },
}

/// Changes to a file other than its content; `None` leaves a field as it is.
#[derive(Debug, Clone, Default)]
pub struct FileChanges {
    pub path: Option<FilePath>,
    /// `Some(None)` removes the description.
    pub description: Option<Option<String>>,
    pub presented: Option<bool>,
    /// The media type that the current content has under the new name.
    pub kind: Option<ContentKind>,
}

#[derive(Debug, Clone)]
pub struct ContentKind {
    pub checksum: String,
    pub mime_type: String,
}

/// Where the files of a conversation are in the object store.
#[derive(Debug, Clone)]
pub struct WorkspaceStorage {
    pub path: String,
    /// Whether readable copies are kept.
    pub copies: bool,
}

/// What became of one edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edited {
    Done(ConversationFile),
    /// The file is not what the edit expects, so nothing was changed. This is the current file.
    Conflict(Option<ConversationFile>),
    /// The path cannot be used: this file is where a folder would have to be, or this folder is
    /// where the file would have to be.
    Blocked(String),
}

/// What became of the edits of one call, in their order.
#[derive(Debug)]
pub struct EditedFiles {
    pub edited: Vec<Edited>,
    /// How often the conversation's files have changed, with these edits.
    pub generation: i64,
}

/// How many changes one event reports, so that it stays small however many files a run changed.
const CHANGES_PER_EVENT: usize = 100;

impl Store {
    /// Makes the edits of one author. Without a fence, an edit that cannot be made fails all of
    /// them. With a fence, the edits are made only while its lease is valid, and an edit that
    /// cannot be made is reported and skipped; the object with its content then still belongs to
    /// the caller.
    pub async fn edit_files(
        &self,
        owned: &Owned,
        conversation: ConversationId,
        author: Author,
        edits: Vec<Edit>,
        fence: Option<Fence>,
        storage: WorkspaceStorage,
    ) -> Result<EditedFiles> {
        let owned = owned.clone();
        let copies = storage.copies.then_some(self.node());
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let locked = lock_conversation(tx, owned.project, conversation).await?;
                if let Some(fence) = fence {
                    check_fence(tx, conversation, fence).await?;
                }
                if locked.workspace_created_at.is_none() {
                    create_workspace(tx, conversation, &storage.path).await?;
                }
                let mut editor = FileEditor::open(tx, conversation, author, copies).await?;
                let mut done = Vec::with_capacity(edits.len());
                for edit in edits {
                    let edited = match editor.edit(edit).await {
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
                for changes in editor.changes.chunks(CHANGES_PER_EVENT) {
                    let event = Event::FilesChanged {
                        conversation_id: conversation,
                        changes: changes.to_vec(),
                    };
                    editor.tx.emit(owned.project, owned.owner, &event);
                }
                let generation = next_generation(tx, conversation).await?;
                Ok(EditedFiles { edited: done, generation })
            })
        })
        .await
    }

    /// Marks files as presented, and reports them to the user with an event.
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
                let mut editor = FileEditor::open(tx, conversation, Author::Agent, None).await?;
                let mut presented = Vec::with_capacity(files.len());
                for file in files {
                    presented.push(editor.present(file, description.clone()).await?);
                }
                let event = Event::FilesPresented {
                    conversation_id: conversation,
                    files: presented.clone(),
                    description,
                };
                editor.tx.emit(owned.project, owned.owner, &event);
                Ok(presented)
            })
        })
        .await
    }
}

/// Counts a change of a conversation's files.
async fn next_generation(tx: &mut Tx, conversation: ConversationId) -> Result<i64> {
    let (generation,): (i64,) =
        sql("UPDATE conversations SET files_generation = files_generation + 1 WHERE id = $1
         RETURNING files_generation")
        .bind(conversation.0)
        .fetch_one(&mut tx.conn)
        .await?;
    Ok(generation)
}

/// Stores where the files of a conversation are, with the first change to them.
async fn create_workspace(tx: &mut Tx, conversation: ConversationId, path: &str) -> Result<()> {
    sql("UPDATE conversations SET workspace_path = $1, workspace_created_at = $2 WHERE id = $3")
        .bind(path)
        .bind(now())
        .bind(conversation.0)
        .execute(&mut tx.conn)
        .await?;
    Ok(())
}

/// Makes edits to the files of one conversation and collects what changed.
struct FileEditor<'t> {
    tx: &'t mut Tx,
    tree: Tree,
    conversation: ConversationId,
    author: Author,
    /// The node that makes readable copies, if they are kept.
    copies: Option<NodeId>,
    changes: Vec<FileChange>,
}

impl<'t> FileEditor<'t> {
    async fn open(
        tx: &'t mut Tx,
        conversation: ConversationId,
        author: Author,
        copies: Option<NodeId>,
    ) -> Result<Self> {
        let tree = Tree::load(tx, conversation).await?;
        Ok(Self { tx, tree, conversation, author, copies, changes: Vec::new() })
    }

    async fn edit(&mut self, edit: Edit) -> Result<Edited> {
        match edit {
            Edit::Write { path, original_name, description, mime_type, blob, source, expect } => {
                let content = Content { original_name, description, mime_type, blob, source };
                self.write(path, content, &expect).await
            }
            Edit::Change { file, to, expect } => self.change(file, to, &expect).await,
            Edit::Delete { file, expect } => self.delete(file, &expect).await,
            Edit::Undelete { file } => self.undelete(file).await,
            Edit::Complete { upload } => self.complete_upload(upload).await,
        }
    }

    async fn write(&mut self, path: FilePath, content: Content, expect: &Expect) -> Result<Edited> {
        let old = self.tree.files.get(&path).cloned();
        if !holds(expect, old.as_ref()) {
            return Ok(Edited::Conflict(old));
        }
        self.tree.check_room(&path, None)?;
        self.store_blob(&content.blob).await?;
        let file = self.add_version(old, path, content).await?;
        self.tree.put(file.clone());
        Ok(Edited::Done(file))
    }

    async fn change(&mut self, id: FileId, to: FileChanges, expect: &Expect) -> Result<Edited> {
        let Some(old) = self.tree.by_id(id).cloned() else { return Ok(Edited::Conflict(None)) };
        if !holds(expect, Some(&old)) {
            return Ok(Edited::Conflict(Some(old)));
        }
        let path = to.path.unwrap_or_else(|| old.file_path.clone());
        if path != old.file_path {
            if self.tree.files.contains_key(&path) {
                return Err(Error::FileThere(path.to_string()));
            }
            self.tree.check_room(&path, Some(old.file_id))?;
        }
        let kind = to.kind.filter(|kind| kind.checksum == old.checksum);
        let file = ConversationFile {
            file_path: path,
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
            self.save_mime_type(&file).await?;
        }
        if file.file_path != old.file_path {
            self.mark_stale(&old.file_path).await?;
            self.mark_stale(&file.file_path).await?;
        }
        self.record(ChangeKind::Renamed, &file);
        self.tree.put(file.clone());
        Ok(Edited::Done(file))
    }

    async fn delete(&mut self, id: FileId, expect: &Expect) -> Result<Edited> {
        let by_person = matches!(self.author, Author::Person(_));
        let old = match self.tree.by_id(id).cloned() {
            None if by_person => self.restorable(id).await?,
            found => found,
        };
        let Some(old) = old else { return Ok(Edited::Conflict(None)) };
        if !holds(expect, Some(&old)) {
            return Ok(Edited::Conflict(Some(old)));
        }
        let file = ConversationFile { status: FileStatus::Deleted, updated_at: now(), ..old };
        self.save(&file).await?;
        self.set_restorable(file.file_id, !by_person).await?;
        if by_person {
            for checksum in self.checksums(file.file_id).await? {
                forget_blob(self.tx, self.conversation, &checksum).await?;
            }
        }
        self.mark_stale(&file.file_path).await?;
        self.record(ChangeKind::Deleted, &file);
        self.tree.remove(file.file_id);
        Ok(Edited::Done(file))
    }

    async fn undelete(&mut self, id: FileId) -> Result<Edited> {
        let Some(old) = self.restorable(id).await? else { return Ok(Edited::Conflict(None)) };
        if self.tree.files.contains_key(&old.file_path) {
            return Err(Error::FileThere(old.file_path.to_string()));
        }
        self.tree.check_room(&old.file_path, None)?;
        let file = ConversationFile { status: FileStatus::Active, updated_at: now(), ..old };
        self.save(&file).await?;
        self.set_restorable(id, false).await?;
        self.mark_stale(&file.file_path).await?;
        self.tree.put(file.clone());
        Ok(Edited::Done(file))
    }

    /// A deleted file that can be restored.
    async fn restorable(&mut self, id: FileId) -> Result<Option<ConversationFile>> {
        let text = format!(
            "SELECT {COLUMNS} FROM conversation_files
                 WHERE file_id = $1 AND conversation_id = $2 AND status = 'deleted' AND restorable"
        );
        let row = sql(text)
            .bind(id.0)
            .bind(self.conversation.0)
            .fetch_optional(&mut self.tx.conn)
            .await?;
        row.map(read_file).transpose()
    }

    async fn set_restorable(&mut self, id: FileId, restorable: bool) -> Result<()> {
        sql("UPDATE conversation_files SET restorable = $1 WHERE file_id = $2")
            .bind(restorable)
            .bind(id.0)
            .execute(&mut self.tx.conn)
            .await?;
        Ok(())
    }

    async fn complete_upload(&mut self, upload: UploadId) -> Result<Edited> {
        let upload = open_upload(self.tx, self.conversation, upload).await?;
        let Some(upload) = upload else { return Ok(Edited::Conflict(None)) };
        let Some(file) = self.tree.files.get(&upload.path).cloned() else {
            return Ok(Edited::Conflict(None));
        };
        complete(self.tx, &Upload { done: Some(file.file_id), ..upload }).await?;
        Ok(Edited::Done(file))
    }

    /// Marks a file as presented to the user.
    async fn present(
        &mut self,
        id: FileId,
        description: Option<String>,
    ) -> Result<ConversationFile> {
        let mut file = self.tree.by_id(id).ok_or(Error::NotFound)?.clone();
        file.is_presented = true;
        file.description = description.or(file.description);
        self.save(&file).await?;
        self.tree.put(file.clone());
        Ok(file)
    }

    /// Stores equal content once: the first object stays and a second one is removed, unless the
    /// first is known to be lost.
    async fn store_blob(&mut self, blob: &Blob) -> Result<()> {
        let found: Option<(String,)> =
            sql("SELECT object_key FROM file_blobs WHERE conversation_id = $1 AND checksum = $2")
                .bind(self.conversation.0)
                .bind(&blob.checksum)
                .fetch_optional(&mut self.tx.conn)
                .await?;
        match (&found, &blob.key) {
            (None, None) => return Err(Error::BlobGone),
            (Some((lost,)), Some(key)) if blob.instead_of.as_ref() == Some(lost) => {
                sql("UPDATE file_blobs SET object_key = $3 WHERE conversation_id = $1 AND \
                     checksum = $2")
                .bind(self.conversation.0)
                .bind(&blob.checksum)
                .bind(key)
                .execute(&mut self.tx.conn)
                .await?;
                remove_later(self.tx, lost).await?;
            }
            (Some((kept,)), Some(key)) if kept != key => remove_later(self.tx, key).await?,
            (Some(_), _) => {}
            (None, Some(key)) => {
                sql("INSERT INTO file_blobs (conversation_id, checksum, object_key, file_size)
                 VALUES ($1, $2, $3, $4)")
                .bind(self.conversation.0)
                .bind(&blob.checksum)
                .bind(key)
                .bind(blob.size)
                .execute(&mut self.tx.conn)
                .await?;
            }
        }
        Ok(())
    }

    /// Writes the next version of a file, or the first version of a new one.
    async fn add_version(
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
            description: content
                .description
                .or(old.as_ref().and_then(|old| old.description.clone())),
            file_size: content.blob.size,
            mime_type: content.mime_type,
            version: old.as_ref().map_or(1, |old| old.version + 1),
            source,
            is_presented: old.as_ref().is_some_and(|old| old.is_presented),
            checksum: content.blob.checksum,
            status: FileStatus::Active,
            created_by,
            created_at: old.as_ref().map_or(time, |old| old.created_at),
            updated_at: time,
        };
        match &old {
            Some(_) => self.save(&file).await?,
            None => self.insert(&file).await?,
        }
        sql("INSERT INTO file_versions (file_id, version, conversation_id, original_name, \
             file_size, mime_type,
             source, checksum, created_by, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, \
             $9, $10)")
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
        .execute(&mut self.tx.conn)
        .await?;
        self.mark_stale(&file.file_path).await?;
        self.record(if old.is_some() { ChangeKind::Updated } else { ChangeKind::Created }, &file);
        Ok(file)
    }

    async fn insert(&mut self, file: &ConversationFile) -> Result<()> {
        sql("INSERT INTO conversation_files (file_id, conversation_id, file_path, original_name, \
             description,
             file_size, mime_type, version, source, is_presented, checksum, status, created_by, \
             created_at,
             updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'active', $12, \
             $13, $13)")
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
        .execute(&mut self.tx.conn)
        .await?;
        Ok(())
    }

    async fn save(&mut self, file: &ConversationFile) -> Result<()> {
        let status = if file.status == FileStatus::Active { "active" } else { "deleted" };
        sql("UPDATE conversation_files SET file_path = $1, original_name = $2, description = $3, \
             file_size = $4,
             mime_type = $5, version = $6, source = $7, is_presented = $8, checksum = $9, status \
             = $10,
             created_by = $11, updated_at = $12 WHERE file_id = $13")
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
        .execute(&mut self.tx.conn)
        .await?;
        Ok(())
    }

    /// Writes the media type of the newest version, which a new name may change.
    async fn save_mime_type(&mut self, file: &ConversationFile) -> Result<()> {
        sql("UPDATE file_versions SET mime_type = $1 WHERE file_id = $2 AND version = $3")
            .bind(&file.mime_type)
            .bind(file.file_id.0)
            .bind(file.version)
            .execute(&mut self.tx.conn)
            .await?;
        Ok(())
    }

    /// The checksums of all versions of a file.
    async fn checksums(&mut self, file: FileId) -> Result<Vec<String>> {
        let rows: Vec<(String,)> =
            sql("SELECT DISTINCT checksum FROM file_versions WHERE file_id = $1")
                .bind(file.0)
                .fetch_all(&mut self.tx.conn)
                .await?;
        Ok(rows.into_iter().map(|(checksum,)| checksum).collect())
    }

    async fn mark_stale(&mut self, path: &FilePath) -> Result<()> {
        match self.copies {
            Some(node) => mark_stale(self.tx, self.conversation, path, node).await,
            None => Ok(()),
        }
    }

    fn record(&mut self, change: ChangeKind, file: &ConversationFile) {
        self.changes.push(FileChange {
            change,
            file_id: file.file_id,
            file_path: file.file_path.clone(),
            version: file.version,
            source: file.source,
        });
    }
}

/// The content of a new version.
struct Content {
    original_name: String,
    description: Option<String>,
    mime_type: String,
    blob: Blob,
    source: Option<FileSource>,
}

fn holds(expect: &Expect, found: Option<&ConversationFile>) -> bool {
    match (expect, found) {
        (Expect::Anything, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => true,
        (Expect::Checksum(good), Some(file)) => good.contains(&file.checksum),
        (Expect::Version(version), Some(file)) => file.version == *version,
        (Expect::File(id), Some(file)) => file.file_id == *id,
        (Expect::Absent, Some(_))
        | (Expect::Checksum(_) | Expect::Version(_) | Expect::File(_) | Expect::Present, None) => {
            false
        }
    }
}
