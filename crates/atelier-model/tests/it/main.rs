//! Models as agents use them, against a scripted model over real HTTP.

mod default;
mod demo;
mod names;
mod openai;
mod providers;

use atelier_model::{
    Model, ModelAccess, Models, ModelsConfig, ProviderConfig, ProviderKind, Providers, Request,
    SecretString, known_providers,
};
use atelier_testkit::ScriptedModel;
use std::time::Duration;

/// A key that is easy to find wherever it does not belong.
const KEY: &str = "sk-test-0123456789abcdef";

/// Retries quickly. The timeouts stay at their generous defaults, so a busy machine fails no test.
fn config() -> ModelsConfig {
    ModelsConfig { retries: 2, retry_wait: Duration::from_millis(10), ..ModelsConfig::default() }
}

/// How long a scripted model may be silent in tests of timeouts.
const SHORT: Duration = Duration::from_secs(1);

/// A configuration for models that never say the next word.
fn impatient() -> ModelsConfig {
    ModelsConfig { first_token_timeout: SHORT, stall_timeout: SHORT, ..config() }
}

/// A provider `scripted` of this kind at this address.
fn provider(kind: ProviderKind, base_url: String) -> Providers {
    let scripted = ProviderConfig {
        base_url,
        key_env: Some("ATELIER_TEST_KEY_THAT_IS_NOT_SET".into()),
        context_window: 1000,
        ..ProviderConfig::new(kind, String::new())
    };
    let mut providers = known_providers();
    providers.insert("scripted".into(), scripted);
    providers
}

fn models(config: &ModelsConfig, providers: &Providers) -> Models {
    // Building a client installs the TLS provider, which the program does when it starts.
    drop(atelier_testkit::http());
    Models::new(config, providers).expect("a valid configuration")
}

fn keys() -> ModelAccess {
    let mut keys = ModelAccess::default();
    keys.insert("scripted", SecretString::from(KEY));
    keys
}

async fn model(kind: ProviderKind, script: &ScriptedModel) -> Model {
    configured(&config(), kind, script).await
}

async fn configured(config: &ModelsConfig, kind: ProviderKind, script: &ScriptedModel) -> Model {
    let models = models(config, &provider(kind, script.url()));
    models.resolve("scripted/some-model", &keys()).await.expect("a model")
}

fn question(text: &str) -> Request {
    Request { messages: vec![atelier_model::Message::User(text.into())], ..Request::default() }
}
