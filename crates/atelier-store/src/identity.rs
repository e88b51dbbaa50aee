//! Users and tenants, one-time sign-in codes.

use crate::{
    Error, Result, Store,
    db::on,
    rows::{corrupt, now},
};
use atelier_core::{Role, Tenant, UserId};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// The user that a one-time code signs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignIn {
    pub user: UserId,
    pub tenant: Tenant,
    pub role: Role,
}

impl Store {
    /// Stores a user and their tenant when the first valid token names them.
    pub async fn ensure_user(&self, user: UserId, tenant: &Tenant) -> Result<()> {
        let known = self.tenant_of(user).await?;
        let known = match known {
            Some(known) => known,
            None => self.insert_user(user, tenant.clone()).await?,
        };
        if known == tenant.as_str() { Ok(()) } else { Err(Error::OtherTenant) }
    }

    pub(crate) async fn tenant_of(&self, user: UserId) -> Result<Option<String>> {
        let mut conn = self.db.connect().await?;
        let row: Option<(String,)> =
            on!(&mut conn, |c| sqlx::query_as("SELECT tenant_id FROM users WHERE id = $1")
                .bind(user.0)
                .fetch_optional(c)
                .await)?;
        Ok(row.map(|(tenant,)| tenant))
    }

    /// Stores a user, and returns the tenant that the user then belongs to. Another node may have
    /// stored the user with another tenant first.
    async fn insert_user(&self, user: UserId, tenant: Tenant) -> Result<String> {
        self.write(user, move |tx| {
            Box::pin(async move {
                let time = now();
                on!(&mut tx.conn, |c| {
                    sqlx::query(
                        "INSERT INTO tenants (id, created_at) VALUES ($1, $2) ON CONFLICT DO \
                         NOTHING",
                    )
                    .bind(tenant.as_str())
                    .bind(time)
                    .execute(&mut *c)
                    .await?;
                    sqlx::query(
                        "INSERT INTO users (id, tenant_id, created_at) VALUES ($1, $2, $3)
                         ON CONFLICT DO NOTHING",
                    )
                    .bind(user.0)
                    .bind(tenant.as_str())
                    .bind(time)
                    .execute(&mut *c)
                    .await?;
                    let (tenant,) = sqlx::query_as("SELECT tenant_id FROM users WHERE id = $1")
                        .bind(user.0)
                        .fetch_one(&mut *c)
                        .await?;
                    Ok(tenant)
                })
            })
        })
        .await
    }

    /// Whether any project was ever created.
    pub async fn has_projects(&self) -> Result<bool> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i32,)> =
            on!(&mut conn, |c| sqlx::query_as("SELECT 1 FROM projects LIMIT 1")
                .fetch_optional(c)
                .await)?;
        Ok(row.is_some())
    }

    /// Stores the hash of a sign-in code, so that nobody can sign in with what is in the database.
    pub async fn create_sign_in_code(
        &self,
        code_hash: Vec<u8>,
        who: SignIn,
        expires_at: DateTime<Utc>,
    ) -> Result<()> {
        self.write(who.user, move |tx| {
            Box::pin(async move {
                on!(&mut tx.conn, |c| {
                    sqlx::query("DELETE FROM sign_in_codes WHERE expires_at < $1 OR user_id = $2")
                        .bind(now())
                        .bind(who.user.0)
                        .execute(&mut *c)
                        .await?;
                    sqlx::query(
                        "INSERT INTO sign_in_codes (code_hash, user_id, tenant_id, role, expires_at)
                         VALUES ($1, $2, $3, $4, $5)",
                    )
                    .bind(code_hash)
                    .bind(who.user.0)
                    .bind(who.tenant.as_str())
                    .bind(who.role.as_str())
                    .bind(expires_at)
                    .execute(&mut *c)
                    .await?;
                });
                Ok(())
            })
        })
        .await
    }

    /// Redeems a sign-in code. It works once.
    pub async fn redeem_sign_in_code(&self, code_hash: Vec<u8>) -> Result<SignIn> {
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                let row: Option<(Uuid, String, String)> = on!(&mut tx.conn, |c| sqlx::query_as(
                    "DELETE FROM sign_in_codes WHERE code_hash = $1 AND expires_at >= $2
                     RETURNING user_id, tenant_id, role"
                )
                .bind(code_hash)
                .bind(now())
                .fetch_optional(c)
                .await)?;
                let (user, tenant, role) = row.ok_or(Error::NotFound)?;
                Ok(SignIn {
                    user: UserId(user),
                    tenant: corrupt(tenant.parse())?,
                    role: corrupt(role.parse())?,
                })
            })
        })
        .await
    }
}
