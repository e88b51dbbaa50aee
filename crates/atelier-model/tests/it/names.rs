//! How the name in an agent's configuration is resolved to a model.

use crate::{KEY, config, keys, models, provider};
use atelier_model::{
    Model, ModelAccess, ModelError, ModelInfo, Models, ModelsConfig, ProviderKind, Usage,
    known_providers,
};
use std::io::Write;

pub(crate) fn local() -> atelier_model::Providers {
    // A developer's environment may contain real keys, which this test must not find.
    let mut providers = provider(ProviderKind::OpenAi, "http://127.0.0.1:9/v1".into());
    for provider in providers.values_mut() {
        provider.key_env = provider.key_env.as_ref().map(|name| format!("{name}_THAT_IS_NOT_SET"));
    }
    // Tests use no Ollama of the developer's either: nothing listens on this port.
    providers.get_mut("ollama").expect("there").base_url = "http://127.0.0.1:9/v1".into();
    providers
}

#[tokio::test]
async fn names_are_resolved_to_models() {
    let mut config = config();
    config.aliases.insert("fast".into(), "ollama/llama3".into());
    config.aliases.insert("toy".into(), "demo".into());
    let mut providers = local();
    let listed = ModelInfo { context_window: Some(5), ..ModelInfo::default() };
    providers.get_mut("scripted").expect("there").models.insert("my-model".into(), listed);
    let models = models(&config, &providers);
    for (name, answers, window) in [
        ("demo", "demo", 128_000),
        ("toy", "demo", 128_000),
        ("fast", "ollama/llama3", 8192),
        ("ollama/library/llama3:8b", "ollama/library/llama3:8b", 8192),
        ("scripted/other", "scripted/other", 1000),
        ("my-model", "scripted/my-model", 5),
    ] {
        let model = models.resolve(name, &keys()).await.expect(name);
        assert_eq!((model.name(), model.context_window()), (answers, window), "{name}");
    }
}

#[tokio::test]
async fn demo_replaces_only_the_default_model_without_a_key() {
    let models = models(&config(), &local());
    let model = models.resolve("gpt-4", &ModelAccess::default()).await.expect("the demo");
    assert!(matches!(model, Model::Demo(_)), "{model:?}");
    let error = models.resolve("gpt-4o", &ModelAccess::default()).await.expect_err("no key");
    assert_eq!(
        error.to_string(),
        "no key for provider openai: set OPENAI_API_KEY_THAT_IS_NOT_SET or pick the demo model"
    );
    assert!(matches!(error, ModelError::NoKey { .. }), "{error:?}");
    let error = models.resolve("nobody/x", &ModelAccess::default()).await.expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "model nobody/x: unknown provider nobody (known providers: anthropic, ollama, openai, \
         openrouter, scripted)"
    );
}

#[tokio::test]
async fn key_is_read_from_a_file_and_an_empty_file_is_no_key() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let mut providers = local();
    providers.get_mut("openai").expect("there").key_file = Some(file.path().to_owned());
    let resolve = async |models: &Models| {
        models.resolve("gpt-4", &ModelAccess::default()).await.expect("a model")
    };

    writeln!(file, "  ").expect("written");
    assert_eq!(resolve(&models(&config(), &providers)).await.name(), "demo");

    writeln!(file, "{KEY}").expect("written");
    let models = models(&config(), &providers);
    let model = resolve(&models).await;
    assert_eq!(model.name(), "openai/gpt-4o");
    assert_eq!(model.cost(&Usage { input_tokens: 1_000_000, output_tokens: 100_000 }), Some(3.5));
    for shown in [format!("{models:?}"), format!("{model:?}"), format!("{:?}", keys())] {
        assert!(!shown.contains(KEY), "{shown}");
    }
}

#[test]
fn invalid_configuration_is_refused_at_start() {
    let aliased = |target: &str| {
        let mut config = config();
        config.aliases.insert("x".into(), target.into());
        config
    };
    let mut nowhere = known_providers();
    nowhere.get_mut("openai").expect("there").base_url = "localhost:1234".into();
    for (config, providers, words) in [
        (aliased("nobody/x"), known_providers(), "models.aliases.x"),
        (aliased("gpt-5"), known_providers(), "models.aliases.x"),
        (
            ModelsConfig { default_provider: "nobody".into(), ..config() },
            known_providers(),
            "default_provider",
        ),
        (
            ModelsConfig { timeout: std::time::Duration::ZERO, ..config() },
            known_providers(),
            "models.timeout",
        ),
        (config(), nowhere, "providers.openai.base_url"),
    ] {
        let error = Models::new(&config, &providers).expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
    }
}
