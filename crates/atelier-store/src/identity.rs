//! Users and tenants, one-time sign-in codes.

use crate::{
    Error, Result, Store,
    db::sql,
    rows::{corrupt, now},
};
use atelier_core::{ProjectId, Role, Tenant, TokenId, UserId};
use chrono::{DateTime, Utc};
use uuid::Uuid;

/// What a one-time code is exchanged for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignIn {
    pub user: UserId,
    pub tenant: Tenant,
    pub role: Role,
    /// The project that the code connects a machine to; `None` if it signs a person in.
    pub project: Option<ProjectId>,
    /// The session that made the code; `None` for the code of the first start.
    pub made_in: Option<CodeOrigin>,
}

/// The session that made a one-time code. The code ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeOrigin {
    pub session: TokenId,
    pub began_at: DateTime<Utc>,
    /// The end of a session that only the identity provider can renew.
    pub ends_at: Option<DateTime<Utc>>,
}

type CodeRow = (
    Uuid,
    String,
    String,
    Option<Uuid>,
    Option<Uuid>,
    Option<DateTime<Utc>>,
    Option<DateTime<Utc>>,
);

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
        let row: Option<(String,)> = sql("SELECT tenant_id FROM users WHERE id = $1")
            .bind(user.0)
            .fetch_optional(&mut conn)
            .await?;
        Ok(row.map(|(tenant,)| tenant))
    }

    /// Stores a user, and returns the tenant that the user then belongs to. Another node may have
    /// stored the user with another tenant first.
    async fn insert_user(&self, user: UserId, tenant: Tenant) -> Result<String> {
        self.write(user, move |tx| {
            Box::pin(async move {
                let time = now();
                sql("INSERT INTO tenants (id, created_at) VALUES ($1, $2) ON CONFLICT DO \
                         NOTHING")
                .bind(tenant.as_str())
                .bind(time)
                .execute(&mut tx.conn)
                .await?;
                sql("INSERT INTO users (id, tenant_id, created_at) VALUES ($1, $2, $3)
                         ON CONFLICT DO NOTHING")
                .bind(user.0)
                .bind(tenant.as_str())
                .bind(time)
                .execute(&mut tx.conn)
                .await?;
                let (tenant,) = sql("SELECT tenant_id FROM users WHERE id = $1")
                    .bind(user.0)
                    .fetch_one(&mut tx.conn)
                    .await?;
                Ok(tenant)
            })
        })
        .await
    }

    /// Whether any project was ever created.
    pub async fn has_projects(&self) -> Result<bool> {
        let mut conn = self.db.connect().await?;
        let row: Option<(i32,)> =
            sql("SELECT 1 FROM projects LIMIT 1").fetch_optional(&mut conn).await?;
        Ok(row.is_some())
    }

    /// Stores the hash of a one-time code, so that nobody can use what is in the database. It
    /// replaces an earlier code of the user for the same purpose.
    pub async fn create_sign_in_code(
        &self,
        code_hash: Vec<u8>,
        who: SignIn,
        expires_at: DateTime<Utc>,
    ) -> Result<()> {
        self.write(who.user, move |tx| {
            Box::pin(async move {
                let project = who.project.map(|project| project.0);
                sql("DELETE FROM sign_in_codes WHERE expires_at < $1
                         OR (user_id = $2 AND project_id IS NOT DISTINCT FROM $3)")
                .bind(now())
                .bind(who.user.0)
                .bind(project)
                .execute(&mut tx.conn)
                .await?;
                sql("INSERT INTO sign_in_codes (code_hash, user_id, tenant_id, role, project_id,
                                                    session_id, began_at, ends_at, expires_at)
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
                .bind(code_hash)
                .bind(who.user.0)
                .bind(who.tenant.as_str())
                .bind(who.role.as_str())
                .bind(project)
                .bind(who.made_in.map(|origin| origin.session.0))
                .bind(who.made_in.map(|origin| origin.began_at))
                .bind(who.made_in.and_then(|origin| origin.ends_at))
                .bind(expires_at)
                .execute(&mut tx.conn)
                .await?;

                Ok(())
            })
        })
        .await
    }

    /// Redeems a code that signs a person in. It works once.
    pub async fn redeem_sign_in_code(&self, code_hash: Vec<u8>) -> Result<SignIn> {
        self.redeem(code_hash, false).await
    }

    /// Redeems a code that connects a machine. It works once.
    pub async fn redeem_machine_code(&self, code_hash: Vec<u8>) -> Result<SignIn> {
        self.redeem(code_hash, true).await
    }

    async fn redeem(&self, code_hash: Vec<u8>, for_machine: bool) -> Result<SignIn> {
        self.write(UserId(Uuid::nil()), move |tx| {
            Box::pin(async move {
                let row: Option<CodeRow> = sql(
                    "DELETE FROM sign_in_codes
                     WHERE code_hash = $1 AND expires_at >= $2 AND (project_id IS NOT NULL) = $3
                     RETURNING user_id, tenant_id, role, project_id, session_id, began_at, ends_at",
                )
                .bind(code_hash)
                .bind(now())
                .bind(for_machine)
                .fetch_optional(&mut tx.conn)
                .await?;
                let row = row.ok_or(Error::NotFound)?;
                let (user, tenant, role, project, session, began_at, ends_at) = row;
                let origin = |(session, began_at)| CodeOrigin {
                    session: TokenId(session),
                    began_at,
                    ends_at,
                };
                Ok(SignIn {
                    user: UserId(user),
                    tenant: corrupt(tenant.parse())?,
                    role: corrupt(role.parse())?,
                    project: project.map(ProjectId),
                    made_in: session.zip(began_at).map(origin),
                })
            })
        })
        .await
    }
}
