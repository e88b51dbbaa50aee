//! What is still to be done in the object store after a commit: objects to remove, copies to renew. It is
//! written down in the transaction that makes it necessary, so that it is done whatever happens in between.

use crate::{
    Owned, Result, Store, Tx,
    db::on,
    rows::{corrupt, new_id, now},
};
use atelier_core::{ConversationFile, ConversationId, FilePath, UserId};
use uuid::Uuid;

/// Upkeep is nobody's in particular; it shares a lane with whoever has the first.
const NOBODY: UserId = UserId(Uuid::nil());

/// A path whose readable copy may not be what the tables say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleCopy {
    pub conversation: ConversationId,
    pub path: FilePath,
    mark: Uuid,
}

/// Removes content from the tables, and later from the object store, unless a live file still uses it.
pub(crate) async fn forget_blob(tx: &mut Tx, conversation: ConversationId, checksum: &str) -> Result<()> {
    let row: Option<(String,)> = on!(&mut tx.conn, |c| sqlx::query_as(
        "DELETE FROM file_blobs WHERE conversation_id = $1 AND checksum = $2 AND NOT EXISTS (
             SELECT 1 FROM file_versions v JOIN conversation_files f ON f.id = v.file_id
             WHERE v.conversation_id = $1 AND v.checksum = $2 AND f.status = 'active'
         ) RETURNING object_key"
    )
    .bind(conversation.0)
    .bind(checksum)
    .fetch_optional(c)
    .await)?;
    match row {
        Some((key,)) => remove_later(tx, &key).await,
        None => Ok(()),
    }
}

pub(crate) async fn remove_later(tx: &mut Tx, key: &str) -> Result<()> {
    on!(&mut tx.conn, |c| sqlx::query(
        "INSERT INTO object_removals (object_key, created_at) VALUES ($1, $2)
         ON CONFLICT (object_key) DO NOTHING"
    )
    .bind(key)
    .bind(now())
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

pub(crate) async fn mark_stale(tx: &mut Tx, conversation: ConversationId, path: &FilePath) -> Result<()> {
    on!(&mut tx.conn, |c| sqlx::query(
        "INSERT INTO stale_copies (conversation_id, file_path, mark) VALUES ($1, $2, $3)
         ON CONFLICT (conversation_id, file_path) DO UPDATE SET mark = $3"
    )
    .bind(conversation.0)
    .bind(path.as_str())
    .bind(new_id())
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// All files of a conversation that is deleted itself; the copies too, if there are any.
pub(crate) async fn forget_files(tx: &mut Tx, conversation: ConversationId) -> Result<()> {
    let id = conversation.0;
    on!(&mut tx.conn, |c| {
        sqlx::query(
            "INSERT INTO object_removals (object_key, created_at)
             SELECT object_key, $2 FROM (
                 SELECT object_key FROM file_blobs WHERE conversation_id = $1
                 UNION SELECT p.object_key FROM upload_parts p JOIN file_uploads u ON u.id = p.upload_id
                 WHERE u.conversation_id = $1) AS stored
             WHERE TRUE ON CONFLICT (object_key) DO NOTHING",
        )
        .bind(id)
        .bind(now())
        .execute(&mut *c)
        .await?;
        sqlx::query(
            "INSERT INTO stale_copies (conversation_id, file_path, mark)
             SELECT conversation_id, file_path, $2 FROM conversation_files
             WHERE conversation_id = $1 AND status = 'active'
             ON CONFLICT (conversation_id, file_path) DO UPDATE SET mark = $2",
        )
        .bind(id)
        .bind(new_id())
        .execute(&mut *c)
        .await?;
        for table in [
            "DELETE FROM upload_parts WHERE upload_id IN (SELECT id FROM file_uploads WHERE conversation_id = $1)",
            "DELETE FROM file_uploads WHERE conversation_id = $1",
            "DELETE FROM file_versions WHERE conversation_id = $1",
            "DELETE FROM file_blobs WHERE conversation_id = $1",
            "DELETE FROM conversation_files WHERE conversation_id = $1",
            "DELETE FROM workspace_leases WHERE conversation_id = $1",
        ] {
            sqlx::query(table).bind(id).execute(&mut *c).await?;
        }
    });
    Ok(())
}

impl Store {
    /// Keys of objects that are to be removed, the oldest first.
    pub async fn due_removals(&self, limit: i64) -> Result<Vec<String>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT object_key FROM object_removals ORDER BY created_at LIMIT $1"
        )
        .bind(limit)
        .fetch_all(c)
        .await)?;
        Ok(rows.into_iter().map(|(key,)| key).collect())
    }

    /// These objects are gone.
    pub async fn removals_done(&self, keys: Vec<String>) -> Result<()> {
        self.write(NOBODY, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| {
                    for key in keys {
                        sqlx::query("DELETE FROM object_removals WHERE object_key = $1")
                            .bind(key)
                            .execute(&mut *c)
                            .await?;
                    }
                });
                Ok(())
            })
        })
        .await
    }

    /// Objects that were put and are of no use: they go like any other.
    pub async fn discard_objects(&self, owned: &Owned, keys: Vec<String>) -> Result<()> {
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                for key in keys {
                    remove_later(tx, &key).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Copies to renew, of one conversation or of all; in no order, so that those that fail do not hold up the rest.
    pub async fn stale_copies(
        &self,
        conversation: Option<ConversationId>,
        limit: i64,
    ) -> Result<Vec<StaleCopy>> {
        let mut conn = self.db.connect().await?;
        let (any, one) = (conversation.is_none(), conversation.map_or(Uuid::nil(), |it| it.0));
        let rows: Vec<(Uuid, String, Uuid)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT conversation_id, file_path, mark FROM stale_copies
             WHERE $1 OR conversation_id = $2 ORDER BY random() LIMIT $3"
        )
        .bind(any)
        .bind(one)
        .bind(limit)
        .fetch_all(c)
        .await)?;
        let read = |(conversation, path, mark): (Uuid, String, Uuid)| {
            let path = corrupt(FilePath::try_from(path))?;
            Ok(StaleCopy { conversation: ConversationId(conversation), path, mark })
        };
        rows.into_iter().map(read).collect()
    }

    /// These copies are as they should be, unless they were marked again meanwhile.
    pub async fn copies_renewed(&self, copies: Vec<StaleCopy>) -> Result<()> {
        self.write(NOBODY, move |tx| {
            Box::pin(async move {
                for copy in copies {
                    let ended: u64 = on!(&mut tx.conn, |c| sqlx::query(
                        "DELETE FROM stale_copies
                         WHERE conversation_id = $1 AND file_path = $2 AND mark = $3"
                    )
                    .bind(copy.conversation.0)
                    .bind(copy.path.as_str())
                    .bind(copy.mark)
                    .execute(c)
                    .await
                    .map(|done| done.rows_affected()))?;
                    // Another node has made a newer one meanwhile, and this may have come after it.
                    if ended == 0 {
                        mark_stale(tx, copy.conversation, &copy.path).await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }

    /// Marks the copies of these files, which a look at the object store found missing or wrong.
    pub async fn mark_copies_stale(&self, files: Vec<ConversationFile>) -> Result<()> {
        self.write(NOBODY, move |tx| {
            Box::pin(async move {
                for file in files {
                    mark_stale(tx, file.conversation_id, &file.file_path).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Whether a conversation is there at all.
    pub async fn conversation_exists(&self, conversation: ConversationId) -> Result<bool> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i32,)> =
            on!(&mut conn, |c| sqlx::query_as("SELECT 1 FROM conversations WHERE id = $1")
                .bind(conversation.0)
                .fetch_optional(c)
                .await)?;
        Ok(row.is_some())
    }
}
