//! Requests that may be sent again: what a request did is stored under its caller's key for a day,
//! in the transaction that did it.

use crate::{
    Error, Result, Store,
    db::{Conn, sql},
    rows::{
        from_json, json, now,
        request_keys::{RequestKey, RequestKeyRow},
    },
    writer::GroupReader,
};
use atelier_core::{ProjectId, UserId};
use chrono::{TimeDelta, Utc};
use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

/// How long a key is kept at least.
const KEPT: TimeDelta = TimeDelta::days(1);

impl RequestKey {
    pub(crate) fn row(&self, project: ProjectId, answer: &impl Serialize) -> RequestKeyRow {
        RequestKeyRow { project, key: self.clone(), answer: json(answer), created_at: now() }
    }

    /// The answer of an earlier request, unless that was another request.
    fn answer<T: DeserializeOwned>(&self, digest: &[u8], answer: &str) -> Result<T> {
        match digest == self.digest {
            true => from_json(answer),
            false => Err(Error::KeyReused),
        }
    }
}

/// The answer of an earlier request with this key, which may be in the same group.
pub(crate) async fn earlier_answer<T: DeserializeOwned>(
    group: &mut GroupReader,
    project: ProjectId,
    key: &RequestKey,
) -> Result<Option<T>> {
    let is_same = |row: &&RequestKeyRow| {
        row.project == project && row.key.caller == key.caller && row.key.key == key.key
    };
    if let Some(row) = group.unwritten.request_keys.iter().find(is_same) {
        return key.answer(&row.key.digest, &row.answer).map(Some);
    }
    read(&mut group.conn, project, key).await
}

/// Reads the answer of an earlier request from the database.
async fn read<T: DeserializeOwned>(
    conn: &mut Conn,
    project: ProjectId,
    key: &RequestKey,
) -> Result<Option<T>> {
    let row: Option<(Vec<u8>, String)> = sql("SELECT digest, answer FROM request_keys
         WHERE project_id = $1 AND caller = $2 AND key = $3")
    .bind(project.0)
    .bind(&key.caller)
    .bind(&key.key)
    .fetch_optional(conn)
    .await?;
    row.map(|(digest, answer)| key.answer(&digest, &answer)).transpose()
}

impl Store {
    /// What an earlier request with this key did. The write of the request looks again.
    pub async fn earlier_answer<T: DeserializeOwned>(
        &self,
        project: ProjectId,
        key: &RequestKey,
    ) -> Result<Option<T>> {
        let mut conn = self.db.connect().await?;
        read(&mut conn, project, key).await
    }

    /// Removes keys that were kept long enough. Returns how many it removed.
    pub async fn sweep_request_keys(&self) -> Result<u64> {
        let before = Utc::now() - KEPT;
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                Ok(sql("DELETE FROM request_keys WHERE created_at < $1")
                    .bind(before)
                    .execute(&mut tx.conn)
                    .await?)
            })
        })
        .await
    }
}
