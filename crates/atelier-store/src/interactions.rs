//! The interactions that agents remember.

use crate::{
    Error, Owned, OwnedAgent, Result, Store,
    db::{Conn, SqlBuilder, sql},
    feed::Wakeup,
    outbox::{StoredVector, read_vector},
    rows::{
        collections::ensure_collection,
        corrupt, from_json, from_micros,
        interactions::{
            AddedInteractions, PreparedInteraction, delete_interactions, insert_interactions,
            insert_outbox,
        },
    },
};
use atelier_core::{AgentId, Filter, Interaction, InteractionId, InteractionType, NewInteraction};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Which interactions to remove.
#[derive(Debug, Clone, PartialEq)]
pub enum Removal {
    Everything,
    /// All that match the filter, except those that are pinned.
    Matching(Filter),
    /// The oldest, except those that are pinned, so that only this many are left.
    Beyond(u64),
    One(InteractionId),
}

/// Statistics of interactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    pub total: u64,
    pub succeeded: u64,
    pub oldest: Option<DateTime<Utc>>,
    pub newest: Option<DateTime<Utc>>,
    pub by_type: BTreeMap<InteractionType, u64>,
}

/// Statistics of the interactions of one day or week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    pub start: DateTime<Utc>,
    pub totals: Totals,
}

/// A page of interactions in order of time, and the cursor of the next page.
#[derive(Debug, Default)]
pub struct InteractionPage {
    pub interactions: Vec<(Interaction, Option<StoredVector>)>,
    pub next: Option<(i64, InteractionId)>,
}

pub(crate) type InteractionRow =
    (Uuid, String, String, bool, Option<String>, i64, Option<String>, Option<String>, String, bool);

/// The columns of a [`InteractionRow`], from `interactions i`.
macro_rules! columns {
    () => {
        "i.id, i.type, i.text, i.success, i.error_details, i.at, i.task_id, i.session_id, \
         i.metadata, i.pinned"
    };
}

pub(crate) fn read_interaction(row: InteractionRow) -> Result<Interaction> {
    let (id, kind, text, success, error_details, at, task_id, session_id, metadata, pinned) = row;
    Ok(Interaction {
        id: InteractionId(id),
        interaction_type: corrupt(kind.parse())?,
        text,
        success,
        error_details,
        timestamp: from_micros(at)?,
        task_id,
        session_id,
        metadata: from_json(&metadata)?,
        pinned,
    })
}

/// SQL condition for a filter. It is the same text for every filter, so the database prepares it
/// once. `bind_filter!` binds the values $1 to $13.
macro_rules! matching {
    () => {
        "i.agent_id = $1 AND i.at >= $2 AND i.at <= $3 AND i.type IN ($4, $5, $6, $7)
         AND ($8 OR i.success = $9) AND ($10 OR i.task_id = $11) AND ($12 OR i.session_id = $13)"
    };
}
pub(crate) use matching;

macro_rules! bind_filter {
    ($query:expr, $agent:expr, $filter:expr) => {{
        let filter: &atelier_core::Filter = $filter;
        // There are four placeholders; repeating a type changes nothing.
        let mut wanted = atelier_core::InteractionType::ALL
            .into_iter()
            .filter(|known| filter.types.is_empty() || filter.types.contains(known))
            .map(|wanted| wanted.as_str())
            .cycle();
        let mut wanted = || wanted.next().unwrap_or_default();
        $query
            .bind($agent.0)
            .bind(filter.from.map_or(i64::MIN, |time| time.timestamp_micros()))
            .bind(filter.to.map_or(i64::MAX, |time| time.timestamp_micros()))
            .bind(wanted())
            .bind(wanted())
            .bind(wanted())
            .bind(wanted())
            .bind(filter.success.is_none())
            .bind(filter.success.unwrap_or(true))
            .bind(filter.task_id.is_none())
            .bind(filter.task_id.clone().unwrap_or_default())
            .bind(filter.session_id.is_none())
            .bind(filter.session_id.clone().unwrap_or_default())
    }};
}
pub(crate) use bind_filter;

impl Store {
    /// Adds interactions to an agent's memory.
    pub async fn add_interactions(
        &self,
        owned: &Owned,
        agent: AgentId,
        new: Vec<NewInteraction>,
    ) -> Result<AddedInteractions> {
        let (project, owner) = (owned.project, owned.owner);
        // Finding the terms of long texts takes time: it is done outside the transaction, and on a
        // thread that answers no requests.
        let prepare = move || {
            new.into_iter().map(|new| (agent, PreparedInteraction::new(new))).collect::<Vec<_>>()
        };
        let prepared = tokio::task::spawn_blocking(prepare).await.map_err(|_| Error::Closed)?;
        self.write(owner, move |tx| {
            Box::pin(async move {
                if !ensure_collection(&mut tx.conn, project, owner, agent).await? {
                    return Err(Error::NotFound);
                }
                let added = insert_interactions(&mut tx.conn, &prepared).await?;
                if added.new > 0 {
                    tx.wake(Wakeup::Memory);
                }
                Ok(added)
            })
        })
        .await
    }

    pub async fn interaction(&self, agent: OwnedAgent, id: InteractionId) -> Result<Interaction> {
        self.interactions(agent, &[id]).await?.pop().ok_or(Error::NotFound)
    }

    /// Those of the given interactions that exist, in any order.
    pub async fn interactions(
        &self,
        agent: OwnedAgent,
        ids: &[InteractionId],
    ) -> Result<Vec<Interaction>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut conn = self.db.connect().await?;
        let mut select = SqlBuilder::new(concat!(
            "SELECT ",
            columns!(),
            " FROM interactions i WHERE i.agent_id = "
        ));
        select.push_bind(agent.id().0).push(" AND i.id IN (");
        let mut list = select.separated(", ");
        for id in ids {
            list.push_bind(id.0);
        }
        select.push(")");
        let rows: Vec<InteractionRow> = select.fetch_all(&mut conn).await?;
        rows.into_iter().map(|row| Ok(self.clean(read_interaction(row)?))).collect()
    }

    /// A page of the interactions that match a filter, oldest first.
    pub async fn interaction_page(
        &self,
        agent: OwnedAgent,
        filter: &Filter,
        after: Option<(i64, InteractionId)>,
        limit: i64,
        vectors: bool,
    ) -> Result<InteractionPage> {
        type Row = (
            Uuid,
            String,
            String,
            bool,
            Option<String>,
            i64,
            Option<String>,
            Option<String>,
            String,
            bool,
            Option<String>,
            Option<Vec<u8>>,
        );
        let mut conn = self.db.connect().await?;
        let (at, id) = after.map_or((i64::MIN, Uuid::nil()), |(at, id)| (at, id.0));
        let with = concat!(
            "SELECT ",
            columns!(),
            ", v.embedder, v.vector FROM interactions i
             LEFT JOIN interaction_vectors v ON v.seq = i.seq WHERE ",
            matching!(),
            " AND (i.at > $14 OR (i.at = $14 AND i.id > $15)) ORDER BY i.at, i.id LIMIT $16"
        );
        let without = concat!(
            "SELECT ",
            columns!(),
            ", NULL, NULL FROM interactions i WHERE ",
            matching!(),
            " AND (i.at > $14 OR (i.at = $14 AND i.id > $15)) ORDER BY i.at, i.id LIMIT $16"
        );
        let text = if vectors { with } else { without };
        let rows: Vec<Row> = bind_filter!(sql(text), agent.id(), filter)
            .bind(at)
            .bind(id)
            .bind(limit)
            .fetch_all(&mut conn)
            .await?;
        let mut page = InteractionPage::default();
        if rows.len() as i64 == limit {
            page.next = rows.last().map(|last| (last.5, InteractionId(last.0)));
        }
        for row in rows {
            let (id, kind, text, success, error, at, task, session, metadata, pinned, ..) = row;
            let (.., embedder, vector) = row;
            let interaction = read_interaction((
                id, kind, text, success, error, at, task, session, metadata, pinned,
            ))?;
            let vector = read_vector(embedder, vector)?;
            page.interactions.push(self.clean_with_vector(interaction, vector));
        }
        Ok(page)
    }

    /// How many of the interactions that match a filter are pinned.
    pub async fn pinned_total(&self, agent: OwnedAgent, filter: &Filter) -> Result<u64> {
        let mut conn = self.db.connect().await?;
        let (count,): (i64,) = bind_filter!(
            sql(concat!(
                "SELECT COUNT(*) FROM interactions i WHERE ",
                matching!(),
                " AND i.pinned"
            )),
            agent.id(),
            filter
        )
        .fetch_one(&mut conn)
        .await?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// The newest pinned interactions.
    pub async fn pinned_interactions(
        &self,
        agent: OwnedAgent,
        limit: i64,
    ) -> Result<Vec<Interaction>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<InteractionRow> = sql(concat!(
            "SELECT ",
            columns!(),
            " FROM interactions i WHERE i.agent_id = $1 AND i.pinned ORDER BY i.at DESC LIMIT $2"
        ))
        .bind(agent.id().0)
        .bind(limit)
        .fetch_all(&mut conn)
        .await?;
        rows.into_iter().map(|row| Ok(self.clean(read_interaction(row)?))).collect()
    }

    /// Statistics of the interactions that match a filter.
    pub async fn interaction_totals(&self, agent: OwnedAgent, filter: &Filter) -> Result<Totals> {
        let rows = self.count_by(agent, filter, i64::MAX).await?;
        Ok(rows.into_iter().next().map(|(_, totals)| totals).unwrap_or_default())
    }

    /// Statistics for each period of `days` days that has interactions. Weeks begin on Monday.
    pub async fn interaction_history(
        &self,
        agent: OwnedAgent,
        filter: &Filter,
        days: i64,
    ) -> Result<Vec<Bucket>> {
        let rows = self.count_by(agent, filter, days).await?;
        let bucket = |(number, totals): (i64, Totals)| {
            let start = (number * days - days_since_start(days)) * DAY;
            Ok(Bucket { start: from_micros(start)?, totals })
        };
        rows.into_iter().map(bucket).collect()
    }

    async fn count_by(
        &self,
        agent: OwnedAgent,
        filter: &Filter,
        days: i64,
    ) -> Result<BTreeMap<i64, Totals>> {
        type Row = (i64, String, bool, i64, i64, i64);
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> = bind_filter!(
            sql(concat!(
                "SELECT (i.at / 86400000000 + $14) / $15, i.type, i.success, COUNT(*), MIN(i.at), \
                 MAX(i.at)
                 FROM interactions i WHERE ",
                matching!(),
                " GROUP BY 1, 2, 3"
            )),
            agent.id(),
            filter
        )
        .bind(days_since_start(days))
        .bind(days)
        .fetch_all(&mut conn)
        .await?;
        let mut buckets: BTreeMap<i64, Totals> = BTreeMap::new();
        for (number, kind, success, count, oldest, newest) in rows {
            let totals = buckets.entry(number).or_default();
            let count = u64::try_from(count).unwrap_or(0);
            totals.total += count;
            totals.succeeded += if success { count } else { 0 };
            *totals.by_type.entry(corrupt(kind.parse())?).or_default() += count;
            totals.oldest = totals.oldest.into_iter().chain([from_micros(oldest)?]).min();
            totals.newest = totals.newest.into_iter().chain([from_micros(newest)?]).max();
        }
        Ok(buckets)
    }

    /// Removes at most `limit` interactions, oldest first, and returns how many. The index removes
    /// them later; until then a search that finds them in the index does not show them.
    pub async fn remove_interactions(
        &self,
        agent: OwnedAgent,
        what: &Removal,
        limit: i64,
    ) -> Result<u64> {
        let what = what.clone();
        let (agent, owner) = (agent.id(), agent.owner());
        self.write(owner, move |tx| {
            Box::pin(async move {
                let rows = interactions_to_remove(&mut tx.conn, agent, &what, limit).await?;
                if rows.is_empty() {
                    return Ok(0);
                }
                let (seqs, gone): (Vec<i64>, Vec<_>) =
                    rows.into_iter().map(|(seq, id)| (seq, (agent, id))).unzip();
                delete_interactions(&mut tx.conn, &seqs).await?;
                insert_outbox(&mut tx.conn, &gone).await?;
                sql("UPDATE memory_collections SET total = total - $1, restless = TRUE WHERE \
                     agent_id = $2")
                .bind(gone.len() as i64)
                .bind(agent.0)
                .execute(&mut tx.conn)
                .await?;
                tx.wake(Wakeup::Memory);
                Ok(gone.len() as u64)
            })
        })
        .await
    }
}

const DAY: i64 = 86_400_000_000;

/// How many days 1 January 1970, a Thursday, is after the beginning of its period. Weeks begin on
/// Monday.
fn days_since_start(days: i64) -> i64 {
    if days == 7 { 3 } else { 0 }
}

async fn interactions_to_remove(
    conn: &mut Conn,
    agent: AgentId,
    what: &Removal,
    limit: i64,
) -> Result<Vec<(i64, Uuid)>> {
    let rows = match what {
        Removal::Matching(filter) => {
            bind_filter!(
                sql(concat!(
                    "SELECT i.seq, i.id FROM interactions i WHERE ",
                    matching!(),
                    " AND NOT i.pinned ORDER BY i.at, i.id LIMIT $14"
                )),
                agent,
                filter
            )
            .bind(limit)
            .fetch_all(conn)
            .await?
        }
        Removal::Everything => {
            sql("SELECT seq, id FROM interactions WHERE agent_id = $1 LIMIT $2")
                .bind(agent.0)
                .bind(limit)
                .fetch_all(conn)
                .await?
        }
        Removal::Beyond(keep) => {
            let (total,): (i64,) = sql("SELECT COUNT(*) FROM interactions WHERE agent_id = $1")
                .bind(agent.0)
                .fetch_one(conn)
                .await?;
            let beyond =
                total.saturating_sub(i64::try_from(*keep).unwrap_or(i64::MAX)).clamp(0, limit);
            sql("SELECT seq, id FROM interactions WHERE agent_id = $1 AND NOT pinned
                 ORDER BY at, id LIMIT $2")
            .bind(agent.0)
            .bind(beyond)
            .fetch_all(conn)
            .await?
        }
        Removal::One(id) => {
            sql("SELECT seq, id FROM interactions WHERE agent_id = $1 AND id = $2")
                .bind(agent.0)
                .bind(id.0)
                .fetch_all(conn)
                .await?
        }
    };
    Ok(rows)
}
