//! All configured models, and how a name is resolved to one of them.

use crate::{
    DEMO, Demo, Model, ModelError, ModelsConfig, ProviderConfig, ProviderKind, Providers,
    TenantKeys,
    anthropic::Anthropic,
    demo::MissingKey,
    endpoint::{Endpoint, Timeouts},
    keys::{ServerKey, TenantKey},
    openai::OpenAi,
};
use secrecy::ExposeSecret;
use std::{collections::BTreeMap, sync::Arc};

/// The providers with the server's keys. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Models(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: ModelsConfig,
    providers: BTreeMap<String, (ProviderConfig, ServerKey)>,
    http: reqwest::Client,
    /// A client for endpoints on this machine, which a proxy cannot reach.
    http_direct: reqwest::Client,
}

impl Models {
    /// Checks the configuration and reads the server's keys from environment and files.
    pub fn new(config: &ModelsConfig, providers: &Providers) -> Result<Self, ModelError> {
        config.check(providers)?;
        let client = || {
            reqwest::Client::builder()
                .connect_timeout(config.connect_timeout)
                .tcp_nodelay(true)
                // A key is sent only to the address that it is configured for.
                .redirect(reqwest::redirect::Policy::none())
        };
        let built = |client: reqwest::ClientBuilder| {
            client
                .build()
                .map_err(|error| ModelError::Config(format!("no HTTP client for models: {error}")))
        };
        let with_key = |(name, provider): (&String, &ProviderConfig)| {
            Ok((name.clone(), (provider.clone(), ServerKey::read(name, provider)?)))
        };
        Ok(Self(Arc::new(Inner {
            config: config.clone(),
            providers: providers.iter().map(with_key).collect::<Result<_, ModelError>>()?,
            http: built(client())?,
            http_direct: built(client().no_proxy())?,
        })))
    }

    /// Resolves the name in an agent's configuration: `demo`, an alias, `provider/model`, or the
    /// name of a model alone.
    pub fn resolve(&self, name: &str, keys: &TenantKeys) -> Result<Model, ModelError> {
        if name == DEMO {
            return Ok(Model::Demo(Demo::default()));
        }
        let config = &self.0.config;
        let alias = config.aliases.get(name);
        let target = alias.map_or(name, String::as_str);
        if target == DEMO {
            return Ok(Model::Demo(Demo::default()));
        }
        let (provider, model) = self.split(target);
        match self.of_provider(name, provider, model, keys) {
            Err(ModelError::NoKey { provider, remedy })
                if alias.is_some()
                    && config.demo_without_key.iter().any(|listed| listed == name) =>
            {
                Ok(Model::Demo(Demo::instead_of(MissingKey {
                    model: name.to_owned(),
                    provider,
                    remedy,
                })))
            }
            resolved => resolved,
        }
    }

    /// The names of all providers.
    pub fn providers(&self) -> impl Iterator<Item = &str> {
        self.0.providers.keys().map(String::as_str)
    }

    /// The address and the server's own key of the provider `openai`, for its other services. `None`
    /// without a key.
    pub fn openai(&self) -> Option<(String, String)> {
        match self.0.providers.get("openai") {
            Some((provider, ServerKey::Known(key))) if provider.kind == ProviderKind::OpenAi => {
                Some((provider.base_url.clone(), key.expose_secret().to_owned()))
            }
            _ => None,
        }
    }

    fn split<'a>(&'a self, target: &'a str) -> (&'a str, &'a str) {
        if let Some((provider, model)) = target.split_once('/') {
            return (provider, model);
        }
        let lists = |(name, (provider, _)): (&'a String, &'a (ProviderConfig, ServerKey))| {
            provider.models.contains_key(target).then_some(name.as_str())
        };
        let provider =
            self.0.providers.iter().find_map(lists).unwrap_or(&self.0.config.default_provider);
        (provider, target)
    }

    fn of_provider(
        &self,
        name: &str,
        provider: &str,
        model: &str,
        keys: &TenantKeys,
    ) -> Result<Model, ModelError> {
        let Some((settings, server_key)) = self.0.providers.get(provider) else {
            return Err(ModelError::UnknownProvider {
                model: name.to_owned(),
                provider: provider.to_owned(),
                known: self.providers().collect::<Vec<_>>().join(", "),
            });
        };
        let key = match (keys.get(provider), server_key) {
            (Some(TenantKey::Known(own)), _) => Some(own.clone()),
            (Some(TenantKey::Unreadable), _) => {
                return Err(ModelError::KeyUnreadable { provider: provider.to_owned() });
            }
            (None, ServerKey::Known(key)) => Some(key.clone()),
            (None, ServerKey::NotNeeded) => None,
            (None, ServerKey::Missing { remedy }) => {
                return Err(ModelError::NoKey {
                    provider: provider.to_owned(),
                    remedy: remedy.clone(),
                });
            }
        };
        let http =
            if on_this_machine(&settings.base_url) { &self.0.http_direct } else { &self.0.http };
        let endpoint = Endpoint {
            name: format!("{provider}/{model}"),
            provider: provider.to_owned(),
            model: model.to_owned(),
            base_url: settings.base_url.trim_end_matches('/').to_owned(),
            key,
            info: settings.models.get(model).cloned().unwrap_or_default(),
            usual_window: settings.context_window,
            timeouts: Timeouts::new(&self.0.config),
            http: http.clone(),
        };
        Ok(match settings.kind {
            ProviderKind::OpenAi => Model::OpenAi(OpenAi::new(endpoint, true)),
            ProviderKind::OpenAiCompatible => Model::OpenAi(OpenAi::new(endpoint, false)),
            ProviderKind::Anthropic => Model::Anthropic(Anthropic::new(endpoint)),
        })
    }
}

fn on_this_machine(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback()),
        None => false,
    })
}
