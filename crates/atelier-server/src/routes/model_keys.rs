//! Keys of model providers, for the admins of a tenant. A stored key is never shown again.

use super::{DONE, models::checked_key};
use crate::{
    App,
    access::TenantAdmin,
    body::Json,
    error::{Error, Result},
    path::{ProviderInPath, ProviderName, TenantInPath},
};
use atelier_model::SecretString;
use atelier_store::ModelScope;
use axum::{Json as Reply, extract::State, http::StatusCode};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    #[schema(
        value_type = String, write_only, min_length = 1, max_length = 500, pattern = "^[!-~]+$"
    )]
    key: SecretString,
}

/// What is shown of a stored key.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelKey {
    provider: String,
    /// The last four characters of the key, to recognise it by; empty for short keys.
    last_four: String,
    updated_at: DateTime<Utc>,
}

impl From<atelier_store::ModelProvider> for ModelKey {
    fn from(kept: atelier_store::ModelProvider) -> Self {
        Self { provider: kept.provider, last_four: kept.last_four, updated_at: kept.updated_at }
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelKeyList {
    keys: Vec<ModelKey>,
    /// Every model provider that the server is configured for.
    providers: Vec<String>,
}

/// List the tenant's keys of model providers
///
/// For the tenant's admins. It shows that a key exists, and its last four characters.
#[utoipa::path(get, path = "/api/tenants/{tenant}/model-keys", tag = "models", params(TenantInPath),
    responses((status = 200, description = "The tenant's keys", body = ModelKeyList)))]
pub(super) async fn list(
    State(app): State<App>,
    admin: TenantAdmin,
) -> Result<Reply<ModelKeyList>> {
    let keys = tenant_keys(&app, &admin).await?.into_iter().map(ModelKey::from).collect();
    let access = app.model_keys.of(&admin.tenant, None).await?;
    let providers = app.model_keys.models().providers(&access);
    let mut providers: Vec<String> = providers.into_iter().map(str::to_owned).collect();
    providers.sort();
    Ok(Reply(ModelKeyList { keys, providers }))
}

/// The tenant's own keys.
async fn tenant_keys(app: &App, admin: &TenantAdmin) -> Result<Vec<atelier_store::ModelProvider>> {
    let mut all = app.model_keys.list(&admin.tenant, None).await?;
    all.retain(|kept| kept.scope != ModelScope::Server);
    Ok(all)
}

/// Show whether the tenant has a key for a provider
#[utoipa::path(get, path = "/api/tenants/{tenant}/model-keys/{provider}", tag = "models",
    params(TenantInPath, ProviderInPath),
    responses((status = 200, description = "The key, without its secret part", body = ModelKey)))]
pub(super) async fn show(
    State(app): State<App>,
    admin: TenantAdmin,
    ProviderInPath(ProviderName(provider)): ProviderInPath,
) -> Result<Reply<ModelKey>> {
    let keys = tenant_keys(&app, &admin).await?;
    let kept = keys.into_iter().find(|kept| kept.provider == provider).ok_or(Error::NotFound)?;
    Ok(Reply(kept.into()))
}

/// Store the tenant's key for a provider
///
/// The key is stored encrypted, takes precedence over the server's own key, and is used only for
/// the tenant's agents.
#[utoipa::path(put, path = "/api/tenants/{tenant}/model-keys/{provider}",
    tag = "models", request_body = NewKey,
    params(TenantInPath, ProviderInPath), responses(
    (status = 200, description = "The stored key, without its secret part", body = ModelKey),
    (status = 404, description = "The server is not configured for this provider"),
))]
pub(super) async fn put(
    State(app): State<App>,
    admin: TenantAdmin,
    ProviderInPath(ProviderName(provider)): ProviderInPath,
    Json(new): Json<NewKey>,
) -> Result<Reply<ModelKey>> {
    let key = checked_key(new.key)?;
    let (scope, keys) = (ModelScope::Tenant(admin.tenant.clone()), &app.model_keys);
    let kept = keys.put_key(scope, &admin.tenant, admin.user, &provider, &key).await?;
    Ok(Reply(kept.ok_or(Error::NotFound)?.into()))
}

/// Remove the tenant's key for a provider
#[utoipa::path(delete, path = "/api/tenants/{tenant}/model-keys/{provider}", tag = "models",
    params(TenantInPath, ProviderInPath),
    responses((status = 204, description = "Removed")))]
pub(super) async fn delete(
    State(app): State<App>,
    admin: TenantAdmin,
    ProviderInPath(ProviderName(provider)): ProviderInPath,
) -> Result<StatusCode> {
    let scope = ModelScope::Tenant(admin.tenant);
    app.model_keys.remove(&scope, admin.user, &provider).await?;
    Ok(DONE)
}
