//! Whether this node has the same keys as the other nodes. The database has a check value of each
//! key, which does not reveal the key.

use crate::{Result, Store, db::sql, rows::now};
use atelier_core::UserId;
use uuid::Uuid;

/// The name of a key that all nodes share, and its check value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCheck {
    pub name: &'static str,
    pub value: Vec<u8>,
}

impl Store {
    /// Records the keys of the first node. Later nodes compare theirs. Returns the names of the keys
    /// that differ from those in the database. With `replace`, this node's keys become those of all
    /// nodes.
    pub async fn join_with_keys(
        &self,
        checks: Vec<KeyCheck>,
        replace: bool,
    ) -> Result<Vec<&'static str>> {
        let (mine, time) = (checks.clone(), now());
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                let text = match replace {
                    false => {
                        "INSERT INTO cluster_keys (name, check_value, set_at) VALUES ($1, $2, $3)
                         ON CONFLICT (name) DO NOTHING"
                    }
                    true => {
                        "INSERT INTO cluster_keys (name, check_value, set_at) VALUES ($1, $2, $3)
                         ON CONFLICT (name) DO UPDATE SET check_value = $2, set_at = $3
                         WHERE cluster_keys.check_value <> $2"
                    }
                };
                for KeyCheck { name, value } in mine {
                    sql(text).bind(name).bind(value).bind(time).execute(&mut tx.conn).await?;
                }
                Ok(())
            })
        })
        .await?;
        self.differing_keys(&checks).await
    }

    /// The names of this node's keys that differ from those in the database.
    pub async fn differing_keys(&self, checks: &[KeyCheck]) -> Result<Vec<&'static str>> {
        let mut conn = self.db.connect().await?;
        let known: Vec<(String, Vec<u8>)> =
            sql("SELECT name, check_value FROM cluster_keys").fetch_all(&mut conn).await?;
        let differs = |check: &&KeyCheck| {
            known.iter().any(|(name, value)| name == check.name && *value != check.value)
        };
        Ok(checks.iter().filter(differs).map(|check| check.name).collect())
    }
}
