//! Leases on the folders of conversations. One holder at a time works in a folder, on all nodes and
//! by the database's time, while its node is alive. Every new holder gets a higher fence, so a
//! holder that has lost its lease cannot write any more.

use crate::{Error, Owned, Result, Store, Tx, db::sql, nodes::is_gone};
use atelier_core::{ConversationId, time_delta};
use std::time::Duration;

/// The number of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence(i64);

impl Store {
    /// Takes the lease unless somebody else has it.
    pub async fn lease_workspace(
        &self,
        owned: &Owned,
        conversation: ConversationId,
        time: Duration,
    ) -> Result<Option<Fence>> {
        let node = self.node();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let now = tx.time().await?;
                let row: Option<(i64,)> = sql(concat!(
                    "INSERT INTO workspace_leases AS l (conversation_id, fence, lease_until, \
                         node)
                         VALUES ($1, 1, $2, $3) ON CONFLICT (conversation_id) DO UPDATE
                         SET fence = l.fence + 1, lease_until = $2, node = $3
                         WHERE l.lease_until <= $4 OR ",
                    is_gone!("l.node", "$3", "$4"),
                    " RETURNING fence"
                ))
                .bind(conversation.0)
                .bind(now + time_delta(time))
                .bind(node.0)
                .bind(now)
                .fetch_optional(&mut tx.conn)
                .await?;
                Ok(row.map(|(fence,)| Fence(fence)))
            })
        })
        .await
    }

    /// Extends the lease, or ends it if `time` is zero.
    pub async fn renew_workspace(
        &self,
        owned: &Owned,
        conversation: ConversationId,
        fence: Fence,
        time: Duration,
    ) -> Result<()> {
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let now = tx.time().await?;
                let renewed: u64 = sql("UPDATE workspace_leases SET lease_until = $1
                     WHERE conversation_id = $2 AND fence = $3 AND lease_until > $4")
                .bind(now + time_delta(time))
                .bind(conversation.0)
                .bind(fence.0)
                .bind(now)
                .execute(&mut tx.conn)
                .await?;
                if renewed == 1 { Ok(()) } else { Err(Error::LeaseLost) }
            })
        })
        .await
    }
}

pub(crate) async fn check_fence(
    tx: &mut Tx,
    conversation: ConversationId,
    fence: Fence,
) -> Result<()> {
    let now = tx.time().await?;
    let row: Option<(i64,)> =
        sql("SELECT fence FROM workspace_leases WHERE conversation_id = $1 AND lease_until > $2")
            .bind(conversation.0)
            .bind(now)
            .fetch_optional(&mut tx.conn)
            .await?;
    if row == Some((fence.0,)) { Ok(()) } else { Err(Error::LeaseLost) }
}
