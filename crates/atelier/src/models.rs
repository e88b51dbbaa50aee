//! `atelier models`: the models that agents can use, and the keys of their providers.

use crate::remote::Remote;
use anyhow::{Result, bail};
use atelier_api::models::{
    DefaultModelChange, KeyOrigin, KnownModel, ModelLevel, ModelProvider, ModelsOverview,
    ProviderChange, ProviderTest, TestOutcome,
};
use atelier_client::{ApiClient, read_secret};
use clap::{Subcommand, ValueEnum};
use reqwest::Method;
use std::{io::Write, process::ExitCode, time::Duration};

/// Lists the models that your agents can use, and manages the keys of their providers. Changes
/// count immediately, without a restart.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// List providers, their models, and the default model
    List,
    /// Store a key, read from standard input or asked for in the terminal; the key is tested first
    Add {
        /// The provider, such as `openai`, `anthropic` or `ollama`
        provider: String,
        /// The address of its API, for providers of the server
        #[arg(long, value_name = "URL")]
        address: Option<String>,
        /// The protocol of a new provider of the server
        #[arg(long, value_name = "KIND", value_parser = ["open_ai", "open_ai_compatible",
            "anthropic", "ollama"])]
        kind: Option<String>,
        /// The provider needs no key
        #[arg(long)]
        no_key: bool,
        /// Store it even if the test fails
        #[arg(long)]
        force: bool,
        /// Who can use the key
        #[arg(long = "for", value_enum, default_value_t, value_name = "WHOM")]
        level: Level,
    },
    /// Send a real request to a provider, or to all that have what they need
    Test {
        provider: Option<String>,
        /// The model to ask, by its name at the provider
        #[arg(long)]
        model: Option<String>,
    },
    /// Show or choose the default model
    Default {
        /// `provider/model` or `demo`
        model: Option<String>,
        /// Use the first model that has what it needs
        #[arg(long, conflicts_with = "model")]
        automatic: bool,
        /// Who gets this default model
        #[arg(long = "for", value_enum, default_value_t, value_name = "WHOM")]
        level: Level,
    },
    /// Remove the stored key of a provider, or a provider of the server
    Remove {
        provider: String,
        /// The level at which it is stored
        #[arg(long = "for", value_enum, default_value_t, value_name = "WHOM")]
        level: Level,
    },
}

/// For whom a key or a default model is.
#[derive(Clone, Copy, Default, ValueEnum)]
enum Level {
    /// Your own agents
    #[default]
    Me,
    /// Everybody in your tenant, if you are its admin
    Tenant,
    /// Everybody on the server, if you are its admin
    Server,
}

impl From<Level> for ModelLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Me => Self::Own,
            Level::Tenant => Self::Tenant,
            Level::Server => Self::Server,
        }
    }
}

/// A model may take a minute to give its first word.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(act(args))
}

async fn act(Args { remote, action }: Args) -> Result<ExitCode> {
    let api = remote.client("models")?;
    let json = remote.json;
    match action.unwrap_or(Action::List) {
        Action::List => {
            let overview: ModelsOverview = api.get("/my/models").await?;
            print(json, &overview, listing)?;
        }
        Action::Add { provider, address, kind, no_key, force, level } => {
            let key = match no_key {
                true => None,
                false => Some(read_secret(&format!("Key for {provider}: "))?),
            };
            if key.as_deref() == Some("") {
                bail!("no key was given: pipe it to standard input, or add --no-key");
            }
            let level = level.into();
            let test = ProviderTest {
                level,
                key: key.clone(),
                kind: kind.clone(),
                base_url: address.clone(),
                model: None,
            };
            let outcome = try_out(&api, &provider, &test).await?;
            if let (Some(problem), false) = (&outcome.problem, force) {
                bail!("{problem} Nothing was stored; --force stores it anyway.");
            }
            let change = ProviderChange { level, key, kind, base_url: address, models: None };
            api.put_only(&format!("/my/models/providers/{provider}"), &change).await?;
            print(json, &outcome, |outcome| {
                format!("Stored. {}\n", described(&provider, outcome))
            })?;
        }
        Action::Test { provider, model } => return test(&api, provider, model, json).await,
        Action::Default { model, automatic, level } => {
            if model.is_some() || automatic {
                let change = DefaultModelChange { level: level.into(), model };
                api.put_only("/my/models/default", &change).await?;
            }
            let overview: ModelsOverview = api.get("/my/models").await?;
            print(json, &overview.default, |_| default_line(&overview))?;
        }
        Action::Remove { provider, level } => {
            let level = ModelLevel::from(level).as_str();
            api.delete(&format!("/my/models/providers/{provider}?level={level}")).await?;
            if !json {
                eprintln!("Removed.");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Tests one provider, or all that have what they need. The exit code is 1 if one fails.
async fn test(
    api: &ApiClient,
    provider: Option<String>,
    model: Option<String>,
    json: bool,
) -> Result<ExitCode> {
    let names = match provider {
        Some(name) => vec![name],
        None => {
            let overview: ModelsOverview = api.get("/my/models").await?;
            let usable = |provider: &ModelProvider| {
                provider.key != KeyOrigin::Missing
                    && (provider.key != KeyOrigin::NotNeeded || provider.problem.is_none())
            };
            overview.providers.into_iter().filter(usable).map(|provider| provider.name).collect()
        }
    };
    if names.is_empty() {
        bail!("no provider has a key: add one with `atelier models add openai`");
    }
    let mut code = ExitCode::SUCCESS;
    for name in names {
        let test = ProviderTest { model: model.clone(), ..ProviderTest::default() };
        let outcome = try_out(api, &name, &test).await?;
        if !outcome.success {
            code = ExitCode::FAILURE;
        }
        print(json, &outcome, |outcome| described(&name, outcome) + "\n")?;
    }
    Ok(code)
}

async fn try_out(api: &ApiClient, provider: &str, test: &ProviderTest) -> Result<TestOutcome> {
    let path = format!("/my/models/providers/{provider}/test");
    let request = api.request(Method::POST, &path).timeout(TEST_TIMEOUT).json(test);
    Ok(api.json(request).await?)
}

fn described(provider: &str, outcome: &TestOutcome) -> String {
    match (&outcome.model, outcome.milliseconds, &outcome.problem) {
        (Some(model), Some(time), _) => format!("{model} answered in {time} ms."),
        (_, _, Some(problem)) => format!("{provider}: {problem}"),
        _ => format!("{provider}: no answer"),
    }
}

fn print<T: serde::Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<()> {
    let text =
        if json { format!("{}\n", serde_json::to_string_pretty(value)?) } else { text(value) };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn default_line(overview: &ModelsOverview) -> String {
    let default = &overview.default;
    let model = default.answered_by.as_deref().unwrap_or("none");
    let why = match (&default.problem, default.chosen) {
        (Some(problem), _) => format!(" ({problem})"),
        (None, Some(level)) => format!(" (chosen: {})", level.as_str()),
        (None, None) => " (the first that has what it needs)".to_owned(),
    };
    format!("default: {model}{why}\n")
}

fn listing(overview: &ModelsOverview) -> String {
    let mut text = default_line(overview);
    for alias in overview.aliases.iter().filter(|alias| alias.name != "default") {
        let target = alias.answered_by.as_deref().unwrap_or("no model");
        text += &format!("{} is answered by {target}\n", alias.name);
    }
    if overview.default.answered_by.as_deref() == Some("demo") {
        text += "No provider has a key: add one with `atelier models add openai`.\n";
    }
    for provider in &overview.providers {
        let key = match provider.key {
            KeyOrigin::Own => "your key",
            KeyOrigin::Tenant => "the tenant's key",
            KeyOrigin::Server | KeyOrigin::Configuration => "the server's key",
            KeyOrigin::NotNeeded => "needs no key",
            KeyOrigin::Missing => "no key",
            KeyOrigin::Unusable => "a key that has to be entered again",
        };
        let problem = provider.problem.as_ref().map_or(String::new(), |it| format!("; {it}"));
        text += &format!("\n{} ({key}{problem})\n", provider.name);
        text.extend(provider.models.iter().map(model_line));
    }
    text
}

fn model_line(model: &KnownModel) -> String {
    let window = model.context_window.map_or(String::new(), |tokens| format!("{tokens} tokens"));
    let price = match (model.input_price, model.output_price) {
        (Some(input), Some(output)) => format!("${input} in, ${output} out per million"),
        _ => String::new(),
    };
    format!("  {:40} {window:16} {price}", model.name).trim_end().to_owned() + "\n"
}
