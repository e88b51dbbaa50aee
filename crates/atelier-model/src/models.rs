//! All configured models, and how a name is resolved to one of them.

use crate::{
    DEMO, Demo, Model, ModelAccess, ModelError, ModelsConfig, ProviderConfig, ProviderKind,
    Providers, StoredProvider,
    access::{self, KeyOwner, ServerKey},
    anthropic::Anthropic,
    demo::MissingKey,
    endpoint::{Endpoint, Timeouts},
    listing::{Listings, ModelList},
    openai::OpenAi,
};
use secrecy::{ExposeSecret, SecretString};
use std::{collections::BTreeMap, sync::Arc};

/// The providers with the server's keys. Cloning it is cheap.
#[derive(Debug, Clone)]
pub struct Models(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: ModelsConfig,
    providers: BTreeMap<String, (ProviderConfig, ServerKey)>,
    listings: Listings,
    http: reqwest::Client,
    /// A client for endpoints on this machine, which a proxy cannot reach.
    http_direct: reqwest::Client,
}

/// The names that stand for the default model, unless the configuration maps them elsewhere. The
/// starter agents have the first.
pub const DEFAULT_ALIASES: [&str; 2] = ["gpt-4", "default"];

/// The source of the key that requests to a provider use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    Person,
    Tenant,
    /// The server's admins have entered it.
    Server,
    /// The environment or a file.
    Configuration,
    NotNeeded,
    Missing,
    /// There is a key, but it cannot be used.
    Unusable,
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
            listings: Listings::default(),
            http: built(client())?,
            http_direct: built(client().no_proxy())?,
        })))
    }

    /// Adds a provider that the server's admins have entered, or their changes of a configured one.
    pub fn add_stored(&self, access: &mut ModelAccess, name: &str, stored: StoredProvider) {
        let merged = access::merged(self.0.providers.get(name), stored);
        access.providers.insert(name.to_owned(), merged);
    }

    /// Changes a provider as it is in force now, to try it out before it is stored.
    pub fn try_stored(&self, access: &mut ModelAccess, name: &str, stored: StoredProvider) {
        let merged = access::merged(self.provider(name, access), stored);
        access.providers.insert(name.to_owned(), merged);
    }

    /// Resolves the name in an agent's configuration: `demo`, an alias, `provider/model`, or the
    /// name of a model alone.
    pub async fn resolve(&self, name: &str, access: &ModelAccess) -> Result<Model, ModelError> {
        if name == DEMO {
            return Ok(Model::Demo(Demo::default()));
        }
        let config = &self.0.config;
        let alias = config.aliases.get(name);
        if alias.is_none() && DEFAULT_ALIASES.contains(&name) {
            return self.default_model(name, access).await;
        }
        match self.explicit(name, alias.map_or(name, String::as_str), access).await {
            Err(ModelError::NoKey { provider, remedy })
                if alias.is_some()
                    && config.demo_without_key.iter().any(|listed| listed == name) =>
            {
                Ok(Model::Demo(Demo::instead_of(MissingKey {
                    model: name.to_owned(),
                    provider: Some((provider, remedy)),
                })))
            }
            resolved => resolved,
        }
    }

    /// The model that somebody has chosen, or else the first one that has what it needs.
    async fn default_model(&self, name: &str, access: &ModelAccess) -> Result<Model, ModelError> {
        let chosen = access.default_model.as_ref().or(self.0.config.default_model.as_ref());
        if let Some(chosen) = chosen {
            return self.explicit(name, chosen, access).await;
        }
        for (provider, settings) in self.by_rank(access) {
            let endpoint = match self.endpoint(name, provider, "", access) {
                Ok(endpoint) => endpoint,
                Err(ModelError::NoKey { .. }) => continue,
                Err(error) => return Err(error),
            };
            if let Some(model) = self.usual_model(settings, &endpoint).await {
                return self.explicit(name, &format!("{provider}/{model}"), access).await;
            }
        }
        let missing = MissingKey { model: name.to_owned(), provider: None };
        Ok(Model::Demo(Demo::instead_of(missing)))
    }

    /// The model that is used of a provider if nobody has named one. `None` if the provider has to
    /// be asked and does not answer, or has no model.
    async fn usual_model(&self, settings: &ProviderConfig, endpoint: &Endpoint) -> Option<String> {
        let wanted = settings.default_model.clone().or(settings.models.keys().next().cloned());
        if settings.kind != ProviderKind::Ollama && wanted.is_some() {
            return wanted;
        }
        // Ollama may not run, or may not have pulled the model.
        let listed = self.0.listings.of(settings.kind, endpoint).await.ok()?;
        let has = |wanted: &String| listed.iter().any(|model| model.name == *wanted);
        wanted.filter(has).or_else(|| listed.first().map(|model| model.name.clone()))
    }

    async fn explicit(
        &self,
        name: &str,
        target: &str,
        access: &ModelAccess,
    ) -> Result<Model, ModelError> {
        if target == DEMO {
            return Ok(Model::Demo(Demo::default()));
        }
        let (provider, model) = self.split(target, access);
        let mut endpoint = self.endpoint(name, provider, model, access)?;
        let Some((settings, _)) = self.provider(provider, access) else {
            unreachable!("an endpoint has a provider")
        };
        if !settings.models.contains_key(model)
            && let Some(known) = self.0.listings.known(&endpoint, model).await
        {
            endpoint.info = known;
        }
        Ok(match settings.kind {
            ProviderKind::OpenAi => Model::OpenAi(OpenAi::new(endpoint, true)),
            ProviderKind::OpenAiCompatible | ProviderKind::Ollama => {
                Model::OpenAi(OpenAi::new(endpoint, false))
            }
            ProviderKind::Anthropic => Model::Anthropic(Anthropic::new(endpoint)),
        })
    }

    /// The names of all providers, in the order in which the default model is looked for.
    pub fn providers<'a>(&'a self, access: &'a ModelAccess) -> Vec<&'a str> {
        self.by_rank(access).into_iter().map(|(name, _)| name).collect()
    }

    /// The settings of a provider, as they are in force.
    pub fn settings<'a>(
        &'a self,
        provider: &str,
        access: &'a ModelAccess,
    ) -> Option<&'a ProviderConfig> {
        self.provider(provider, access).map(|(settings, _)| settings)
    }

    /// All aliases of the configuration, and those of the default model.
    pub fn aliases(&self) -> impl Iterator<Item = &str> {
        let own = self.0.config.aliases.keys().map(String::as_str);
        let default = DEFAULT_ALIASES.into_iter();
        own.chain(default.filter(|name| !self.0.config.aliases.contains_key(*name)))
    }

    /// The tenant whose admins may change what the server uses.
    pub fn admin_tenant(&self) -> &str {
        &self.0.config.admin_tenant
    }

    /// The source of the key for a provider.
    pub fn key_source(&self, provider: &str, access: &ModelAccess) -> KeySource {
        let Some((settings, server)) = self.provider(provider, access) else {
            return KeySource::Missing;
        };
        match access.key(provider) {
            Some(own) if own.key.is_none() || own.is_for_another_address(settings) => {
                KeySource::Unusable
            }
            Some(own) if own.owner == KeyOwner::Person => KeySource::Person,
            Some(_) => KeySource::Tenant,
            None => match server {
                ServerKey::NotNeeded => KeySource::NotNeeded,
                ServerKey::Configured(_) => KeySource::Configuration,
                ServerKey::Stored(_) => KeySource::Server,
                ServerKey::Unreadable => KeySource::Unusable,
                ServerKey::Missing { .. } => KeySource::Missing,
            },
        }
    }

    /// The models that a provider offers for this key. The provider is asked at most once a minute.
    pub async fn list(&self, provider: &str, access: &ModelAccess) -> ModelList {
        let endpoint = self.endpoint(provider, provider, "", access)?;
        let Some((settings, _)) = self.provider(provider, access) else {
            unreachable!("an endpoint has a provider")
        };
        self.0.listings.of(settings.kind, &endpoint).await
    }

    /// The name of a model of this provider to test it with: the usual one.
    pub(crate) async fn any_model_of(
        &self,
        provider: &str,
        access: &ModelAccess,
    ) -> Result<String, ModelError> {
        let endpoint = self.endpoint(provider, provider, "", access)?;
        let Some((settings, _)) = self.provider(provider, access) else {
            unreachable!("an endpoint has a provider")
        };
        if let Some(model) = self.usual_model(settings, &endpoint).await {
            return Ok(model);
        }
        self.0.listings.of(settings.kind, &endpoint).await?;
        Err(ModelError::NoModels { provider: provider.to_owned() })
    }

    /// The address and the server's own key of the provider `openai`, for its other services. `None`
    /// without a key in the configuration.
    pub fn openai(&self) -> Option<(String, String)> {
        match self.0.providers.get("openai") {
            Some((provider, ServerKey::Configured(key)))
                if provider.kind == ProviderKind::OpenAi =>
            {
                Some((provider.base_url.clone(), key.expose_secret().to_owned()))
            }
            _ => None,
        }
    }

    pub(crate) fn alias(&self, name: &str) -> bool {
        self.aliases().any(|alias| alias == name)
    }

    /// The provider and the name at the provider that a name without an alias stands for.
    pub(crate) fn split<'a>(
        &'a self,
        target: &'a str,
        access: &'a ModelAccess,
    ) -> (&'a str, &'a str) {
        if let Some((provider, model)) = target.split_once('/') {
            return (provider, model);
        }
        let provider = self.lists(target, access).unwrap_or(&self.0.config.default_provider);
        (provider, target)
    }

    /// The first provider whose settings have a model of this name.
    pub(crate) fn lists<'a>(&'a self, model: &str, access: &'a ModelAccess) -> Option<&'a str> {
        let mut all = self.by_name(access).into_iter();
        all.find_map(|(name, settings)| settings.models.contains_key(model).then_some(name))
    }

    fn by_name<'a>(&'a self, access: &'a ModelAccess) -> Vec<(&'a str, &'a ProviderConfig)> {
        let mut all: BTreeMap<&str, &ProviderConfig> = BTreeMap::new();
        for (name, (settings, _)) in self.0.providers.iter().chain(&access.providers) {
            all.insert(name, settings);
        }
        all.into_iter().collect()
    }

    /// All providers, in the order in which the default model is looked for: OpenAI, Anthropic,
    /// compatible endpoints, Ollama.
    fn by_rank<'a>(&'a self, access: &'a ModelAccess) -> Vec<(&'a str, &'a ProviderConfig)> {
        let mut all = self.by_name(access);
        all.sort_by_key(|(_, settings)| settings.kind.rank());
        all
    }

    fn provider<'a>(
        &'a self,
        name: &str,
        access: &'a ModelAccess,
    ) -> Option<&'a (ProviderConfig, ServerKey)> {
        access.providers.get(name).or_else(|| self.0.providers.get(name))
    }

    fn endpoint(
        &self,
        name: &str,
        provider: &str,
        model: &str,
        access: &ModelAccess,
    ) -> Result<Endpoint, ModelError> {
        let Some((settings, server_key)) = self.provider(provider, access) else {
            return Err(ModelError::UnknownProvider {
                model: name.to_owned(),
                provider: provider.to_owned(),
                known: self
                    .by_name(access)
                    .iter()
                    .map(|(name, _)| *name)
                    .collect::<Vec<_>>()
                    .join(", "),
            });
        };
        let key = self.key(provider, settings, server_key, access)?;
        let http =
            if on_this_machine(&settings.base_url) { &self.0.http_direct } else { &self.0.http };
        Ok(Endpoint {
            name: format!("{provider}/{model}"),
            provider: provider.to_owned(),
            model: model.to_owned(),
            base_url: settings.base_url.trim_end_matches('/').to_owned(),
            key,
            info: settings.models.get(model).cloned().unwrap_or_default(),
            usual_window: settings.context_window,
            timeouts: Timeouts::new(&self.0.config),
            http: http.clone(),
        })
    }

    fn key(
        &self,
        provider: &str,
        settings: &ProviderConfig,
        server: &ServerKey,
        access: &ModelAccess,
    ) -> Result<Option<SecretString>, ModelError> {
        let unreadable = || Err(ModelError::KeyUnreadable { provider: provider.to_owned() });
        if let Some(own) = access.key(provider) {
            if own.is_for_another_address(settings) {
                return Err(ModelError::AddressChanged { provider: provider.to_owned() });
            }
            return own.key.clone().map_or_else(unreadable, |key| Ok(Some(key)));
        }
        match server {
            ServerKey::Configured(key) | ServerKey::Stored(key) => Ok(Some(key.clone())),
            ServerKey::NotNeeded => Ok(None),
            ServerKey::Unreadable => unreadable(),
            ServerKey::Missing { remedy } => {
                Err(ModelError::NoKey { provider: provider.to_owned(), remedy: remedy.clone() })
            }
        }
    }
}

impl access::OwnKey {
    fn is_for_another_address(&self, settings: &ProviderConfig) -> bool {
        self.address.as_ref().is_some_and(|address| *address != settings.base_url)
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
