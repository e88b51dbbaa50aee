//! Keys of model providers, for a tenant's admins. A key goes in and never comes out again.

use super::DONE;
use crate::{
    App,
    body::{Json, ProviderInPath},
    error::{Error, Result},
    guard::TenantAdmin,
};
use atelier_core::Invalid;
use atelier_model::SecretString;
use axum::{Json as Reply, extract::State, http::StatusCode};
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewKey {
    #[schema(value_type = String, write_only, min_length = 1, max_length = 500, pattern = "^[!-~]+$")]
    key: SecretString,
}

/// What may be seen of a key.
#[derive(Serialize, ToSchema)]
pub(super) struct ModelKey {
    provider: String,
    /// The end of the key, to recognise it by; empty for short ones.
    last_four: String,
    updated_at: DateTime<Utc>,
}

impl From<atelier_store::ProviderKey> for ModelKey {
    fn from(kept: atelier_store::ProviderKey) -> Self {
        Self { provider: kept.provider, last_four: kept.last_four, updated_at: kept.updated_at }
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct ModelKeyList {
    keys: Vec<ModelKey>,
    /// Every provider that the server is configured for.
    providers: Vec<String>,
}

/// List the tenant's keys of model providers
///
/// For the tenant's admins. Only that a key exists is told, and its last four characters.
#[utoipa::path(get, path = "/api/tenants/{tenant}/model-keys", tag = "models", params(("tenant" = String, Path)),
    responses((status = 200, body = ModelKeyList)))]
pub(super) async fn list(State(app): State<App>, admin: TenantAdmin) -> Result<Reply<ModelKeyList>> {
    let keys = app.model_keys.list(&admin.tenant).await?;
    Ok(Reply(ModelKeyList {
        keys: keys.into_iter().map(ModelKey::from).collect(),
        providers: app.models.providers().map(str::to_owned).collect(),
    }))
}

/// Show that there is a key for a provider
#[utoipa::path(get, path = "/api/tenants/{tenant}/model-keys/{provider}", tag = "models",
    params(("tenant" = String, Path), ("provider" = String, Path)),
    responses((status = 200, body = ModelKey)))]
pub(super) async fn show(
    State(app): State<App>,
    admin: TenantAdmin,
    ProviderInPath(provider): ProviderInPath,
) -> Result<Reply<ModelKey>> {
    let keys = app.model_keys.list(&admin.tenant).await?;
    let kept = keys.into_iter().find(|kept| kept.provider == provider).ok_or(Error::NotFound)?;
    Ok(Reply(kept.into()))
}

/// Put in the tenant's key for a provider
///
/// It is kept encrypted, comes before the server's own key, and is used for the tenant's agents only.
#[utoipa::path(put, path = "/api/tenants/{tenant}/model-keys/{provider}", tag = "models", request_body = NewKey,
    params(("tenant" = String, Path), ("provider" = String, Path)),
    responses((status = 200, body = ModelKey), (status = 404, description = "The server knows no such provider")))]
pub(super) async fn put(
    State(app): State<App>,
    admin: TenantAdmin,
    ProviderInPath(provider): ProviderInPath,
    Json(new): Json<NewKey>,
) -> Result<Reply<ModelKey>> {
    if !app.models.providers().any(|known| known == provider) {
        return Err(Error::NotFound);
    }
    let key = new.key.expose_secret();
    if !(1..=500).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Invalid::new("key", "must be 1 to 500 printable ASCII characters without spaces").into());
    }
    Ok(Reply(app.model_keys.put(&admin.tenant, admin.user, &provider, &new.key).await?.into()))
}

/// Remove the tenant's key for a provider
#[utoipa::path(delete, path = "/api/tenants/{tenant}/model-keys/{provider}", tag = "models",
    params(("tenant" = String, Path), ("provider" = String, Path)),
    responses((status = 204, description = "Removed")))]
pub(super) async fn delete(
    State(app): State<App>,
    admin: TenantAdmin,
    ProviderInPath(provider): ProviderInPath,
) -> Result<StatusCode> {
    app.model_keys.remove(&admin.tenant, admin.user, &provider).await?;
    Ok(DONE)
}
