//! Reads of the files of conversations, their versions, and the objects that hold their content.

use crate::{
    Error, OwnedConversation, Result, StaleCopy, Store,
    db::{Conn, on},
    rows::{corrupt, from_name},
};
use atelier_core::{
    ConversationFile, ConversationId, FileId, FilePath, FileSource, FileVersion, UserId,
    file::FileStatus,
};
use chrono::{DateTime, Utc};
use sqlx::Row;
use uuid::Uuid;

pub(crate) const COLUMNS: &str = "file_id, conversation_id, file_path, original_name, description, \
    file_size, \
     mime_type, version, source, is_presented, checksum, status, created_by, created_at, \
     updated_at";

/// Reads a row of `conversation_files` with its columns in the order of `COLUMNS`.
pub(crate) fn read_file<'r, R: Row>(row: &'r R) -> Result<ConversationFile>
where
    usize: sqlx::ColumnIndex<R>,
    Uuid: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    String: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    i64: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    bool: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    DateTime<Utc>: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    Ok(ConversationFile {
        file_id: FileId(row.try_get(0)?),
        conversation_id: ConversationId(row.try_get(1)?),
        file_path: corrupt(FilePath::try_from(row.try_get::<String, _>(2)?))?,
        original_name: row.try_get(3)?,
        description: row.try_get(4)?,
        file_size: row.try_get(5)?,
        mime_type: row.try_get(6)?,
        version: row.try_get(7)?,
        source: from_name(row.try_get(8)?)?,
        is_presented: row.try_get(9)?,
        checksum: row.try_get(10)?,
        status: from_name(row.try_get(11)?)?,
        created_by: row.try_get::<Option<Uuid>, _>(12)?.map(UserId),
        created_at: row.try_get(13)?,
        updated_at: row.try_get(14)?,
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
    on!(conn, |c| {
        let sql = format!(
            "SELECT {COLUMNS} FROM conversation_files
             WHERE conversation_id = $1 AND file_path = $2 AND status = 'active'"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql));
        let row = row.bind(conversation.0).bind(path.as_str()).fetch_optional(c).await?;
        row.as_ref().map(read_file).transpose()
    })
}

async fn is_archived(conn: &mut Conn, conversation: ConversationId) -> Result<bool> {
    let (archived,): (bool,) = on!(conn, |c| sqlx::query_as(
        "SELECT EXISTS (SELECT 1 FROM conversations WHERE id = $1 AND status = 'archived')"
    )
    .bind(conversation.0)
    .fetch_one(c)
    .await)?;
    Ok(archived)
}

async fn blob_key(
    conn: &mut Conn,
    conversation: ConversationId,
    checksum: &str,
) -> Result<Option<String>> {
    let row: Option<(String,)> = on!(conn, |c| sqlx::query_as(
        "SELECT object_key FROM file_blobs WHERE conversation_id = $1 AND checksum = $2"
    )
    .bind(conversation.0)
    .bind(checksum)
    .fetch_optional(c)
    .await)?;
    Ok(row.map(|(key,)| key))
}

impl Store {
    /// The files of a conversation that are not deleted, by path.
    pub async fn files(&self, conversation: &OwnedConversation) -> Result<Vec<ConversationFile>> {
        let mut conn = self.db.connect().await?;
        on!(&mut conn, |c| {
            let sql = format!(
                "SELECT {COLUMNS} FROM conversation_files WHERE conversation_id = $1 AND status = \
                 'active'"
            );
            let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(conversation.id().0)
                .fetch_all(c)
                .await?;
            let files: Result<Vec<ConversationFile>> = rows.iter().map(read_file).collect();
            let mut files = files?;
            // Sorted here, because each database orders text in its own way.
            files.sort_unstable_by(|a, b| a.file_path.cmp(&b.file_path));
            Ok(files)
        })
    }

    /// The files of a conversation that an agent deleted and that can be restored, by path.
    pub async fn deleted_files(
        &self,
        conversation: &OwnedConversation,
    ) -> Result<Vec<ConversationFile>> {
        let mut conn = self.db.connect().await?;
        on!(&mut conn, |c| {
            let sql = format!(
                "SELECT {COLUMNS} FROM conversation_files
                 WHERE conversation_id = $1 AND status = 'deleted' AND restorable"
            );
            let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(conversation.id().0)
                .fetch_all(c)
                .await?;
            let files: Result<Vec<ConversationFile>> = rows.iter().map(read_file).collect();
            let mut files = files?;
            files.sort_unstable_by(|a, b| a.file_path.cmp(&b.file_path));
            Ok(files)
        })
    }

    /// How often the files of a conversation have changed.
    pub async fn files_generation(&self, conversation: &OwnedConversation) -> Result<i64> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i64,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT files_generation FROM conversations WHERE id = $1"
        )
        .bind(conversation.id().0)
        .fetch_optional(c)
        .await)?;
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
        let row: Option<(i64,)> = on!(&mut conn, |c| {
            sqlx::query_as(
            "SELECT version FROM file_versions WHERE conversation_id = $1 AND checksum = $2 LIMIT 1"
        )
        .bind(conversation.id().0)
        .bind(checksum)
        .fetch_optional(c)
        .await
        })?;
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
        on!(&mut conn, |c| {
            let sql = format!(
                "SELECT {COLUMNS} FROM conversation_files
                 WHERE file_id = $1 AND conversation_id = $2
                   AND (status = 'active' OR restorable)"
            );
            let row = sqlx::query(sqlx::AssertSqlSafe(sql));
            let row = row.bind(id.0).bind(conversation.id().0).fetch_optional(c).await?;
            read_file(&row.ok_or(Error::NotFound)?)
        })
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
        let rows: Vec<VersionRow> = on!(&mut conn, |c| {
            sqlx::query_as(
            "SELECT version, original_name, file_size, mime_type, source, checksum, created_by, \
             created_at
             FROM file_versions WHERE conversation_id = $1 AND file_id = $2 ORDER BY version DESC"
        )
        .bind(conversation.id().0)
        .bind(file.0)
        .fetch_all(c)
        .await
        })?;
        rows.into_iter().map(read_version).collect()
    }

    pub async fn file_version(
        &self,
        conversation: &OwnedConversation,
        file: FileId,
        version: i64,
    ) -> Result<FileVersion> {
        let mut conn = self.db.connect().await?;
        let row: Option<VersionRow> = on!(&mut conn, |c| {
            sqlx::query_as(
            "SELECT version, original_name, file_size, mime_type, source, checksum, created_by, \
             created_at
             FROM file_versions WHERE conversation_id = $1 AND file_id = $2 AND version = $3"
        )
        .bind(conversation.id().0)
        .bind(file.0)
        .bind(version)
        .fetch_optional(c)
        .await
        })?;
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
        Ok(on!(&mut conn, |c| sqlx::query_as(
            "SELECT checksum, object_key FROM file_blobs WHERE conversation_id = $1"
        )
        .bind(conversation.id().0)
        .fetch_all(c)
        .await)?)
    }
}
