//! Work in the object store that follows a commit: objects to remove and readable copies to renew.
//! It is stored in the transaction that makes it necessary, so it is done whatever happens in
//! between.

use crate::{
    Owned, Result, Store, Tx,
    db::on,
    rows::{corrupt, new_id, now},
};
use atelier_core::{ConversationFile, ConversationId, FilePath, UserId};
use uuid::Uuid;

/// The owner whose lane this work uses: it belongs to no user.
const NOBODY: UserId = UserId(Uuid::nil());

/// A path whose readable copy may be outdated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleCopy {
    pub conversation: ConversationId,
    pub path: FilePath,
    mark: Uuid,
}

/// Removes content from the tables, and later from the object store, unless a file still uses it.
pub(crate) async fn forget_blob(
    tx: &mut Tx,
    conversation: ConversationId,
    checksum: &str,
) -> Result<()> {
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

pub(crate) async fn mark_stale(
    tx: &mut Tx,
    conversation: ConversationId,
    path: &FilePath,
) -> Result<()> {
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

/// Removes all files and readable copies of a conversation that is being deleted.
pub(crate) async fn forget_files(tx: &mut Tx, conversation: ConversationId) -> Result<()> {
    let id = conversation.0;
    on!(&mut tx.conn, |c| {
        sqlx::query(
            "INSERT INTO object_removals (object_key, created_at)
             SELECT object_key, $2 FROM (
                 SELECT object_key FROM file_blobs WHERE conversation_id = $1
                 UNION SELECT p.object_key FROM upload_parts p JOIN file_uploads u ON u.id = \
                 p.upload_id
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
            "DELETE FROM upload_parts WHERE upload_id IN (SELECT id FROM file_uploads WHERE \
             conversation_id = $1)",
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
    /// Keys of objects to remove, oldest first.
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

    /// Records that these objects were removed.
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

    /// Schedules the removal of objects that were created in vain.
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

    /// Copies to renew, of one conversation or of all, in random order: so copies that fail do not
    /// block the others.
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

    /// Records that these copies were renewed, unless they were marked again in the meantime.
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
                    // Another node has renewed the copy in the meantime, and this node may have
                    // overwritten it with an older one.
                    if ended == 0 {
                        mark_stale(tx, copy.conversation, &copy.path).await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }

    /// Marks the copies of these files, which are missing or wrong in the object store.
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
}
