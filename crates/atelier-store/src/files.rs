//! Reads of the files of conversations, their versions, and the objects that hold their content.

use crate::{
    Error, OwnedConversation, Result, StaleCopy, Store,
    db::{Conn, sql},
    rows::{corrupt, from_name},
};
use atelier_core::{
    ConversationFile, ConversationId, FileId, FilePath, FileSource, FileVersion, UserId,
    file::FileStatus,
};
use chrono::{DateTime, Utc};
use uuid::Uuid;

pub(crate) const COLUMNS: &str = "file_id, conversation_id, file_path, original_name, description, \
    file_size, \
     mime_type, version, source, is_presented, checksum, status, created_by, created_at, \
     updated_at";

/// A row of `conversation_files` with its columns in the order of `COLUMNS`.
pub(crate) type FileRow = (
    Uuid,
    Uuid,
    String,
    String,
    Option<String>,
    i64,
    String,
    i64,
    String,
    bool,
    String,
    String,
    Option<Uuid>,
    DateTime<Utc>,
    DateTime<Utc>,
);

pub(crate) fn read_file(row: FileRow) -> Result<ConversationFile> {
    let (
        file,
        conversation,
        path,
        original_name,
        description,
        file_size,
        mime_type,
        version,
        source,
        is_presented,
        checksum,
        status,
        created_by,
        created_at,
        updated_at,
    ) = row;
    Ok(ConversationFile {
        file_id: FileId(file),
        conversation_id: ConversationId(conversation),
        file_path: corrupt(FilePath::try_from(path))?,
        original_name,
        description,
        file_size,
        mime_type,
        version,
        source: from_name(source)?,
        is_presented,
        checksum,
        status: from_name(status)?,
        created_by: created_by.map(UserId),
        created_at,
        updated_at,
    })
}

type VersionRow = (i64, String, i64, String, String, String, Option<Uuid>, DateTime<Utc>);

fn read_version(row: VersionRow) -> Result<FileVersion> {
    let (version, original_name, file_size, mime_type, source, checksum, created_by, created_at) =
        row;
    let source: FileSource = from_name(source)?;
    let created_by = created_by.map(UserId);
    Ok(FileVersion {
        version,
        original_name,
        file_size,
        mime_type,
        source,
        checksum,
        created_by,
        created_at,
    })
}

async fn file_at(
    conn: &mut Conn,
    conversation: ConversationId,
    path: &FilePath,
) -> Result<Option<ConversationFile>> {
    let text = format!(
        "SELECT {COLUMNS} FROM conversation_files
             WHERE conversation_id = $1 AND file_path = $2 AND status = 'active'"
    );
    let row: Option<FileRow> =
        sql(text).bind(conversation.0).bind(path.as_str()).fetch_optional(conn).await?;
    row.map(read_file).transpose()
}

async fn is_archived(conn: &mut Conn, conversation: ConversationId) -> Result<bool> {
    let (archived,): (bool,) =
        sql("SELECT EXISTS (SELECT 1 FROM conversations WHERE id = $1 AND status = 'archived')")
            .bind(conversation.0)
            .fetch_one(conn)
            .await?;
    Ok(archived)
}

async fn blob_key(
    conn: &mut Conn,
    conversation: ConversationId,
    checksum: &str,
) -> Result<Option<String>> {
    let row: Option<(String,)> =
        sql("SELECT object_key FROM file_blobs WHERE conversation_id = $1 AND checksum = $2")
            .bind(conversation.0)
            .bind(checksum)
            .fetch_optional(conn)
            .await?;
    Ok(row.map(|(key,)| key))
}

impl Store {
    /// The files of a conversation that are not deleted, by path.
    pub async fn files(&self, conversation: &OwnedConversation) -> Result<Vec<ConversationFile>> {
        let mut conn = self.db.connect().await?;
        let text = format!(
            "SELECT {COLUMNS} FROM conversation_files WHERE conversation_id = $1 AND status = \
                 'active'"
        );
        let rows: Vec<FileRow> = sql(text).bind(conversation.id().0).fetch_all(&mut conn).await?;
        let files: Result<Vec<ConversationFile>> = rows.into_iter().map(read_file).collect();
        let mut files = files?;
        // Sorted here, because each database orders text in its own way.
        files.sort_unstable_by(|a, b| a.file_path.cmp(&b.file_path));
        Ok(files)
    }

    /// The files of a conversation that an agent deleted and that can be restored, by path.
    pub async fn deleted_files(
        &self,
        conversation: &OwnedConversation,
    ) -> Result<Vec<ConversationFile>> {
        let mut conn = self.db.connect().await?;
        let text = format!(
            "SELECT {COLUMNS} FROM conversation_files
                 WHERE conversation_id = $1 AND status = 'deleted' AND restorable"
        );
        let rows: Vec<FileRow> = sql(text).bind(conversation.id().0).fetch_all(&mut conn).await?;
        let files: Result<Vec<ConversationFile>> = rows.into_iter().map(read_file).collect();
        let mut files = files?;
        files.sort_unstable_by(|a, b| a.file_path.cmp(&b.file_path));
        Ok(files)
    }

    /// How often the files of a conversation have changed.
    pub async fn files_generation(&self, conversation: &OwnedConversation) -> Result<i64> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i64,)> = sql("SELECT files_generation FROM conversations WHERE id = $1")
            .bind(conversation.id().0)
            .fetch_optional(&mut conn)
            .await?;
        row.map(|(generation,)| generation).ok_or(Error::NotFound)
    }

    /// Whether any version of any file of the conversation, deleted files included, had this
    /// content.
    pub async fn had_content(
        &self,
        conversation: &OwnedConversation,
        checksum: &str,
    ) -> Result<bool> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i64,)> = sql(
            "SELECT version FROM file_versions WHERE conversation_id = $1 AND checksum = $2 LIMIT 1"
        )
        .bind(conversation.id().0)
        .bind(checksum)
        .fetch_optional(&mut conn)
        .await?;
        Ok(row.is_some())
    }

    /// A file that is not deleted.
    pub async fn file(
        &self,
        conversation: &OwnedConversation,
        id: FileId,
    ) -> Result<ConversationFile> {
        let file = self.restorable_file(conversation, id).await?;
        if file.status == FileStatus::Active { Ok(file) } else { Err(Error::NotFound) }
    }

    /// A file that is not deleted, or that can be restored.
    pub async fn restorable_file(
        &self,
        conversation: &OwnedConversation,
        id: FileId,
    ) -> Result<ConversationFile> {
        let mut conn = self.db.connect().await?;
        let text = format!(
            "SELECT {COLUMNS} FROM conversation_files
                 WHERE file_id = $1 AND conversation_id = $2
                   AND (status = 'active' OR restorable)"
        );
        let row: Option<FileRow> =
            sql(text).bind(id.0).bind(conversation.id().0).fetch_optional(&mut conn).await?;
        read_file(row.ok_or(Error::NotFound)?)
    }

    /// The file at a path, if there is one.
    pub async fn file_at(
        &self,
        conversation: &OwnedConversation,
        path: &FilePath,
    ) -> Result<Option<ConversationFile>> {
        file_at(&mut self.db.connect().await?, conversation.id(), path).await
    }

    /// The file that an outdated copy is of, and the key of the object with its content. Either may
    /// be gone by now. Files of archived conversations have no copies.
    pub async fn content_to_copy(
        &self,
        stale: &StaleCopy,
    ) -> Result<Option<(ConversationFile, Option<String>)>> {
        let mut conn = self.db.connect().await?;
        let Some(file) = file_at(&mut conn, stale.conversation, &stale.path).await? else {
            return Ok(None);
        };
        if is_archived(&mut conn, stale.conversation).await? {
            return Ok(None);
        }
        let key = blob_key(&mut conn, stale.conversation, &file.checksum).await?;
        Ok(Some((file, key)))
    }

    /// Every version of a file, the newest first.
    pub async fn file_versions(
        &self,
        conversation: &OwnedConversation,
        file: FileId,
    ) -> Result<Vec<FileVersion>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<VersionRow> = sql(
            "SELECT version, original_name, file_size, mime_type, source, checksum, created_by, \
             created_at
             FROM file_versions WHERE conversation_id = $1 AND file_id = $2 ORDER BY version DESC",
        )
        .bind(conversation.id().0)
        .bind(file.0)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(read_version).collect()
    }

    pub async fn file_version(
        &self,
        conversation: &OwnedConversation,
        file: FileId,
        version: i64,
    ) -> Result<FileVersion> {
        let mut conn = self.db.connect().await?;
        let row: Option<VersionRow> = sql(
            "SELECT version, original_name, file_size, mime_type, source, checksum, created_by, \
             created_at
             FROM file_versions WHERE conversation_id = $1 AND file_id = $2 AND version = $3",
        )
        .bind(conversation.id().0)
        .bind(file.0)
        .bind(version)
        .fetch_optional(&mut conn)
        .await?;
        read_version(row.ok_or(Error::NotFound)?)
    }

    /// The key of the object that holds this content, if the conversation has it.
    pub async fn blob_key(
        &self,
        conversation: &OwnedConversation,
        checksum: &str,
    ) -> Result<Option<String>> {
        blob_key(&mut self.db.connect().await?, conversation.id(), checksum).await
    }

    /// All content of a conversation: checksums with the keys of their objects.
    pub async fn blob_keys(
        &self,
        conversation: &OwnedConversation,
    ) -> Result<Vec<(String, String)>> {
        let mut conn = self.db.connect().await?;
        Ok(sql("SELECT checksum, object_key FROM file_blobs WHERE conversation_id = $1")
            .bind(conversation.id().0)
            .fetch_all(&mut conn)
            .await?)
    }
}
