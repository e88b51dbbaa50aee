//! Uploads in parts. Each part is an object of its own until the upload is completed.

use crate::{
    Error, Owned, OwnedConversation, Result, Store, Tx,
    conversations::lock_conversation,
    db::sql,
    file_upkeep::remove_later,
    rows::{from_json, json},
};
use atelier_core::{ConversationId, FileId, FilePath, UploadId};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An upload in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    pub id: UploadId,
    pub conversation: ConversationId,
    pub path: FilePath,
    pub original_name: String,
    pub description: Option<String>,
    /// The announced size in bytes.
    pub size: i64,
    pub expires_at: DateTime<Utc>,
    /// The file that the upload became. A completed upload is kept until it expires, so that a
    /// repeated request gets the same answer.
    #[serde(default)]
    pub done: Option<FileId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub number: i64,
    pub key: String,
    pub size: i64,
    pub checksum: String,
}

/// Locks the upload; `None` if it is completed or does not exist.
pub(crate) async fn open_upload(
    tx: &mut Tx,
    conversation: ConversationId,
    id: UploadId,
) -> Result<Option<Upload>> {
    let row: Option<(String,)> = sql(
        "UPDATE file_uploads SET expires_at = expires_at WHERE id = $1 AND conversation_id = $2
         RETURNING record",
    )
    .bind(id.0)
    .bind(conversation.0)
    .fetch_optional(&mut tx.conn)
    .await?;
    let upload: Option<Upload> = row.map(|(record,)| from_json(&record)).transpose()?;
    Ok(upload.filter(|upload| upload.done.is_none()))
}

/// Stores which file an upload became, and removes its parts.
pub(crate) async fn complete(tx: &mut Tx, upload: &Upload) -> Result<()> {
    sql("UPDATE file_uploads SET record = $1 WHERE id = $2")
        .bind(json(upload))
        .bind(upload.id.0)
        .execute(&mut tx.conn)
        .await?;
    drop_parts(tx, upload.id).await
}

async fn drop_parts(tx: &mut Tx, id: UploadId) -> Result<()> {
    let keys: Vec<(String,)> =
        sql("DELETE FROM upload_parts WHERE upload_id = $1 RETURNING object_key")
            .bind(id.0)
            .fetch_all(&mut tx.conn)
            .await?;
    for (key,) in keys {
        remove_later(tx, &key).await?;
    }
    Ok(())
}

impl Store {
    pub async fn begin_upload(&self, owned: &Owned, upload: Upload) -> Result<Upload> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                lock_conversation(tx, owned.project, upload.conversation).await?;
                sql("INSERT INTO file_uploads (id, conversation_id, record, expires_at) VALUES \
                     ($1, $2, $3, $4)")
                .bind(upload.id.0)
                .bind(upload.conversation.0)
                .bind(json(&upload))
                .bind(upload.expires_at)
                .execute(&mut tx.conn)
                .await?;
                Ok(upload)
            })
        })
        .await
    }

    /// An upload and its parts, in order.
    pub async fn upload(
        &self,
        conversation: &OwnedConversation,
        id: UploadId,
    ) -> Result<(Upload, Vec<Part>)> {
        let mut conn = self.db.connect().await?;
        let row: Option<(String,)> =
            sql("SELECT record FROM file_uploads WHERE id = $1 AND conversation_id = $2")
                .bind(id.0)
                .bind(conversation.id().0)
                .fetch_optional(&mut conn)
                .await?;
        let (record,) = row.ok_or(Error::NotFound)?;
        let rows: Vec<(i64, String, i64, String)> =
            sql("SELECT number, object_key, part_size, checksum FROM upload_parts
             WHERE upload_id = $1 ORDER BY number")
            .bind(id.0)
            .fetch_all(&mut conn)
            .await?;
        let part = |(number, key, size, checksum)| Part { number, key, size, checksum };
        Ok((from_json(&record)?, rows.into_iter().map(part).collect()))
    }

    /// Adds a part, or replaces the part of the same number. Returns `false` if the parts would
    /// exceed the announced size, or if the upload is completed.
    pub async fn add_part(&self, owned: &Owned, upload: &Upload, part: Part) -> Result<bool> {
        let id = upload.id;
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                // The lock makes each part of an upload see the others.
                let row: Option<(String,)> = sql(
                    "UPDATE file_uploads SET expires_at = expires_at WHERE id = $1 RETURNING record"
                )
                .bind(id.0)
                .fetch_optional(&mut tx.conn)
                .await?;
                let (record,) = row.ok_or(Error::NotFound)?;
                let upload: Upload = from_json(&record)?;
                let sizes: Vec<(i64,)> =
                    sql("SELECT part_size FROM upload_parts WHERE upload_id = $1 AND number <> $2")
                        .bind(id.0)
                        .bind(part.number)
                        .fetch_all(&mut tx.conn)
                        .await?;
                let others: i64 = sizes.into_iter().map(|(size,)| size).sum();
                if upload.done.is_some() || others + part.size > upload.size {
                    return Ok(false);
                }
                let old: Option<(String,)> =
                    sql("SELECT object_key FROM upload_parts WHERE upload_id = $1 AND number = $2")
                        .bind(id.0)
                        .bind(part.number)
                        .fetch_optional(&mut tx.conn)
                        .await?;
                sql("INSERT INTO upload_parts (upload_id, number, object_key, part_size, checksum)
                     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (upload_id, number)
                     DO UPDATE SET object_key = $3, part_size = $4, checksum = $5")
                .bind(id.0)
                .bind(part.number)
                .bind(&part.key)
                .bind(part.size)
                .bind(&part.checksum)
                .execute(&mut tx.conn)
                .await?;
                if let Some((key,)) = old {
                    remove_later(tx, &key).await?;
                }
                Ok(true)
            })
        })
        .await
    }

    /// Deletes an upload, completed or abandoned, with its parts.
    pub async fn end_upload(&self, owned: &Owned, id: UploadId) -> Result<()> {
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                drop_parts(tx, id).await?;
                sql("DELETE FROM file_uploads WHERE id = $1")
                    .bind(id.0)
                    .execute(&mut tx.conn)
                    .await?;
                Ok(())
            })
        })
        .await
    }

    /// Uploads that were not completed in time, each with the project that it belongs to.
    pub async fn expired_uploads(&self, now: DateTime<Utc>) -> Result<Vec<(Owned, UploadId)>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(Uuid, Uuid, Uuid, String)> =
            sql("SELECT u.id, v.project_id, v.user_id, v.tenant_id FROM file_uploads u
             JOIN conversations v ON v.id = u.conversation_id WHERE u.expires_at <= $1 LIMIT 256")
            .bind(now)
            .fetch_all(&mut conn)
            .await?;
        let expired = |(upload, project, owner, tenant): (Uuid, Uuid, Uuid, String)| {
            Ok((Owned::from_row((project, owner, tenant))?, UploadId(upload)))
        };
        rows.into_iter().map(expired).collect()
    }

    /// Keys of the parts of a conversation's uploads.
    pub async fn part_keys(&self, conversation: &OwnedConversation) -> Result<Vec<String>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> =
            sql("SELECT p.object_key FROM upload_parts p JOIN file_uploads u ON u.id = p.upload_id
             WHERE u.conversation_id = $1")
            .bind(conversation.id().0)
            .fetch_all(&mut conn)
            .await?;
        Ok(rows.into_iter().map(|(key,)| key).collect())
    }
}
