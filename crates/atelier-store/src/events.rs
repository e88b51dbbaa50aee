//! The event log of each project, numbered without gaps in the order of commits.

use crate::{
    Error, Result, Store,
    db::{Conn, DbError, SqlBuilder, sql},
    rows::{now, rows_at_once},
};
use atelier_core::{Event, ProjectId, UserId};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc};
use uuid::Uuid;

/// The events of one project, or of all projects of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    Project(ProjectId),
    User(UserId),
}

/// An event of the log. `data` is the JSON that clients get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    pub project: ProjectId,
    pub user: UserId,
    pub seq: i64,
    pub user_seq: i64,
    pub name: String,
    pub data: String,
}

impl StoredEvent {
    /// The event's number in the given scope.
    pub fn number(&self, scope: Scope) -> i64 {
        match scope {
            Scope::Project(_) => self.seq,
            Scope::User(_) => self.user_seq,
        }
    }
}

/// An event that waits for its numbers.
pub(crate) struct PendingEvent {
    project: ProjectId,
    user: UserId,
    name: &'static str,
    data: String,
    created_at: DateTime<Utc>,
}

#[derive(Serialize)]
struct Envelope<'e> {
    project_id: ProjectId,
    created_at: DateTime<Utc>,
    #[serde(flatten)]
    event: &'e Event,
}

impl PendingEvent {
    pub(crate) fn new(project: ProjectId, user: UserId, event: &Event) -> Self {
        let created_at = now();
        let envelope = Envelope { project_id: project, created_at, event };
        let data = serde_json::to_string(&envelope).unwrap_or_else(|error| {
            // Events are plain values with string keys, which cannot fail.
            unreachable!("an event that is not JSON: {error}")
        });
        Self { project, user, name: event.name(), data, created_at }
    }
}

/// Numbers the events and writes them. Two nodes never write for one owner at the same time, so no
/// two writers wait for each other's counters.
pub(crate) async fn append(
    conn: &mut Conn,
    pending: Vec<PendingEvent>,
) -> Result<Vec<Arc<StoredEvent>>, DbError> {
    let (mut users, mut projects) = (BTreeMap::new(), BTreeMap::new());
    for event in &pending {
        *users.entry(event.user.0).or_insert(0) += 1;
        *projects.entry(event.project.0).or_insert(0) += 1;
    }
    take_numbers(conn, &mut users, &mut projects).await?;
    let next = |counters: &mut BTreeMap<Uuid, i64>, id: Uuid| {
        let last = counters.entry(id).or_default();
        *last += 1;
        *last
    };
    let mut stored = Vec::with_capacity(pending.len());
    let mut times = Vec::with_capacity(pending.len());
    for event in pending {
        times.push(event.created_at);
        stored.push(Arc::new(StoredEvent {
            seq: next(&mut projects, event.project.0),
            user_seq: next(&mut users, event.user.0),
            project: event.project,
            user: event.user,
            name: event.name.into(),
            data: event.data,
        }));
    }
    let mut left = stored.iter().zip(times).collect::<Vec<_>>().into_iter();
    while left.len() > 0 {
        let size = rows_at_once(left.len());
        let mut insert = SqlBuilder::new(
            "INSERT INTO events (project_id, seq, user_id, user_seq, name, data, created_at) ",
        );
        insert.push_values(left.by_ref().take(size), |mut row, (event, time)| {
            row.push_bind(event.project.0)
                .push_bind(event.seq)
                .push_bind(event.user.0)
                .push_bind(event.user_seq)
                .push_bind(&event.name)
                .push_bind(&event.data)
                .push_bind(time);
        });
        insert.execute(conn).await?;
    }
    Ok(stored)
}

/// Raises each counter by the given count, and replaces the count by the last number before it.
async fn take_numbers(
    conn: &mut Conn,
    users: &mut BTreeMap<Uuid, i64>,
    projects: &mut BTreeMap<Uuid, i64>,
) -> Result<(), DbError> {
    let needed = |counters: &BTreeMap<Uuid, i64>| {
        counters.iter().map(|(id, n)| (*id, *n)).collect::<Vec<_>>()
    };
    let (of_users, of_projects) = (needed(users), needed(projects));
    let parts = of_users.chunks(128).map(|part| ("users", part));
    let parts: Vec<_> =
        parts.chain(of_projects.chunks(128).map(|part| ("projects", part))).collect();
    // PostgreSQL takes one statement of several parts, to save trips.
    let at_once = if matches!(conn, Conn::Lite(_)) { 1 } else { 8 };
    for parts in parts.chunks(at_once) {
        let mut update = SqlBuilder::new(if at_once > 1 { "WITH " } else { "" });
        for (n, (table, needed)) in parts.iter().enumerate() {
            if at_once > 1 {
                update.push(if n == 0 { "" } else { ", " }).push(format_args!("part{n} AS ("));
            }
            update
                .push("UPDATE ")
                .push(table)
                .push(" SET event_seq = event_seq + v.column2 FROM (");
            update.push_values(*needed, |mut row, (id, count)| {
                row.push_bind(*id).push_bind(*count);
            });
            update.push(") AS v WHERE id = v.column1 RETURNING id, event_seq");
            update.push(if at_once > 1 { ")" } else { "" });
        }
        if at_once > 1 {
            for n in 0..parts.len() {
                let all = if n == 0 { " " } else { " UNION ALL " };
                update.push(all).push(format_args!("SELECT id, event_seq FROM part{n}"));
            }
        }
        let raised: Vec<(Uuid, i64)> = update.fetch_all(conn).await?;
        if raised.len() != parts.iter().map(|(_, needed)| needed.len()).sum::<usize>() {
            return Err(DbError::RowNotFound);
        }
        for (id, last) in raised {
            // A user and a project never have the same id.
            let counters = if users.contains_key(&id) { &mut *users } else { &mut *projects };
            counters.entry(id).and_modify(|count| *count = last - *count);
        }
    }
    Ok(())
}

/// Where in the log a reader starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// At the end of the log.
    Now,
    /// After the event of this number; 0 means the beginning of the stored log.
    After(i64),
    /// At the given number of events before the end.
    Last(u32),
}

/// How long events are kept.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    pub days: u32,
    /// How many events of a project are kept at most.
    pub events: u32,
}

impl Store {
    /// The number of the last event, and of the last event that retention has removed.
    pub(crate) async fn event_bounds(&self, scope: Scope) -> Result<(i64, i64)> {
        let (text, id) = match scope {
            Scope::Project(id) => {
                ("SELECT event_seq, event_floor FROM projects WHERE id = $1", id.0)
            }
            Scope::User(id) => ("SELECT event_seq, event_floor FROM users WHERE id = $1", id.0),
        };
        let mut conn = self.db.connect().await?;
        sql(text).bind(id).fetch_optional(&mut conn).await?.ok_or(Error::NotFound)
    }

    pub(crate) async fn events_after(
        &self,
        scope: Scope,
        cursor: i64,
        limit: i64,
    ) -> Result<Vec<Arc<StoredEvent>>> {
        let (text, id) = match scope {
            Scope::Project(id) => (
                "SELECT project_id, user_id, seq, user_seq, name, data FROM events
                 WHERE project_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
                id.0,
            ),
            Scope::User(id) => (
                "SELECT project_id, user_id, seq, user_seq, name, data FROM events
                 WHERE user_id = $1 AND user_seq > $2 ORDER BY user_seq LIMIT $3",
                id.0,
            ),
        };
        let mut conn = self.db.connect().await?;
        let rows: Vec<(Uuid, Uuid, i64, i64, String, String)> =
            sql(text).bind(id).bind(cursor).bind(limit).fetch_all(&mut conn).await?;
        Ok(rows
            .into_iter()
            .map(|(project, user, seq, user_seq, name, data)| {
                Arc::new(StoredEvent {
                    project: ProjectId(project),
                    user: UserId(user),
                    seq,
                    user_seq,
                    name,
                    data,
                })
            })
            .collect())
    }

    /// Removes events that are too old or too many, and deleted projects that have no events any
    /// more.
    pub async fn sweep_events(&self, retention: Retention, now: DateTime<Utc>) -> Result<u64> {
        // A retention that is too long to compute keeps events for ever.
        let before = TimeDelta::try_days(retention.days.into())
            .and_then(|days| now.checked_sub_signed(days))
            .unwrap_or(DateTime::<Utc>::UNIX_EPOCH);
        let keep = i64::from(retention.events);
        let mut conn = self.db.connect().await?;
        let projects: Vec<(Uuid, Uuid)> = sql("SELECT id, user_id FROM projects p WHERE EXISTS (
                   SELECT 1 FROM events e WHERE e.project_id = p.id AND e.seq = p.event_floor + 1
                   AND (e.created_at < $1 OR e.seq <= p.event_seq - $2))")
        .bind(before)
        .bind(keep)
        .fetch_all(&mut conn)
        .await?;
        drop(conn);
        let mut removed = 0;
        for (project, user) in projects {
            removed += self
                .write(UserId(user), move |tx| {
                    Box::pin(async move { remove(&mut tx.conn, project, user, before, keep).await })
                })
                .await?;
        }
        Ok(removed)
    }
}

async fn remove(
    conn: &mut Conn,
    project: Uuid,
    user: Uuid,
    before: DateTime<Utc>,
    keep: i64,
) -> Result<u64> {
    let (last, user_last): (Option<i64>, Option<i64>) =
        sql("SELECT MAX(e.seq), MAX(e.user_seq) FROM events e, projects p
             WHERE p.id = $1 AND e.project_id = p.id AND (e.created_at < $2 OR e.seq <= \
             p.event_seq - $3)")
        .bind(project)
        .bind(before)
        .bind(keep)
        .fetch_one(conn)
        .await?;
    let (Some(last), Some(user_last)) = (last, user_last) else {
        return Ok(0);
    };
    // The floors rise with the removal: a reader below them has to start again and never sees a
    // gap.
    sql("UPDATE users SET event_floor = $1 WHERE id = $2 AND event_floor < $1")
        .bind(user_last)
        .bind(user)
        .execute(conn)
        .await?;
    sql("UPDATE projects SET event_floor = $1 WHERE id = $2 AND event_floor < $1")
        .bind(last)
        .bind(project)
        .execute(conn)
        .await?;
    let removed = sql("DELETE FROM events WHERE project_id = $1 AND seq <= $2")
        .bind(project)
        .bind(last)
        .execute(conn)
        .await?;
    sql("DELETE FROM projects WHERE id = $1 AND deleted_at IS NOT NULL AND event_seq = $2")
        .bind(project)
        .bind(last)
        .execute(conn)
        .await?;
    Ok(removed)
}
