//! Model providers, their keys and the default model: for oneself, for the tenant, and for the
//! server. A stored key is never shown again.

use super::DONE;
use crate::{
    App,
    auth::{Caller, Person},
    body::Json,
    error::{Error, Result},
    path::{ProviderInPath, ProviderName},
    query::Params,
};
use atelier_api::models::{
    DefaultModel, DefaultModelChange, KeyOrigin, KnownModel, ModelAlias, ModelFigures, ModelLevel,
    ModelProvider, ModelsOverview, ProviderChange, ProviderTest, StoredProvider, TestOutcome,
};
use atelier_core::{Invalid, Role, nearest::suggestion};
use atelier_model::{
    KeyOwner, KeySource, ModelAccess, ModelInfo, ProviderKind, SecretString, StoredKey, is_address,
    is_provider_name,
};
use atelier_runtime::ProviderEdit;
use atelier_store::ModelScope;
use axum::{Json as Reply, extract::State, http::StatusCode};
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::IntoParams;

/// The scope of a level for this caller, who must be allowed to change it.
fn scope(app: &App, caller: &Caller, level: ModelLevel) -> Result<ModelScope> {
    match level {
        ModelLevel::Own => Ok(ModelScope::User(caller.user)),
        ModelLevel::Tenant if caller.role == Role::Admin => {
            Ok(ModelScope::Tenant(caller.tenant.clone()))
        }
        ModelLevel::Tenant => Err(Error::Forbidden("only admins of the tenant may change this")),
        ModelLevel::Server if is_server_admin(app, caller) => Ok(ModelScope::Server),
        ModelLevel::Server => Err(Error::Forbidden(
            "only admins of the tenant that models.admin_tenant names may change this",
        )),
    }
}

pub(super) fn is_server_admin(app: &App, caller: &Caller) -> bool {
    caller.role == Role::Admin && caller.tenant.as_str() == app.model_keys.models().admin_tenant()
}

fn level(scope: &ModelScope) -> ModelLevel {
    match scope {
        ModelScope::Server => ModelLevel::Server,
        ModelScope::Tenant(_) => ModelLevel::Tenant,
        ModelScope::User(_) => ModelLevel::Own,
    }
}

/// Show the models that your agents can use
///
/// Providers that have a key are asked for their models, at most once a minute.
#[utoipa::path(get, path = "/my/models", tag = "models", operation_id = "models_overview",
    responses((status = 200, description = "Providers, models and the default", body = ModelsOverview)))]
pub(super) async fn overview(
    State(app): State<App>,
    Person(caller): Person,
) -> Result<Reply<ModelsOverview>> {
    let (keys, models) = (&app.model_keys, app.model_keys.models());
    let access = keys.of(&caller.tenant, Some(caller.user)).await?;
    let rows = keys.list(&caller.tenant, Some(caller.user)).await?;
    let may_change: Vec<ModelLevel> =
        ModelLevel::ALL.into_iter().filter(|level| scope(&app, &caller, *level).is_ok()).collect();
    let shows_addresses = may_change.contains(&ModelLevel::Server);
    let names = models.providers(&access);
    let lists = names.iter().map(|name| models.list(name, &access));
    let lists = futures::future::join_all(lists).await;
    let mut providers = Vec::new();
    for (name, listed) in names.into_iter().zip(lists) {
        let Some(settings) = models.settings(name, &access) else { continue };
        let mut known: BTreeMap<String, ModelInfo> = settings.models.clone();
        let problem = match &listed {
            Ok(listed) => {
                for model in listed.iter() {
                    known.entry(model.name.clone()).or_insert_with(|| model.info.clone());
                }
                None
            }
            Err(atelier_model::ModelError::NoKey { .. }) => None,
            Err(error) => Some(error.to_string()),
        };
        let stored = rows.iter().filter(|row| row.provider == name);
        let stored = stored.map(|row| StoredProvider {
            level: level(&row.scope),
            has_key: row.sealed.is_some(),
            last_four: row.last_four.clone(),
            updated_at: row.updated_at,
        });
        let model = |(model, info): (String, ModelInfo)| KnownModel {
            name: format!("{name}/{model}"),
            context_window: info.context_window.or(Some(settings.context_window)),
            input_price: info.input_price,
            output_price: info.output_price,
        };
        providers.push(ModelProvider {
            name: name.to_owned(),
            kind: settings.kind.as_str().to_owned(),
            base_url: shows_addresses.then(|| settings.base_url.clone()),
            key: origin(models.key_source(name, &access)),
            stored: stored.filter(|stored| may_change.contains(&stored.level)).collect(),
            models: known.into_iter().map(model).collect(),
            problem,
        });
    }
    let mut aliases = Vec::new();
    for name in models.aliases() {
        let model = models.resolve(name, &access).await.ok();
        let answered_by = model.map(|model| model.name().to_owned());
        aliases.push(ModelAlias { name: name.to_owned(), answered_by });
    }
    let default = models.resolve(atelier_model::DEFAULT_ALIASES[1], &access).await;
    let chosen = keys.chosen_defaults(&caller.tenant, Some(caller.user)).await?;
    Ok(Reply(ModelsOverview {
        default: DefaultModel {
            answered_by: default.as_ref().ok().map(|model| model.name().to_owned()),
            problem: default.as_ref().err().map(ToString::to_string),
            chosen: chosen.first().map(|(scope, _)| level(scope)),
        },
        aliases,
        providers,
        may_change,
    }))
}

fn origin(source: KeySource) -> KeyOrigin {
    match source {
        KeySource::Person => KeyOrigin::Own,
        KeySource::Tenant => KeyOrigin::Tenant,
        KeySource::Server => KeyOrigin::Server,
        KeySource::Configuration => KeyOrigin::Configuration,
        KeySource::NotNeeded => KeyOrigin::NotNeeded,
        KeySource::Missing => KeyOrigin::Missing,
        KeySource::Unusable => KeyOrigin::Unusable,
    }
}

/// Store a key for a model provider, or the server's settings of it
///
/// Keys are stored encrypted. A person's own key comes before the tenant's, and the tenant's before
/// the server's. A key is sent only to the address that it was entered for. At the level `server`,
/// new providers can be added.
#[utoipa::path(put, path = "/my/models/providers/{provider}", tag = "models", operation_id = "put_model_provider",
    params(ProviderInPath), request_body = ProviderChange, responses(
    (status = 204, description = "Stored"),
    (status = 404, description = "There is no such provider"),
))]
pub(super) async fn put(
    State(app): State<App>,
    Person(caller): Person,
    ProviderInPath(ProviderName(provider)): ProviderInPath,
    Json(change): Json<ProviderChange>,
) -> Result<StatusCode> {
    let scope = scope(&app, &caller, change.level)?;
    let key = change.key.map(SecretString::from).map(checked_key).transpose()?;
    let keys = &app.model_keys;
    if scope == ModelScope::Server {
        if !is_provider_name(&provider) {
            return Err(Invalid::new(
                "provider",
                "must be 1 to 64 letters, digits, dashes, dots or underscores, and not demo",
            )
            .into());
        }
        let access = keys.of(&caller.tenant, None).await?;
        let is_new = keys.models().settings(&provider, &access).is_none();
        if is_new && change.base_url.is_none() {
            return Err(Invalid::new("base_url", "a new provider needs an address").into());
        }
        let edit = ProviderEdit {
            kind: change.kind.as_deref().map(kind).transpose()?,
            base_url: change.base_url.map(checked_address).transpose()?,
            key,
            models: change.models.map(figures).transpose()?,
        };
        keys.put_provider(&caller.tenant, caller.user, &provider, edit).await?;
        return Ok(DONE);
    }
    if change.kind.is_some() || change.base_url.is_some() || change.models.is_some() {
        return Err(Invalid::new(
            "level",
            "kind, base_url and models can only be set at the level server",
        )
        .into());
    }
    let key = key.ok_or_else(|| Invalid::new("key", "is missing"))?;
    let put = keys.put_key(scope, &caller.tenant, caller.user, &provider, &key).await?;
    put.map(|_| DONE).ok_or(Error::NotFound)
}

/// The level of the stored key or settings.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AtLevel {
    /// The level: `own` (the default), `tenant` or `server`.
    #[param(inline)]
    level: ModelLevel,
}

/// Remove what is stored about a model provider at one level
#[utoipa::path(delete, path = "/my/models/providers/{provider}", tag = "models", operation_id = "delete_model_provider",
    params(ProviderInPath, AtLevel), responses((status = 204, description = "Removed")))]
pub(super) async fn delete(
    State(app): State<App>,
    Person(caller): Person,
    ProviderInPath(ProviderName(provider)): ProviderInPath,
    Params(AtLevel { level }): Params<AtLevel>,
) -> Result<StatusCode> {
    let scope = scope(&app, &caller, level)?;
    app.model_keys.remove(&scope, caller.user, &provider).await?;
    Ok(DONE)
}

/// Try a model provider out with a real request
///
/// With `key`, `kind` or `base_url` it is tried with these instead of the stored ones. Nothing is
/// stored.
#[utoipa::path(post, path = "/my/models/providers/{provider}/test", tag = "models", operation_id = "test_model_provider",
    params(ProviderInPath), request_body = ProviderTest, responses(
    (status = 200, description = "Whether it has answered, or why not", body = TestOutcome),
    (status = 404, description = "There is no such provider"),
))]
pub(super) async fn test(
    State(app): State<App>,
    Person(caller): Person,
    ProviderInPath(ProviderName(provider)): ProviderInPath,
    Json(wanted): Json<ProviderTest>,
) -> Result<Reply<TestOutcome>> {
    let scope = scope(&app, &caller, wanted.level)?;
    let (keys, models) = (&app.model_keys, app.model_keys.models());
    let key = wanted.key.map(SecretString::from).map(checked_key).transpose()?;
    let mut access = ModelAccess::clone(&*keys.of(&caller.tenant, Some(caller.user)).await?);
    if scope == ModelScope::Server {
        access = access.of_server();
        if key.is_some() || wanted.kind.is_some() || wanted.base_url.is_some() {
            let stored = atelier_model::StoredProvider {
                kind: wanted.kind.as_deref().map(kind).transpose()?,
                base_url: wanted.base_url.map(checked_address).transpose()?,
                key: key.map_or(StoredKey::None, StoredKey::Known),
                models: BTreeMap::new(),
            };
            models.try_stored(&mut access, &provider, stored);
        }
    } else if wanted.kind.is_some() || wanted.base_url.is_some() {
        let problem = "kind and base_url can only be tried at the level server";
        return Err(Invalid::new("level", problem).into());
    } else if let Some(key) = key {
        access.insert_key(provider.as_str(), KeyOwner::Person, Some(key), None);
    }
    if models.settings(&provider, &access).is_none() {
        return Err(Error::NotFound);
    }
    let tested = models.test(&provider, wanted.model.as_deref(), &access).await;
    Ok(Reply(match tested {
        Ok(tested) => TestOutcome {
            success: true,
            model: Some(tested.model),
            milliseconds: Some(tested.time.as_millis().try_into().unwrap_or(u64::MAX)),
            problem: None,
        },
        Err(error) => TestOutcome {
            success: false,
            model: None,
            milliseconds: None,
            problem: Some(error.in_plain_words()),
        },
    }))
}

/// Choose the default model
///
/// Agents with the model `gpt-4` or `default` use it, unless the configuration maps these names to
/// another model.
#[utoipa::path(put, path = "/my/models/default", tag = "models", operation_id = "set_default_model", request_body = DefaultModelChange,
    responses((status = 204, description = "Stored")))]
pub(super) async fn set_default(
    State(app): State<App>,
    Person(caller): Person,
    Json(change): Json<DefaultModelChange>,
) -> Result<StatusCode> {
    let scope = scope(&app, &caller, change.level)?;
    let keys = &app.model_keys;
    let model = match change.model {
        Some(name) => {
            check_model(&app, &caller, "model", &name).await?;
            let user = (change.level == ModelLevel::Own).then_some(caller.user);
            let access = keys.of(&caller.tenant, user).await?;
            let model = keys.models().resolve(&name, &access).await;
            let model = model.map_err(|error| Invalid::new("model", error.to_string()))?;
            Some(model.name().to_owned())
        }
        None => None,
    };
    keys.set_default(&scope, caller.user, model).await?;
    Ok(DONE)
}

/// Refuses the name of a model that nobody knows, with what was probably meant.
pub(super) async fn check_model(
    app: &App,
    caller: &Caller,
    field: &'static str,
    name: &str,
) -> Result<()> {
    let access = app.model_keys.of(&caller.tenant, Some(caller.user)).await?;
    let checked = app.model_keys.models().check_name(name, &access).await;
    checked.map_err(|unknown| Invalid::new(field, unknown.to_string()).into())
}

/// A key that can be sent in a header. The error does not repeat it.
pub(super) fn checked_key(key: SecretString) -> Result<SecretString> {
    let text = key.expose_secret();
    if !(1..=500).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem = "must be 1 to 500 printable ASCII characters without spaces";
        return Err(Invalid::new("key", problem).into());
    }
    Ok(key)
}

fn checked_address(address: String) -> Result<String> {
    let address = address.trim().trim_end_matches('/').to_owned();
    if address.len() > 2000 || !is_address(&address) {
        let problem = "must be an address that begins with https:// or http://";
        return Err(Invalid::new("base_url", problem).into());
    }
    Ok(address)
}

fn kind(name: &str) -> Result<ProviderKind> {
    let known = ProviderKind::ALL.into_iter().find(|kind| kind.as_str() == name);
    known.ok_or_else(|| {
        let names = ProviderKind::ALL.map(ProviderKind::as_str);
        Invalid::new("kind", format!("there is no {name:?}: {}", suggestion(name, names))).into()
    })
}

/// The most models of one provider that can have figures of their own.
const MAX_FIGURES: usize = 1000;

fn figures(given: BTreeMap<String, ModelFigures>) -> Result<BTreeMap<String, ModelInfo>> {
    let price = |price: Option<f64>| price.is_none_or(|price| price.is_finite() && price >= 0.0);
    let valid = |(name, figures): (&String, &ModelFigures)| {
        (1..=200).contains(&name.len())
            && figures.context_window != Some(0)
            && price(figures.input_price)
            && price(figures.output_price)
    };
    if given.len() > MAX_FIGURES || !given.iter().all(valid) {
        let problem = "must be at most 1000 models with positive windows and prices";
        return Err(Invalid::new("models", problem).into());
    }
    let info = |(name, figures): (String, ModelFigures)| {
        let ModelFigures { context_window, input_price, output_price } = figures;
        (name, ModelInfo { context_window, input_price, output_price, fixed_temperature: false })
    };
    Ok(given.into_iter().map(info).collect())
}
