//! The models that providers list, cached for a short time.

use crate::{ModelError, ModelInfo, ProviderKind, anthropic, endpoint::Endpoint, openai};
use moka::future::Cache;
use secrecy::ExposeSecret;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::{Duration, Instant},
};

/// A model as its provider lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedModel {
    /// The name at the provider, without the provider's own name.
    pub name: String,
    pub info: ModelInfo,
}

pub type ModelList = Result<Arc<[ListedModel]>, ModelError>;

/// How long a list, or a failure to get one, is used.
const CACHE_TIME: Duration = Duration::from_secs(60);
const FAILURE_CACHE_TIME: Duration = Duration::from_secs(5);
/// For how many addresses and keys lists are cached.
const CACHED_LISTS: u64 = 1000;
/// How long a provider may take, and how much it may send.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// An address, and a hash of the key: two keys may see different models.
type Source = (String, u64);

#[derive(Debug)]
pub(crate) struct Listings {
    lists: Cache<Source, (Instant, ModelList)>,
    hasher: RandomState,
}

impl Default for Listings {
    fn default() -> Self {
        let lists = Cache::builder().time_to_live(CACHE_TIME).max_capacity(CACHED_LISTS).build();
        Self { lists, hasher: RandomState::new() }
    }
}

impl Listings {
    fn source(&self, endpoint: &Endpoint) -> Source {
        let key = endpoint.key.as_ref().map_or("", |key| key.expose_secret());
        (endpoint.base_url.clone(), self.hasher.hash_one(key))
    }

    pub(crate) async fn of(&self, kind: ProviderKind, endpoint: &Endpoint) -> ModelList {
        let source = self.source(endpoint);
        if let Some((since, list)) = self.lists.get(&source).await
            && (list.is_ok() || since.elapsed() < FAILURE_CACHE_TIME)
        {
            return list;
        }
        let asking = async {
            match kind {
                ProviderKind::OpenAi | ProviderKind::OpenAiCompatible => {
                    openai::list(endpoint).await
                }
                ProviderKind::Anthropic => anthropic::list(endpoint).await,
                ProviderKind::Ollama => pulled_models(endpoint).await,
            }
        };
        let list = tokio::time::timeout(TIME_LIMIT, asking).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {} seconds", TIME_LIMIT.as_secs());
            Err(ModelError::Unreachable { provider: endpoint.provider.clone(), reason })
        });
        let list: ModelList = list.map(Arc::from);
        self.lists.insert(source, (Instant::now(), list.clone())).await;
        list
    }

    /// The figures of a model in a cached list.
    pub(crate) async fn known(&self, endpoint: &Endpoint, model: &str) -> Option<ModelInfo> {
        let (_, list) = self.lists.get(&self.source(endpoint)).await?;
        let list = list.ok()?;
        list.iter().find(|listed| listed.name == model).map(|listed| listed.info.clone())
    }
}

/// The models that Ollama has pulled, from its own API beside the compatible one.
async fn pulled_models(endpoint: &Endpoint) -> Result<Vec<ListedModel>, ModelError> {
    #[derive(Deserialize)]
    struct Tags {
        models: Vec<Tag>,
    }
    #[derive(Deserialize)]
    struct Tag {
        name: String,
    }
    let root = endpoint.base_url.trim_end_matches("/v1");
    let request = endpoint.http.get(format!("{root}/api/tags"));
    let request = request.build().map_err(|error| endpoint.unreachable(error))?;
    let tags: Tags = get(endpoint, request).await?;
    let listed = |tag: Tag| ListedModel { name: tag.name, info: ModelInfo::default() };
    Ok(tags.models.into_iter().map(listed).collect())
}

/// Sends a request and reads the JSON of its answer.
pub(crate) async fn get<T: DeserializeOwned>(
    endpoint: &Endpoint,
    request: reqwest::Request,
) -> Result<T, ModelError> {
    let mut response = endpoint.send(request).await?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| endpoint.unreachable(error))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_BYTES {
            return Err(endpoint.malformed("a list of models that is too long"));
        }
    }
    serde_json::from_slice(&body)
        .map_err(|_| endpoint.malformed("this is not a list of models; check the address"))
}

/// An entry of the lists of OpenAI, Anthropic and compatible endpoints. Some of them add the window
/// and the price of a token.
#[derive(Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

impl From<Entry> for ListedModel {
    fn from(entry: Entry) -> Self {
        let windows = ["context_length", "max_model_len", "context_window", "max_input_tokens"];
        let window = windows.iter().find_map(|name| entry.rest.get(*name)?.as_u64());
        let price = |name: &str| {
            let price = entry.rest.get("pricing")?.get(name)?;
            let price = price.as_f64().or_else(|| price.as_str()?.parse().ok())?;
            (price >= 0.0 && price.is_finite()).then_some(price * 1_000_000.0)
        };
        let info = ModelInfo {
            context_window: window.and_then(|window| u32::try_from(window).ok()),
            input_price: price("prompt"),
            output_price: price("completion"),
            fixed_temperature: false,
        };
        Self { name: entry.id, info }
    }
}
