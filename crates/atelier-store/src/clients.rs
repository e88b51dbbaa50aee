//! Machines that are connected to a project.

use crate::{
    Error, Owned, Result, Store, Tx,
    db::{Conn, sql},
    gate::{end_session, log_problem, new_ids, store_decision, wake_task},
    rows::{database_time, from_json, json, read_record},
};
use atelier_core::{
    Client, ClientId, Event, ProjectId, TokenId,
    gate::{GateInput, GateRules, GatedCall},
};
use chrono::{DateTime, TimeDelta, Utc};
use std::sync::Arc;
use uuid::Uuid;

/// How long a machine may be silent before the next machine takes over.
pub const CLIENT_LEASE: TimeDelta = TimeDelta::seconds(30);

/// What is known about an id that a machine registers with: its project, the token that holds it,
/// until when, and whether that machine has fallen silent.
type Held = (Uuid, Option<Uuid>, DateTime<Utc>, bool);

/// How a machine disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnect {
    /// The machine announced that it leaves.
    Requested,
    /// The machine was silent until its lease ran out.
    LeaseExpired,
}

impl Store {
    /// Stores a connected machine, or that it is still connected, and sends the calls that wait for
    /// a machine. The registration belongs to `token`: while the machine is connected, no other
    /// token can replace it. Unless the machine resumes its connection, the permissions of the last
    /// connection end.
    pub async fn connect_client(
        &self,
        owned: &Owned,
        client: Client,
        token: TokenId,
        resumed: bool,
        rules: Arc<GateRules>,
    ) -> Result<Client> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let time = tx.time().await?;
                let fresh =
                    Client { connected_at: time, lease_until: time + CLIENT_LEASE, ..client };
                let held: Option<Held> =
                    sql("SELECT project_id, token, lease_until, silent FROM clients WHERE id = $1")
                        .bind(fresh.id.0)
                        .fetch_optional(&mut tx.conn)
                        .await?;
                let same = match held {
                    // An id that a machine of another project has is not found here.
                    Some((project, ..)) if project != owned.project.0 => {
                        return Err(Error::NotFound);
                    }
                    Some((_, holder, ..)) if holder.is_none_or(|holder| holder == token.0) => true,
                    Some((_, _, lease_until, _)) if lease_until > time => {
                        return Err(Error::ClientTaken);
                    }
                    Some(_) => false,
                    None => false,
                };
                let still = held.filter(|(.., silent)| same && !silent).is_some();
                let row: (DateTime<Utc>,) = sql("INSERT INTO clients
                         (id, project_id, root, os, isolation, connected_at, lease_until, token,
                          silent)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $10)
                     ON CONFLICT (id) DO UPDATE SET root = $3, os = $4, isolation = $5,
                         lease_until = $7, token = $8, silent = $10,
                         connected_at = CASE WHEN $9 THEN clients.connected_at ELSE $6 END
                     RETURNING connected_at")
                .bind(fresh.id.0)
                .bind(owned.project.0)
                .bind(&fresh.root)
                .bind(&fresh.os)
                .bind(json(&fresh.isolation))
                .bind(time)
                .bind(fresh.lease_until)
                .bind(token.0)
                .bind(still)
                .bind(false)
                .fetch_one(&mut tx.conn)
                .await?;
                let client = Client { connected_at: row.0, ..fresh };
                if !(resumed && same) {
                    end_session(tx, &owned, client.id.0).await?;
                }
                if client.connected_at == time {
                    let connected =
                        Event::ClientConnected { client_id: client.id, root: client.root.clone() };
                    tx.emit(owned.project, owned.owner, &connected);
                }
                assign_waiting(tx, &owned, &rules).await?;
                Ok(client)
            })
        })
        .await
    }

    /// Checks that the machine was registered with this token, or with one that it was renewed
    /// from. To any other token the machine does not exist.
    pub async fn check_client(&self, owned: &Owned, id: ClientId, token: TokenId) -> Result<()> {
        let mut conn = self.db.connect().await?;
        let row: Option<(bool,)> = sql("SELECT TRUE FROM clients WHERE id = $1 AND project_id = $2
             AND (token IS NULL OR token = $3)")
        .bind(id.0)
        .bind(owned.project.0)
        .bind(token.0)
        .fetch_optional(&mut conn)
        .await?;
        row.map(|_| ()).ok_or(Error::NotFound)
    }

    /// Extends a machine's lease, and sends the calls that wait for a machine.
    pub async fn renew_client(
        &self,
        owned: &Owned,
        id: ClientId,
        token: TokenId,
        rules: Arc<GateRules>,
    ) -> Result<DateTime<Utc>> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let until = tx.time().await? + CLIENT_LEASE;
                let renewed: u64 =
                    sql("UPDATE clients SET lease_until = $1 WHERE id = $2 AND project_id = $3
                     AND (token IS NULL OR token = $4) AND NOT silent")
                    .bind(until)
                    .bind(id.0)
                    .bind(owned.project.0)
                    .bind(token.0)
                    .execute(&mut tx.conn)
                    .await?;
                if renewed == 0 {
                    return Err(Error::NotFound);
                }
                assign_waiting(tx, &owned, &rules).await?;
                Ok(until)
            })
        })
        .await
    }

    /// Removes a machine, so that the next one takes over. If a person or the machine asked for it,
    /// the permissions of its connection end; a machine that is only silent may come back. Not
    /// found if its lease was renewed since.
    pub async fn remove_client(
        &self,
        owned: &Owned,
        id: ClientId,
        how: Disconnect,
        rules: Arc<GateRules>,
    ) -> Result<()> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let time = tx.time().await?;
                let removed: u64 = match how {
                    Disconnect::Requested => sql(
                        "DELETE FROM clients WHERE id = $1 AND project_id = $2"
                    )
                    .bind(id.0)
                    .bind(owned.project.0)
                    .execute(&mut tx.conn)
                    .await
                    ?,
                    Disconnect::LeaseExpired => sql(
                        "UPDATE clients SET silent = $3
                             WHERE id = $1 AND project_id = $2 AND NOT silent AND lease_until <= $4"
                    )
                    .bind(id.0)
                    .bind(owned.project.0)
                    .bind(true)
                    .bind(time)
                    .execute(&mut tx.conn)
                    .await?,
                };
                if removed == 0 {
                    return Err(Error::NotFound);
                }
                tx.emit(owned.project, owned.owner, &Event::ClientDisconnected { client_id: id });
                if how == Disconnect::Requested {
                    end_session(tx, &owned, id.0).await?;
                }
                assign_waiting(tx, &owned, &rules).await
            })
        })
        .await
    }

    /// Machines whose lease has run out, each with its project.
    pub async fn silent_clients(&self) -> Result<Vec<(Owned, ClientId)>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let rows: Vec<(Uuid, Uuid, Uuid, String)> = sql(
            "SELECT c.id, p.id, p.user_id, p.tenant_id FROM clients c JOIN projects p ON p.id = \
             c.project_id
             WHERE c.lease_until <= $1 AND NOT c.silent LIMIT 256",
        )
        .bind(time)
        .fetch_all(&mut conn)
        .await?;
        let silent = |(client, project, owner, tenant): (Uuid, Uuid, Uuid, String)| {
            Ok((Owned::from_row((project, owner, tenant))?, ClientId(client)))
        };
        rows.into_iter().map(silent).collect()
    }

    pub async fn clients(&self, owned: &Owned) -> Result<Vec<Client>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        clients(&mut conn, owned.project, time).await
    }
}

/// The machines whose lease is valid at `time`, in the order in which they connected.
pub(crate) async fn clients(
    conn: &mut Conn,
    project: ProjectId,
    time: DateTime<Utc>,
) -> Result<Vec<Client>> {
    type Row = (Uuid, String, String, String, DateTime<Utc>, DateTime<Utc>);
    let rows: Vec<Row> =
        sql("SELECT id, root, os, isolation, connected_at, lease_until FROM clients
         WHERE project_id = $1 AND lease_until > $2 ORDER BY connected_at, id")
        .bind(project.0)
        .bind(time)
        .fetch_all(conn)
        .await?;
    rows.into_iter()
        .map(|(id, root, os, isolation, connected_at, lease_until)| {
            let isolation = from_json(&isolation)?;
            Ok(Client {
                id: ClientId(id),
                project_id: project,
                root,
                os,
                isolation,
                connected_at,
                lease_until,
            })
        })
        .collect()
}

/// Decides anew about every call that waits for a machine.
async fn assign_waiting(tx: &mut Tx, owned: &Owned, rules: &GateRules) -> Result<()> {
    let context = tx.decision_context(owned.project).await?;
    if context.deleted {
        return Err(Error::NotFound);
    }
    // Only calls that are not settled have a deadline, so the index finds just those.
    let rows: Vec<(String,)> =
        sql("UPDATE tool_calls SET status = status WHERE project_id = $1 AND deadline IS NOT NULL
         AND status IN ('previewing', 'approved', 'dispatched') RETURNING record")
        .bind(owned.project.0)
        .fetch_all(&mut tx.conn)
        .await?;
    let mut calls: Vec<GatedCall> = rows.into_iter().map(read_record).collect::<Result<_>>()?;
    calls.sort_by_key(|call| call.tool_id);
    for call in calls {
        let decided = rules.decide(call, GateInput::Assign, &context, new_ids());
        let Ok((call, effects)) = decided else { continue };
        if effects.events.is_empty() {
            log_problem(&effects, call.tool_id);
            continue;
        }
        store_decision(&mut tx.rows, owned, call.clone(), effects);
        wake_task(&mut tx.rows, owned, &call, true);
    }
    Ok(())
}
