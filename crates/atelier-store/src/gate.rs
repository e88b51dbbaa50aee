//! Tool calls, the clients that run them, standing permissions and the record of every decision.
//!
//! What happens to a call is decided by the pure steps of `atelier_core::gate`; here they get the call and
//! everything they have to know in one transaction, and what they decide is written and told in the same.

use crate::{
    Error, Owned, Result, Store, Tx,
    db::{Conn, on},
    memos, new_id, now,
    projects::{corrupt, json},
    tasks::call_settled,
};
use atelier_core::{
    ApprovalId, CallId, ClientId, Event, GrantId, ProjectId, UserId,
    gate::{GatedCall, Grant, Refusal},
};
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use uuid::Uuid;

/// A machine of the user that is connected to a project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Client {
    pub id: ClientId,
    pub project_id: ProjectId,
    /// What the user calls the folder there; absolute paths beneath it are good.
    pub root: String,
    pub os: String,
    /// What holds its commands in.
    pub isolation: Value,
    pub connected_at: DateTime<Utc>,
    pub lease_until: DateTime<Utc>,
}

/// What a step has to know beside the call itself.
#[derive(Debug, Clone)]
pub struct Situation {
    /// The database's time, so that nodes agree.
    pub now: DateTime<Utc>,
    /// Those whose lease is good, the first to connect first: that one runs the calls.
    pub clients: Vec<Client>,
    /// The project's permissions that were not withdrawn.
    pub grants: Vec<Grant>,
}

impl Situation {
    pub fn holder(&self) -> Option<&Client> {
        self.clients.first()
    }
}

/// What a step decided, beside what became of the call.
#[derive(Debug, Default)]
pub struct Decided {
    pub events: Vec<Event>,
    pub grant: Option<Grant>,
    pub audit: Option<Audit>,
}

impl From<Vec<Event>> for Decided {
    fn from(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }
}

/// One decision about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    pub tool_id: CallId,
    pub approval_id: Option<ApprovalId>,
    /// approved, rejected, expired, cancelled, granted.
    pub decision: String,
    /// Nobody where time or a permission decided.
    pub by: Option<UserId>,
    /// The program that said so.
    pub via: Option<String>,
    /// What exactly was decided about.
    pub digest: Option<String>,
    pub grant_id: Option<GrantId>,
    pub at: DateTime<Utc>,
}

/// What decides about a call first.
pub type Begin = Box<dyn FnOnce(&mut GatedCall, &Situation) -> Decided + Send>;

/// A call on its way to the gate.
pub struct NewCall {
    pub call: GatedCall,
    pub begin: Begin,
}

/// How long a client may be silent before another takes over.
pub const LEASE: TimeDelta = TimeDelta::seconds(30);

impl Store {
    /// Keeps a new call, after `begin` has decided what happens to it first.
    pub async fn add_call(&self, owned: &Owned, new: NewCall) -> Result<GatedCall> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut calls = insert_calls(tx, &owned, vec![new]).await?;
                calls.pop().ok_or(Error::NotFound)
            })
        })
        .await
    }

    /// Takes one step with a call. Steps on one call happen one after the other, on every node.
    pub async fn step<F>(&self, owned: &Owned, id: CallId, step: F) -> Result<Result<GatedCall, Refusal>>
    where
        F: FnOnce(&mut GatedCall, &Situation) -> Result<Decided, Refusal> + Send + 'static,
    {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let mut call = lock_call(tx, owned.project, id).await?;
                let situation = situation(tx, owned.project).await?;
                let was_open = !call.status.is_settled();
                let decided = match step(&mut call, &situation) {
                    Ok(decided) => decided,
                    Err(refusal) => return Ok(Err(refusal)),
                };
                save(tx, &call).await?;
                carry_out(tx, &owned, decided).await?;
                if was_open {
                    tell_task(tx, &owned, &call).await?;
                }
                Ok(Ok(call))
            })
        })
        .await
    }

    /// Notes a client, or that one is still there, and lets `assign` hand it what waits.
    pub async fn keep_client<F>(&self, owned: &Owned, client: Client, assign: F) -> Result<Client>
    where
        F: Fn(&mut GatedCall, &Situation) -> Vec<Event> + Send + 'static,
    {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let time = database_time(&mut tx.conn).await?;
                let fresh = Client { connected_at: time, lease_until: time + LEASE, ..client };
                let row: (DateTime<Utc>,) = on!(&mut tx.conn, |c| sqlx::query_as(
                    "INSERT INTO clients (id, project_id, root, os, isolation, connected_at, lease_until)
                     VALUES ($1, $2, $3, $4, $5, $6, $7)
                     ON CONFLICT (id) DO UPDATE SET root = $3, os = $4, isolation = $5, lease_until = $7
                     RETURNING connected_at"
                )
                .bind(fresh.id.0)
                .bind(owned.project.0)
                .bind(&fresh.root)
                .bind(&fresh.os)
                .bind(json(&fresh.isolation))
                .bind(time)
                .bind(fresh.lease_until)
                .fetch_one(c)
                .await)?;
                let client = Client { connected_at: row.0, ..fresh };
                if client.connected_at == time {
                    let connected =
                        Event::ClientConnected { client_id: client.id, root: client.root.clone() };
                    tx.emit(owned.project, owned.owner, &connected);
                }
                assign_waiting(tx, &owned, assign).await?;
                Ok(client)
            })
        })
        .await
    }

    /// A client's lease goes on; what waits for one is handed out.
    pub async fn renew_client<F>(&self, owned: &Owned, id: ClientId, assign: F) -> Result<DateTime<Utc>>
    where
        F: Fn(&mut GatedCall, &Situation) -> Vec<Event> + Send + 'static,
    {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let until = database_time(&mut tx.conn).await? + LEASE;
                let renewed: u64 = on!(&mut tx.conn, |c| sqlx::query(
                    "UPDATE clients SET lease_until = $1 WHERE id = $2 AND project_id = $3"
                )
                .bind(until)
                .bind(id.0)
                .bind(owned.project.0)
                .execute(c)
                .await
                .map(|done| done.rows_affected()))?;
                if renewed == 0 {
                    return Err(Error::NotFound);
                }
                assign_waiting(tx, &owned, assign).await?;
                Ok(until)
            })
        })
        .await
    }

    /// A client says goodbye; the next one takes over.
    pub async fn remove_client<F>(&self, owned: &Owned, id: ClientId, assign: F) -> Result<()>
    where
        F: Fn(&mut GatedCall, &Situation) -> Vec<Event> + Send + 'static,
    {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let removed: u64 = on!(&mut tx.conn, |c| sqlx::query(
                    "DELETE FROM clients WHERE id = $1 AND project_id = $2"
                )
                .bind(id.0)
                .bind(owned.project.0)
                .execute(c)
                .await
                .map(|done| done.rows_affected()))?;
                if removed == 0 {
                    return Err(Error::NotFound);
                }
                tx.emit(owned.project, owned.owner, &Event::ClientDisconnected { client_id: id });
                assign_waiting(tx, &owned, assign).await
            })
        })
        .await
    }

    pub async fn clients(&self, project: ProjectId) -> Result<Vec<Client>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        clients(&mut conn, project, time).await
    }

    pub async fn call(&self, project: ProjectId, id: CallId) -> Result<GatedCall> {
        let mut conn = self.db.connect().await?;
        let row: Option<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT record FROM tool_calls WHERE id = $1 AND project_id = $2"
        )
        .bind(id.0)
        .bind(project.0)
        .fetch_optional(c)
        .await)?;
        read(row.ok_or(Error::NotFound)?)
    }

    /// Which call an approval is about, now or formerly.
    pub async fn call_of_approval(&self, project: ProjectId, id: ApprovalId) -> Result<CallId> {
        let mut conn = self.db.connect().await?;
        let row: Option<(Uuid,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT id FROM tool_calls WHERE approval_id = $1 AND project_id = $2"
        )
        .bind(id.0)
        .bind(project.0)
        .fetch_optional(c)
        .await)?;
        row.map(|(id,)| CallId(id)).ok_or(Error::NotFound)
    }

    /// The project's calls, newest first, in one state or in any.
    pub async fn calls(
        &self,
        project: ProjectId,
        status: Option<&str>,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<GatedCall>, i64)> {
        let mut conn = self.db.connect().await?;
        let any = status.is_none();
        let status = status.unwrap_or_default().to_owned();
        let (rows, total): (Vec<(String,)>, (i64,)) = on!(&mut conn, |c| {
            let rows = sqlx::query_as(
                "SELECT record FROM tool_calls WHERE project_id = $1 AND ($2 OR status = $3)
                 ORDER BY id DESC LIMIT $4 OFFSET $5",
            )
            .bind(project.0)
            .bind(any)
            .bind(&status)
            .bind(limit)
            .bind(offset)
            .fetch_all(&mut *c)
            .await?;
            let total = sqlx::query_as(
                "SELECT COUNT(*) FROM tool_calls WHERE project_id = $1 AND ($2 OR status = $3)",
            )
            .bind(project.0)
            .bind(any)
            .bind(&status)
            .fetch_one(&mut *c)
            .await?;
            (rows, total)
        });
        Ok((rows.into_iter().map(read).collect::<Result<_>>()?, total.0))
    }

    /// What waits for the user's decision, in one project or in all, oldest first.
    pub async fn pending_calls(&self, user: UserId, project: Option<ProjectId>) -> Result<Vec<GatedCall>> {
        let mut conn = self.db.connect().await?;
        let (any, project) = (project.is_none(), project.map_or(Uuid::nil(), |project| project.0));
        let rows: Vec<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT t.record FROM tool_calls t JOIN projects p ON p.id = t.project_id
             WHERE p.user_id = $1 AND ($2 OR p.id = $3) AND p.deleted_at IS NULL
             AND t.status = 'pending_approval' ORDER BY t.id LIMIT 1000"
        )
        .bind(user.0)
        .bind(any)
        .bind(project)
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }

    /// Calls for which time has something to decide, with their project's owner.
    pub async fn due_calls(&self, limit: i64) -> Result<Vec<(Owned, CallId)>> {
        let mut conn = self.db.connect().await?;
        let time = database_time(&mut conn).await?;
        let rows: Vec<(Uuid, Uuid, Uuid, String)> = on!(&mut conn, |c| {
            sqlx::query_as(
            "SELECT t.id, p.id, p.user_id, p.tenant_id FROM tool_calls t JOIN projects p ON p.id = t.project_id
             WHERE t.deadline <= $1 ORDER BY t.deadline LIMIT $2"
        )
        .bind(time)
        .bind(limit)
        .fetch_all(c)
        .await
        })?;
        let due = |(call, project, owner, tenant): (Uuid, Uuid, Uuid, String)| {
            let tenant = corrupt(tenant.parse())?;
            Ok((Owned { project: ProjectId(project), owner: UserId(owner), tenant }, CallId(call)))
        };
        rows.into_iter().map(due).collect()
    }

    pub async fn grants(&self, project: ProjectId) -> Result<Vec<Grant>> {
        let mut conn = self.db.connect().await?;
        grants(&mut conn, project).await
    }

    pub async fn withdraw_grant(&self, owned: &Owned, id: GrantId) -> Result<Grant> {
        let owned = owned.clone();
        self.write(owned.owner, move |tx| {
            Box::pin(async move {
                let row: Option<(String,)> = on!(&mut tx.conn, |c| sqlx::query_as(
                    "UPDATE grants SET withdrawn_at = $1 WHERE id = $2 AND project_id = $3 AND withdrawn_at IS NULL
                     RETURNING record"
                )
                .bind(now())
                .bind(id.0)
                .bind(owned.project.0)
                .fetch_optional(c)
                .await)?;
                let mut grant: Grant = read(row.ok_or(Error::NotFound)?)?;
                grant.withdrawn_at = Some(now());
                tx.emit(owned.project, owned.owner, &Event::GrantWithdrawn { grant_id: id });
                Ok(grant)
            })
        })
        .await
    }

    /// The project's decisions, newest first.
    pub async fn audit(&self, project: ProjectId, limit: i64, offset: i64) -> Result<Vec<Audit>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String,)> = on!(&mut conn, |c| sqlx::query_as(
            "SELECT record FROM audit WHERE project_id = $1 ORDER BY id DESC LIMIT $2 OFFSET $3"
        )
        .bind(project.0)
        .bind(limit)
        .bind(offset)
        .fetch_all(c)
        .await)?;
        rows.into_iter().map(read).collect()
    }
}

fn read<T: DeserializeOwned>((record,): (String,)) -> Result<T> {
    corrupt(serde_json::from_str(&record))
}

/// Keeps new calls, after what decides about each has had its say.
pub(crate) async fn insert_calls(tx: &mut Tx, owned: &Owned, new: Vec<NewCall>) -> Result<Vec<GatedCall>> {
    let situation = situation(tx, owned.project).await?;
    let mut calls = Vec::with_capacity(new.len());
    for NewCall { mut call, begin } in new {
        call.created_at = situation.now;
        let decided = begin(&mut call, &situation);
        on!(&mut tx.conn, |c| sqlx::query(
            "INSERT INTO tool_calls (id, project_id, approval_id, status, deadline, record)
             VALUES ($1, $2, $3, $4, $5, $6)"
        )
        .bind(call.tool_id.0)
        .bind(owned.project.0)
        .bind(call.approval_id.map(|id| id.0))
        .bind(call.status.as_str())
        .bind(call.deadline)
        .bind(json(&call))
        .execute(c)
        .await
        .map(drop))?;
        carry_out(tx, owned, decided).await?;
        tell_task(tx, owned, &call).await?;
        calls.push(call);
    }
    Ok(calls)
}

/// A call that is settled is remembered by its agent, and the task that waits for it goes on.
async fn tell_task(tx: &mut Tx, owned: &Owned, call: &GatedCall) -> Result<()> {
    if !call.status.is_settled() {
        return Ok(());
    }
    memos::call(tx, owned, call).await?;
    match call.task_id {
        Some(task) => call_settled(tx, owned, task).await,
        None => Ok(()),
    }
}

pub(crate) async fn database_time(conn: &mut Conn) -> Result<DateTime<Utc>, sqlx::Error> {
    match conn {
        // One node: its own clock is the database's.
        Conn::Lite(_) => Ok(now()),
        Conn::Pg(conn) => {
            let (time,): (DateTime<Utc>,) =
                sqlx::query_as("SELECT clock_timestamp()").fetch_one(&mut **conn).await?;
            Ok(time.trunc_subsecs(6))
        }
    }
}

async fn situation(tx: &mut Tx, project: ProjectId) -> Result<Situation> {
    let time = database_time(&mut tx.conn).await?;
    let clients = clients(&mut tx.conn, project, time).await?;
    Ok(Situation { now: time, clients, grants: grants(&mut tx.conn, project).await? })
}

async fn clients(conn: &mut Conn, project: ProjectId, time: DateTime<Utc>) -> Result<Vec<Client>> {
    type Row = (Uuid, String, String, String, DateTime<Utc>, DateTime<Utc>);
    let rows: Vec<Row> = on!(conn, |c| sqlx::query_as(
        "SELECT id, root, os, isolation, connected_at, lease_until FROM clients
         WHERE project_id = $1 AND lease_until > $2 ORDER BY connected_at, id"
    )
    .bind(project.0)
    .bind(time)
    .fetch_all(c)
    .await)?;
    rows.into_iter()
        .map(|(id, root, os, isolation, connected_at, lease_until)| {
            let isolation = corrupt(serde_json::from_str(&isolation))?;
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

async fn grants(conn: &mut Conn, project: ProjectId) -> Result<Vec<Grant>> {
    let rows: Vec<(String,)> = on!(conn, |c| sqlx::query_as(
        "SELECT record FROM grants WHERE project_id = $1 AND withdrawn_at IS NULL ORDER BY id"
    )
    .bind(project.0)
    .fetch_all(c)
    .await)?;
    rows.into_iter().map(read).collect()
}

async fn lock_call(tx: &mut Tx, project: ProjectId, id: CallId) -> Result<GatedCall> {
    let row: Option<(String,)> = on!(&mut tx.conn, |c| sqlx::query_as(
        "UPDATE tool_calls SET status = status WHERE id = $1 AND project_id = $2 RETURNING record"
    )
    .bind(id.0)
    .bind(project.0)
    .fetch_optional(c)
    .await)?;
    read(row.ok_or(Error::NotFound)?)
}

async fn save(tx: &mut Tx, call: &GatedCall) -> Result<()> {
    on!(&mut tx.conn, |c| sqlx::query(
        "UPDATE tool_calls SET approval_id = $1, status = $2, deadline = $3, record = $4 WHERE id = $5"
    )
    .bind(call.approval_id.map(|id| id.0))
    .bind(call.status.as_str())
    .bind(call.deadline)
    .bind(json(call))
    .bind(call.tool_id.0)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

async fn carry_out(tx: &mut Tx, owned: &Owned, decided: Decided) -> Result<()> {
    if let Some(grant) = decided.grant {
        on!(&mut tx.conn, |c| sqlx::query(
            "INSERT INTO grants (id, project_id, session, record) VALUES ($1, $2, $3, $4)"
        )
        .bind(grant.id.0)
        .bind(owned.project.0)
        .bind(grant.session)
        .bind(json(&grant))
        .execute(c)
        .await
        .map(drop))?;
        tx.emit(owned.project, owned.owner, &Event::GrantMade { grant });
    }
    if let Some(audit) = decided.audit {
        on!(&mut tx.conn, |c| sqlx::query("INSERT INTO audit (id, project_id, record) VALUES ($1, $2, $3)")
            .bind(new_id())
            .bind(owned.project.0)
            .bind(json(&audit))
            .execute(c)
            .await
            .map(drop))?;
    }
    for event in &decided.events {
        tx.emit(owned.project, owned.owner, event);
    }
    Ok(())
}

/// Lets `assign` look at every call that waits for a client.
async fn assign_waiting<F>(tx: &mut Tx, owned: &Owned, assign: F) -> Result<()>
where
    F: Fn(&mut GatedCall, &Situation) -> Vec<Event>,
{
    let situation = situation(tx, owned.project).await?;
    let rows: Vec<(String,)> = on!(&mut tx.conn, |c| sqlx::query_as(
        "UPDATE tool_calls SET status = status
         WHERE project_id = $1 AND status IN ('previewing', 'approved', 'dispatched') RETURNING record"
    )
    .bind(owned.project.0)
    .fetch_all(c)
    .await)?;
    let mut calls: Vec<GatedCall> = rows.into_iter().map(read).collect::<Result<_>>()?;
    calls.sort_by_key(|call| call.tool_id);
    for mut call in calls {
        let events = assign(&mut call, &situation);
        if !events.is_empty() {
            save(tx, &call).await?;
            carry_out(tx, owned, events.into()).await?;
        }
    }
    Ok(())
}
