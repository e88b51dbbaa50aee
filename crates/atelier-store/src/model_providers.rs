//! What people have entered about model providers: keys, addresses, prices and default models. Keys
//! are encrypted, and the store cannot decrypt them.

use crate::{Error, Result, Store, db::sql, rows::now};
use atelier_core::{Tenant, UserId};
use chrono::{DateTime, Utc};

/// For whom something was entered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ModelScope {
    Server,
    Tenant(Tenant),
    User(UserId),
}

impl ModelScope {
    /// The scope as the database has it. No tenant has a colon in its name.
    pub fn as_text(&self) -> String {
        match self {
            Self::Server => "server:".to_owned(),
            Self::Tenant(tenant) => tenant.as_str().to_owned(),
            Self::User(user) => format!("user:{user}"),
        }
    }
}

/// What was entered about one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelProvider {
    pub scope: ModelScope,
    pub provider: String,
    /// The protocol and the address, if they differ from the configuration.
    pub kind: Option<String>,
    pub base_url: Option<String>,
    /// Prices and windows of models, as JSON.
    pub models: String,
    pub sealed: Option<Vec<u8>>,
    /// The end of the key, by which people recognise it.
    pub last_four: String,
    /// The address that the key was entered for.
    pub key_address: Option<String>,
    pub updated_at: DateTime<Utc>,
}

type Row = (
    String,
    String,
    Option<String>,
    Option<String>,
    String,
    Option<Vec<u8>>,
    String,
    Option<String>,
    DateTime<Utc>,
);

impl Store {
    /// Stores what was entered about a provider, and replaces what was there.
    pub async fn put_model_provider(
        &self,
        by: UserId,
        mut provider: ModelProvider,
    ) -> Result<ModelProvider> {
        provider.updated_at = now();
        self.write(by, move |tx| {
            Box::pin(async move {
                sql("INSERT INTO model_providers
                         (scope, provider, kind, base_url, models, sealed, last_four, key_address,
                          updated_by, updated_at)
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
                         ON CONFLICT (scope, provider) DO UPDATE
                         SET kind = $3, base_url = $4, models = $5, sealed = $6, last_four = $7,
                             key_address = $8, updated_by = $9, updated_at = $10")
                .bind(provider.scope.as_text())
                .bind(&provider.provider)
                .bind(&provider.kind)
                .bind(&provider.base_url)
                .bind(&provider.models)
                .bind(&provider.sealed)
                .bind(&provider.last_four)
                .bind(&provider.key_address)
                .bind(by.0)
                .bind(provider.updated_at)
                .execute(&mut tx.conn)
                .await?;

                Ok(provider)
            })
        })
        .await
    }

    /// Everything that was entered for the server, for a tenant, and for a person, by provider.
    pub async fn model_providers(
        &self,
        tenant: &Tenant,
        user: Option<UserId>,
    ) -> Result<Vec<ModelProvider>> {
        let scopes = scopes(tenant, user);
        let [server, of_tenant, of_user] = scopes.each_ref().map(ModelScope::as_text);
        let mut conn = self.db.connect().await?;
        let rows: Vec<Row> =
            sql("SELECT scope, provider, kind, base_url, models, sealed, last_four, key_address,
                    updated_at
             FROM model_providers WHERE scope IN ($1, $2, $3) ORDER BY provider, scope")
            .bind(server)
            .bind(of_tenant)
            .bind(of_user)
            .fetch_all(&mut conn)
            .await?;
        let provider = |row: Row| {
            let scope = scopes.iter().find(|scope| scope.as_text() == row.0)?.clone();
            Some(ModelProvider {
                scope,
                provider: row.1,
                kind: row.2,
                base_url: row.3,
                models: row.4,
                sealed: row.5,
                last_four: row.6,
                key_address: row.7,
                updated_at: row.8,
            })
        };
        Ok(rows.into_iter().filter_map(provider).collect())
    }

    pub async fn delete_model_provider(
        &self,
        scope: &ModelScope,
        by: UserId,
        provider: &str,
    ) -> Result<()> {
        let (scope, provider) = (scope.as_text(), provider.to_owned());
        self.write(by, move |tx| {
            Box::pin(async move {
                let deleted = sql("DELETE FROM model_providers WHERE scope = $1 AND provider = $2")
                    .bind(scope)
                    .bind(provider)
                    .execute(&mut tx.conn)
                    .await?;
                if deleted == 0 { Err(Error::NotFound) } else { Ok(()) }
            })
        })
        .await
    }

    /// Sets the default model of a scope, or removes it.
    pub async fn set_default_model(
        &self,
        scope: &ModelScope,
        by: UserId,
        model: Option<String>,
    ) -> Result<()> {
        let (scope, time) = (scope.as_text(), now());
        self.write(by, move |tx| {
            Box::pin(async move {
                let conn = &mut tx.conn;
                match model {
                    Some(model) => {
                        sql("INSERT INTO default_models (scope, model, updated_by, updated_at)
                         VALUES ($1, $2, $3, $4)
                         ON CONFLICT (scope) DO UPDATE
                         SET model = $2, updated_by = $3, updated_at = $4")
                        .bind(scope)
                        .bind(model)
                        .bind(by.0)
                        .bind(time)
                        .execute(conn)
                        .await?;
                    }
                    None => {
                        sql("DELETE FROM default_models WHERE scope = $1")
                            .bind(scope)
                            .execute(conn)
                            .await?;
                    }
                }
                Ok(())
            })
        })
        .await
    }

    /// The default models that were chosen for the server, for a tenant, and for a person.
    pub async fn default_models(
        &self,
        tenant: &Tenant,
        user: Option<UserId>,
    ) -> Result<Vec<(ModelScope, String)>> {
        let scopes = scopes(tenant, user);
        let [server, of_tenant, of_user] = scopes.each_ref().map(ModelScope::as_text);
        let mut conn = self.db.connect().await?;
        let rows: Vec<(String, String)> =
            sql("SELECT scope, model FROM default_models WHERE scope IN ($1, $2, $3)")
                .bind(server)
                .bind(of_tenant)
                .bind(of_user)
                .fetch_all(&mut conn)
                .await?;
        let chosen = |(scope, model): (String, String)| {
            Some((scopes.iter().find(|known| known.as_text() == scope)?.clone(), model))
        };
        Ok(rows.into_iter().filter_map(chosen).collect())
    }
}

/// The scopes of a person. Without a person, the tenant's is repeated.
fn scopes(tenant: &Tenant, user: Option<UserId>) -> [ModelScope; 3] {
    let of_tenant = ModelScope::Tenant(tenant.clone());
    [ModelScope::Server, of_tenant.clone(), user.map_or(of_tenant, ModelScope::User)]
}
