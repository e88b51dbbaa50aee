//! Trying a provider out with a real request, and checking the names of models.

use crate::{
    DEMO, Message, ModelAccess, ModelError, Models, Request, endpoint::Timeouts, model::Model,
};
use atelier_core::nearest::{nearest, suggestion};
use std::time::{Duration, Instant};

/// A provider that has answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Tested {
    /// The model that has answered, such as `openai/gpt-4o`.
    pub model: String,
    pub time: Duration,
}

/// A name in an agent's configuration that stands for no model, and what was probably meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no model {name:?}: {remedy}")]
pub struct UnknownModel {
    name: String,
    remedy: String,
}

/// OpenAI allows no smaller limit for models that think.
const TEST_TOKENS: u32 = 16;
const TEST_TIME: Duration = Duration::from_secs(60);

impl Models {
    /// Asks a model of the provider for one word, without retries.
    pub async fn test(
        &self,
        provider: &str,
        model: Option<&str>,
        access: &ModelAccess,
    ) -> Result<Tested, ModelError> {
        let model = match model {
            Some(model) => model.to_owned(),
            None => self.any_model_of(provider, access).await?,
        };
        let name = format!("{provider}/{model}");
        let model = self.resolve(&name, access).await?;
        self.test_model(&model).await
    }

    /// Asks this model for one word, without retries.
    pub async fn test_model(&self, model: &Model) -> Result<Tested, ModelError> {
        let model = model.with_timeouts(Timeouts::once(TEST_TIME));
        let request = Request {
            messages: vec![Message::User("Answer with the word OK.".to_owned())],
            max_tokens: Some(TEST_TOKENS),
            ..Request::default()
        };
        let since = Instant::now();
        model.ask(&request, |_| {}).await?;
        Ok(Tested { model: model.name().to_owned(), time: since.elapsed() })
    }

    /// Refuses a name that stands for no known model. Providers are asked for their models; if one
    /// cannot be asked, a name of the form `provider/model` is accepted.
    pub async fn check_name(&self, name: &str, access: &ModelAccess) -> Result<(), UnknownModel> {
        if name == DEMO || self.alias(name) {
            return Ok(());
        }
        let unknown = |remedy: String| Err(UnknownModel { name: name.to_owned(), remedy });
        let Some((provider, model)) = name.split_once('/') else {
            return match self.lists(name, access) {
                Some(_) => Ok(()),
                None => self.check_bare_name(name, access).await,
            };
        };
        let Some(settings) = self.settings(provider, access) else {
            let known = self.providers(access);
            return unknown(match nearest(provider, known.iter().copied()) {
                Some(near) => format!("did you mean {near}/{model}?"),
                None => format!("there is no provider {provider}; {}", suggestion(provider, known)),
            });
        };
        let Ok(listed) = self.list(provider, access).await else { return Ok(()) };
        let known = settings.models.keys().map(String::as_str);
        let mut known = known.chain(listed.iter().map(|model| model.name.as_str()));
        if known.clone().any(|known| known == model) || is_pulled_without_tag(model, &mut known) {
            return Ok(());
        }
        let known = settings.models.keys().map(String::as_str);
        let known = known.chain(listed.iter().map(|model| model.name.as_str()));
        unknown(match nearest(model, known) {
            Some(near) => format!("did you mean {provider}/{near}?"),
            None => format!("{provider} does not list it"),
        })
    }

    /// A name without a provider has to be in the list of one.
    async fn check_bare_name(&self, name: &str, access: &ModelAccess) -> Result<(), UnknownModel> {
        let mut known: Vec<String> = self.aliases().map(str::to_owned).collect();
        known.push(DEMO.to_owned());
        let (default, _) = self.split(name, access);
        for provider in self.providers(access) {
            let settings = self.settings(provider, access).into_iter();
            known.extend(settings.flat_map(|settings| settings.models.keys().cloned()));
            let Ok(listed) = self.list(provider, access).await else { continue };
            if provider == default && listed.iter().any(|model| model.name == name) {
                return Ok(());
            }
            known.extend(listed.iter().map(|model| format!("{provider}/{}", model.name)));
        }
        let remedy = match nearest(name, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near}?"),
            None => "write it as provider/model".to_owned(),
        };
        Err(UnknownModel { name: name.to_owned(), remedy })
    }
}

/// Ollama lists `llama3:latest` and also answers to `llama3`.
fn is_pulled_without_tag<'a>(model: &str, known: &mut impl Iterator<Item = &'a str>) -> bool {
    known.any(|known| known.strip_suffix(":latest") == Some(model))
}
