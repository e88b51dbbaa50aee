//! Work in the object store that follows a commit: objects to remove and readable copies to renew.
//! It is stored in the transaction that makes it necessary, so it is done whatever happens in
//! between.

use crate::{
    Owned, OwnedConversation, Result, Store, Tx,
    db::on,
    nodes::is_gone,
    rows::{corrupt, database_time, new_id, now},
};
use atelier_core::{ConversationFile, ConversationId, FilePath, NodeId, UserId};
use uuid::Uuid;

/// The owner whose lane this work uses: it belongs to no user.
const NOBODY: UserId = UserId(Uuid::nil());

/// A path whose readable copy may be outdated. One node at a time makes the copy, because two nodes
/// that copy at the same time could leave the older content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleCopy {
    pub conversation: ConversationId,
    pub path: FilePath,
    mark: Uuid,
}

/// SQL condition: the node `$this` may make a copy of `stale_copies`.
macro_rules! is_free {
    ($this:literal, $now:literal) => {
        concat!(
            "(stale_copies.node IS NULL OR stale_copies.node = ",
            $this,
            " OR ",
            is_gone!("stale_copies.node", $this, $now),
            ")"
        )
    };
}

/// Removes content from the tables, and later from the object store, unless a file still uses it.
pub(crate) async fn forget_blob(
    tx: &mut Tx,
    conversation: ConversationId,
    checksum: &str,
) -> Result<()> {
    let row: Option<(String,)> = on!(&mut tx.conn, |c| sqlx::query_as(
        "DELETE FROM file_blobs WHERE conversation_id = $1 AND checksum = $2 AND NOT EXISTS (
             SELECT 1 FROM file_versions v JOIN conversation_files f ON f.file_id = v.file_id
             WHERE v.conversation_id = $1 AND v.checksum = $2
               AND (f.status = 'active' OR f.restorable)
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

/// Marks a copy as outdated. `node` is about to renew it, unless another node is doing so.
pub(crate) async fn mark_stale(
    tx: &mut Tx,
    conversation: ConversationId,
    path: &FilePath,
    node: NodeId,
) -> Result<()> {
    on!(&mut tx.conn, |c| sqlx::query(
        "INSERT INTO stale_copies (conversation_id, file_path, mark, node) VALUES ($1, $2, $3, $4)
         ON CONFLICT (conversation_id, file_path)
         DO UPDATE SET mark = $3, node = COALESCE(stale_copies.node, $4)"
    )
    .bind(conversation.0)
    .bind(path.as_str())
    .bind(new_id())
    .bind(node.0)
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
    /// Records that content was copied to another key, and schedules the removal of the object that
    /// is no longer needed.
    pub async fn content_moved(
        &self,
        conversation: &OwnedConversation,
        checksum: String,
        old: String,
        new: String,
    ) -> Result<()> {
        let (id, owner) = (conversation.id(), conversation.owned().owner);
        self.write(owner, move |tx| {
            Box::pin(async move {
                let moved: u64 = on!(&mut tx.conn, |c| sqlx::query(
                    "UPDATE file_blobs SET object_key = $1
                     WHERE conversation_id = $2 AND checksum = $3 AND object_key = $4"
                )
                .bind(&new)
                .bind(id.0)
                .bind(checksum)
                .bind(&old)
                .execute(c)
                .await
                .map(|done| done.rows_affected()))?;
                // Somebody else moved it first, or nobody needs it any more.
                remove_later(tx, if moved == 0 { &new } else { &old }).await
            })
        })
        .await
    }

    /// How many readable copies are still to be made.
    pub async fn stale_copies(&self) -> Result<i64> {
        let mut conn = self.db.connect().await?;
        let (copies,): (i64,) = on!(&mut conn, |c| {
            sqlx::query_as("SELECT COUNT(*) FROM stale_copies").fetch_one(c).await
        })?;
        Ok(copies)
    }

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

    /// Conversations with copies that this node may renew, in random order: so conversations whose
    /// copies fail do not block the others.
    pub async fn conversations_to_copy(&self, limit: i64) -> Result<Vec<ConversationId>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let rows: Vec<(Uuid,)> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT conversation_id FROM stale_copies WHERE ",
            is_free!("$1", "$2"),
            " GROUP BY conversation_id ORDER BY random() LIMIT $3"
        ))
        .bind(self.node().0)
        .bind(time)
        .bind(limit)
        .fetch_all(c)
        .await)?;
        Ok(rows.into_iter().map(|(id,)| ConversationId(id)).collect())
    }

    /// Claims copies of a conversation for this node. Copies that another node makes are left to
    /// it.
    pub async fn claim_copies(
        &self,
        conversation: ConversationId,
        limit: i64,
    ) -> Result<Vec<StaleCopy>> {
        let node = self.node().0;
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let rows: Vec<(String, Uuid, Option<Uuid>)> = on!(&mut conn, |c| sqlx::query_as(concat!(
            "SELECT file_path, mark, node FROM stale_copies WHERE conversation_id = $3 AND ",
            is_free!("$1", "$2"),
            " ORDER BY random() LIMIT $4"
        ))
        .bind(node)
        .bind(time)
        .bind(conversation.0)
        .bind(limit)
        .fetch_all(c)
        .await)?;
        drop(conn);
        let read = |(path, mark): (String, Uuid)| {
            let path = corrupt(FilePath::try_from(path))?;
            Ok(StaleCopy { conversation, path, mark })
        };
        // The node that marked a copy has claimed it already.
        if rows.iter().all(|(_, _, by)| *by == Some(node)) {
            return rows.into_iter().map(|(path, mark, _)| read((path, mark))).collect();
        }
        let owner = self.owner_of_copies(conversation).await?;
        let claimed: Vec<(String, Uuid)> = self
            .write(owner, move |tx| {
                Box::pin(async move {
                    let mut claimed = Vec::with_capacity(rows.len());
                    for (path, _, _) in rows {
                        let row: Option<(String, Uuid)> =
                            on!(&mut tx.conn, |c| sqlx::query_as(concat!(
                                "UPDATE stale_copies SET node = $1
                                 WHERE conversation_id = $3 AND file_path = $4 AND ",
                                is_free!("$1", "$2"),
                                " RETURNING file_path, mark"
                            ))
                            .bind(node)
                            .bind(time)
                            .bind(conversation.0)
                            .bind(path)
                            .fetch_optional(c)
                            .await)?;
                        claimed.extend(row);
                    }
                    Ok(claimed)
                })
            })
            .await?;
        claimed.into_iter().map(read).collect()
    }

    /// Records that this node has renewed these copies. Copies that were marked again in the
    /// meantime stay marked, and any node may renew them.
    pub async fn copies_renewed(
        &self,
        conversation: ConversationId,
        copies: Vec<StaleCopy>,
    ) -> Result<()> {
        let node = self.node();
        let owner = self.owner_of_copies(conversation).await?;
        self.write(owner, move |tx| {
            Box::pin(async move {
                for copy in copies {
                    let (id, path) = (conversation.0, copy.path.as_str());
                    let claimed: u64 = on!(&mut tx.conn, |c| {
                        let ended = sqlx::query(
                            "DELETE FROM stale_copies WHERE conversation_id = $1
                             AND file_path = $2 AND node = $3 AND mark = $4",
                        );
                        let ended = ended.bind(id).bind(path).bind(node.0).bind(copy.mark);
                        let ended = ended.execute(&mut *c).await?.rows_affected();
                        let freed = sqlx::query(
                            "UPDATE stale_copies SET node = NULL WHERE conversation_id = $1
                             AND file_path = $2 AND node = $3",
                        );
                        let freed = freed.bind(id).bind(path).bind(node.0);
                        ended + freed.execute(&mut *c).await?.rows_affected()
                    });
                    // This node was taken for dead, so another node may have renewed the copy, and
                    // this node may have overwritten it with an older one.
                    if claimed == 0 {
                        mark_stale(tx, conversation, &copy.path, node).await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }

    /// Marks the copies of these files of a conversation, which are missing or wrong in the object
    /// store.
    pub async fn mark_copies_stale(
        &self,
        conversation: &OwnedConversation,
        files: Vec<ConversationFile>,
    ) -> Result<()> {
        let (node, id) = (self.node(), conversation.id());
        self.write(conversation.owned().owner, move |tx| {
            Box::pin(async move {
                for file in files {
                    mark_stale(tx, id, &file.file_path, node).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// The owner of a conversation, or `NOBODY` if the conversation is deleted. Uploads mark copies
    /// under the lock of the owner. Every other write that locks several marks does so, too:
    /// otherwise two nodes could each wait for a mark that the other has locked.
    async fn owner_of_copies(&self, conversation: ConversationId) -> Result<UserId> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid,)> =
            on!(&mut conn, |c| sqlx::query_as("SELECT user_id FROM conversations WHERE id = $1")
                .bind(conversation.0)
                .fetch_optional(c)
                .await)?;
        Ok(row.map_or(NOBODY, |(owner,)| UserId(owner)))
    }
}
