//! Encrypted keys of model providers. The store cannot decrypt them.

use crate::{Error, Result, Store, db::on, rows::now};
use atelier_core::{Tenant, UserId};
use chrono::{DateTime, Utc};

/// A tenant's key for one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderKey {
    pub provider: String,
    pub sealed: Vec<u8>,
    /// The end of the key, by which people recognise it.
    pub last_four: String,
    pub updated_at: DateTime<Utc>,
}

impl Store {
    /// Stores a tenant's key for a provider, and replaces an earlier one.
    pub async fn put_provider_key(
        &self,
        tenant: &Tenant,
        by: UserId,
        provider: &str,
        sealed: Vec<u8>,
        last_four: &str,
    ) -> Result<ProviderKey> {
        let (tenant, time) = (tenant.clone(), now());
        let key = ProviderKey {
            provider: provider.to_owned(),
            sealed,
            last_four: last_four.to_owned(),
            updated_at: time,
        };
        self.write(by, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| {
                    sqlx::query(
                        "INSERT INTO provider_keys
                         (tenant_id, provider, sealed, last_four, updated_by, updated_at)
                         VALUES ($1, $2, $3, $4, $5, $6)
                         ON CONFLICT (tenant_id, provider) DO UPDATE
                         SET sealed = $3, last_four = $4, updated_by = $5, updated_at = $6",
                    )
                    .bind(tenant.as_str())
                    .bind(&key.provider)
                    .bind(&key.sealed)
                    .bind(&key.last_four)
                    .bind(by.0)
                    .bind(time)
                    .execute(c)
                    .await?;
                });
                Ok(key)
            })
        })
        .await
    }

    /// All keys of a tenant, by provider.
    pub async fn provider_keys(&self, tenant: &Tenant) -> Result<Vec<ProviderKey>> {
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String, Vec<u8>, String, DateTime<Utc>)> =
            on!(&mut conn, |c| sqlx::query_as(
                "SELECT provider, sealed, last_four, updated_at FROM provider_keys
             WHERE tenant_id = $1 ORDER BY provider"
            )
            .bind(tenant.as_str())
            .fetch_all(c)
            .await)?;
        let key = |(provider, sealed, last_four, updated_at)| ProviderKey {
            provider,
            sealed,
            last_four,
            updated_at,
        };
        Ok(rows.into_iter().map(key).collect())
    }

    pub async fn delete_provider_key(
        &self,
        tenant: &Tenant,
        by: UserId,
        provider: &str,
    ) -> Result<()> {
        let (tenant, provider) = (tenant.clone(), provider.to_owned());
        self.write(by, move |tx| {
            Box::pin(async move {
                let deleted = on!(&mut tx.conn, |c| sqlx::query(
                    "DELETE FROM provider_keys WHERE tenant_id = $1 AND provider = $2"
                )
                .bind(tenant.as_str())
                .bind(provider)
                .execute(c)
                .await?
                .rows_affected());
                if deleted == 0 { Err(Error::NotFound) } else { Ok(()) }
            })
        })
        .await
    }
}
