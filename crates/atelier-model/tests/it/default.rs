//! The default model, the lists of providers, and names that stand for no model.

use crate::{KEY, config, models, names::local};
use atelier_model::{
    KeyOwner, KeySource, ModelAccess, ModelError, Models, ModelsConfig, ProviderConfig,
    ProviderKind, SecretString, StoredKey, StoredProvider,
};
use atelier_testkit::{Reply, ScriptedModel};

fn key() -> SecretString {
    SecretString::from(KEY)
}

async fn default_of(models: &Models, access: &ModelAccess) -> String {
    models.resolve("gpt-4", access).await.expect("a model").name().to_owned()
}

/// DY-02: OpenAI, Anthropic, other compatible endpoints, Ollama, demo.
#[tokio::test]
async fn default_model_is_the_first_that_has_what_it_needs() {
    let ollama = ScriptedModel::queue([]).await;
    ollama.list(&["qwen3:8b", "llama3:latest"]);
    let other = ScriptedModel::queue([]).await;
    other.list(&["house-model"]);
    let mut providers = local();
    providers.remove("scripted");
    let mut access = ModelAccess::default();
    assert_eq!(default_of(&models(&config(), &providers), &access).await, "demo");

    providers.get_mut("ollama").expect("there").base_url = ollama.url();
    let found = models(&config(), &providers);
    assert_eq!(default_of(&found, &access).await, "ollama/qwen3:8b");
    providers.get_mut("ollama").expect("there").default_model = Some("llama3:latest".into());
    let found = models(&config(), &providers);
    assert_eq!(default_of(&found, &access).await, "ollama/llama3:latest");

    let house = ProviderConfig::new(ProviderKind::OpenAiCompatible, other.url());
    providers.insert("house".into(), house);
    let found = models(&config(), &providers);
    assert_eq!(default_of(&found, &access).await, "house/house-model");

    access.insert("anthropic", key());
    assert_eq!(default_of(&found, &access).await, "anthropic/claude-sonnet-4-5");
    access.insert_key("openai", KeyOwner::Person, Some(key()), None);
    assert_eq!(default_of(&found, &access).await, "openai/gpt-4o");
    assert_eq!(found.key_source("openai", &access), KeySource::Person);
    assert_eq!(found.key_source("anthropic", &access), KeySource::Tenant);

    // A model that somebody has chosen counts more, and the configuration can map the alias
    // elsewhere.
    access.default_model = Some("anthropic/claude-haiku-4-5".into());
    assert_eq!(default_of(&found, &access).await, "anthropic/claude-haiku-4-5");
    let mapped = ModelsConfig {
        aliases: [("gpt-4".to_owned(), "house/other".to_owned())].into(),
        ..config()
    };
    assert_eq!(default_of(&models(&mapped, &providers), &access).await, "house/other");
}

/// DY-04
#[tokio::test]
async fn unknown_names_are_refused_with_the_nearest_known_one() {
    let script = ScriptedModel::queue([]).await;
    script.list(&["big-model", "small-model"]);
    let mut providers = local();
    let house = ProviderConfig::new(ProviderKind::OpenAiCompatible, script.url());
    providers.insert("house".into(), house);
    let models = models(&config(), &providers);
    let access = ModelAccess::default();
    for known in [
        "gpt-4",
        "default",
        "demo",
        "gpt-4o",
        "house/big-model",
        // Nobody can be asked about this one without a key.
        "openai/gpt-next",
    ] {
        assert_eq!(models.check_name(known, &access).await, Ok(()), "{known}");
    }
    for (unknown, words) in [
        ("house/big-modle", "there is no model \"house/big-modle\": did you mean house/big-model?"),
        ("hose/big-model", "did you mean house/big-model?"),
        ("gpt-4oo", "did you mean gpt-4o?"),
        ("demos", "did you mean demo?"),
        ("house/zzz", "house does not list it"),
        ("nobody-knows-this-one", "write it as provider/model"),
        ("quite-another/x", "there is no provider quite-another"),
    ] {
        let error = models.check_name(unknown, &access).await.expect_err(unknown).to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// DY-03
#[tokio::test]
async fn test_is_one_real_request_and_its_error_is_said_in_plain_words() {
    let replies = [
        Reply::text("OK"),
        Reply::status(401),
        Reply::status(503),
        Reply::status(404).saying("no such model"),
    ];
    let script = ScriptedModel::queue(replies).await;
    let mut providers = local();
    providers.get_mut("anthropic").expect("there").base_url = script.url();
    let models = models(&config(), &providers);
    let mut access = ModelAccess::default();
    let missing = models.test("anthropic", None, &access).await.expect_err("no key");
    assert!(matches!(missing, ModelError::NoKey { .. }), "{missing:?}");

    access.insert("anthropic", key());
    let tested = models.test("anthropic", None, &access).await.expect("an answer");
    assert_eq!(tested.model, "anthropic/claude-sonnet-4-5");
    for words in [
        "anthropic rejected its key: enter a valid one",
        "anthropic returned an error (503): refused by the script. Try again in a while.",
        "anthropic refused the request (404): no such model. Check the address and the name of the \
         model.",
    ] {
        let error = models.test("anthropic", None, &access).await.expect_err(words);
        assert_eq!(error.in_plain_words(), words);
    }
    // A test is not repeated, not even if the provider is busy.
    assert_eq!(script.seen().len(), 4);
    let nobody = models.test("ollama", None, &access).await.expect_err("nothing listens");
    assert!(nobody.in_plain_words().contains("Check the address"), "{nobody:?}");
}

#[tokio::test]
async fn key_is_sent_only_to_the_address_it_was_entered_for() {
    let providers = local();
    let models = models(&config(), &providers);
    let mut access = ModelAccess::default();
    let address = providers["openai"].base_url.clone();
    access.insert_key("openai", KeyOwner::Person, Some(key()), Some(address));
    models.resolve("openai/gpt-4o", &access).await.expect("a model");
    // The server's admin moves the provider.
    let moved = |key: StoredKey| StoredProvider {
        base_url: Some("http://127.0.0.1:9/other".into()),
        key,
        ..StoredProvider::default()
    };
    models.add_stored(&mut access, "openai", moved(StoredKey::None));
    let error = models.resolve("openai/gpt-4o", &access).await.expect_err("another address");
    assert!(matches!(error, ModelError::AddressChanged { .. }), "{error:?}");
    let error = models.resolve("openai/gpt-4o", &access.of_server()).await.expect_err("no key");
    assert!(matches!(error, ModelError::NoKey { .. }), "{error:?}");
    models.add_stored(&mut access, "openai", moved(StoredKey::Known(key())));
    models.resolve("openai/gpt-4o", &access.of_server()).await.expect("a model");
}

/// DY-01
#[tokio::test]
async fn windows_and_prices_of_a_list_are_used() {
    let script = ScriptedModel::queue([]).await;
    script.list(&["listed"]);
    let mut providers = local();
    let house = ProviderConfig::new(ProviderKind::OpenAiCompatible, script.url());
    providers.insert("house".into(), house);
    let models = models(&config(), &providers);
    let access = ModelAccess::default();
    let listed = models.list("house", &access).await.expect("a list");
    assert_eq!(listed.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["listed"]);
    let error = models.list("openai", &access).await.expect_err("no key");
    assert!(matches!(error, ModelError::NoKey { .. }), "{error:?}");
}
