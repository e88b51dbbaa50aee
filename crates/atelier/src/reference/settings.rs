//! Settings with their defaults, from the default configuration and the doc comments of its types.

use super::{
    markdown::{code, table},
    source::{Definition, Field, definition, definition_of},
};
use crate::config::Config;
use atelier_core::AgentConfig;
use serde_json::Value;
use syn::{GenericArgument, PathArguments, Type};

pub(super) struct Setting {
    pub(super) key: String,
    /// As TOML; empty if the setting has no default.
    pub(super) default: String,
    pub(super) docs: String,
    /// Whether an environment variable can set it.
    environment: bool,
}

pub(super) fn document() -> String {
    let row = |setting: Setting| {
        let variable = format!("ATELIER_{}", setting.key.to_uppercase().replace('.', "__"));
        let variable = if setting.environment { code(&variable) } else { String::new() };
        [code(&setting.key), setting.default, variable, setting.docs]
    };
    let plain = |setting: Setting| [code(&setting.key), setting.default, setting.docs];
    let undefaulted = |setting: Setting| [code(&setting.key), setting.docs];
    format!(
        "# Settings\n\n\
         ## Server\n\n\
         `atelier.toml`, the environment and flags set these; [operating.md](../operating.md) \
         says how they\n\
         combine. Times are written like `30s`, `5m` or `24h`, sizes in bytes. `NAME` stands for \
         a name of\n\
         your choice.\n\n{}\n\
         ## Agent\n\n\
         The `config` of an agent, as the API takes it. Every field has a default.\n\n{}\n\
         ## Machine\n\n\
         `~/.config/atelier/client.toml`, read by `atelier connect`. A machine's rules only make \
         a server's\n\
         rules stricter, except for `accept`.\n\n{}",
        table(
            ["setting", "default", "environment variable", "meaning"],
            server().into_iter().map(row)
        ),
        table(["field", "default", "meaning"], agent().into_iter().map(plain)),
        table(["setting", "meaning"], machine().into_iter().map(undefaulted)),
    )
}

pub(super) fn server() -> Vec<Setting> {
    let defaults = serde_json::to_value(Config::default()).expect("a configuration is JSON");
    let mut settings = walk("atelier", "Config", &defaults);
    for setting in &mut settings {
        if setting.key == "data" {
            // The folder depends on the machine and the user.
            setting.default = "`atelier` in the user's data folder".into();
        }
    }
    settings
}

fn agent() -> Vec<Setting> {
    let defaults = serde_json::to_value(AgentConfig::default()).expect("a configuration is JSON");
    walk("atelier_core", "AgentConfig", &defaults)
}

fn machine() -> Vec<Setting> {
    walk("atelier_client", "ClientRules", &Value::Null)
}

fn walk(krate: &str, name: &str, defaults: &Value) -> Vec<Setting> {
    let mut settings = Vec::new();
    let (krate, found) =
        definition(krate, name).unwrap_or_else(|| panic!("{krate} has no type {name}"));
    add(&krate, &found, "", defaults, &mut settings);
    let bare: Vec<&str> =
        settings.iter().filter(|it| it.docs.is_empty()).map(|it| it.key.as_str()).collect();
    assert!(bare.is_empty(), "settings of {name} without a doc comment: {bare:?}");
    settings
}

fn add(
    krate: &str,
    found: &Definition,
    prefix: &str,
    defaults: &Value,
    settings: &mut Vec<Setting>,
) {
    let Definition::Struct(fields) = found else { panic!("{prefix} is not a struct") };
    for field in fields {
        let key = format!("{prefix}{}", field.name);
        let default = defaults.get(&field.name).unwrap_or(&Value::Null);
        add_field(krate, field, &key, default, settings);
    }
}

fn add_field(krate: &str, field: &Field, key: &str, default: &Value, settings: &mut Vec<Setting>) {
    match kind(krate, &field.ty, default) {
        Kind::Section(krate, section) => {
            add(&krate, &section, &format!("{key}."), default, settings);
        }
        Kind::Named(krate, section) => {
            settings.push(leaf(key, default, &field.docs, false));
            add(&krate, &section, &format!("{key}.NAME."), &Value::Null, settings);
        }
        Kind::Choice(variants) => {
            settings.push(leaf(key, default, &field.docs, false));
            for (kind, field) in variants {
                let docs = format!("With `kind = \"{kind}\"`. {}", field.docs);
                settings.push(leaf(&format!("{key}.{}", field.name), &Value::Null, &docs, false));
            }
        }
        Kind::Value => {
            let scalar = !default.is_array() && !default.is_object();
            let scalar = scalar && !key.contains(".NAME.") && !is_collection(&field.ty);
            settings.push(leaf(key, default, &field.docs, scalar));
        }
    }
}

fn leaf(key: &str, default: &Value, docs: &str, environment: bool) -> Setting {
    Setting { key: key.to_owned(), default: shown(default), docs: docs.to_owned(), environment }
}

/// A default as a reader needs it: long values by the names of what they hold.
fn shown(default: &Value) -> String {
    let names = |names: Vec<&str>| names.into_iter().map(code).collect::<Vec<_>>().join(", ");
    match default {
        Value::Null => String::new(),
        Value::Array(items) if items.is_empty() => code("[]"),
        Value::Array(items) if items.iter().all(Value::is_object) => {
            names(items.iter().filter_map(|item| item.get("name")?.as_str()).collect())
        }
        Value::Object(map) if map.is_empty() => code("{}"),
        Value::Object(map) if map.values().all(Value::is_object) => {
            names(map.keys().map(String::as_str).collect())
        }
        Value::Object(map) => {
            let pair = |(key, value): (&String, &Value)| format!("{} = {value}", toml_key(key));
            code(&format!("{{ {} }}", map.iter().map(pair).collect::<Vec<_>>().join(", ")))
        }
        other => code(&other.to_string()),
    }
}

fn toml_key(key: &str) -> String {
    let bare = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { format!("{key:?}") }
}

enum Kind {
    /// A struct of settings, or an optional one.
    Section(String, Definition),
    /// Sections by names that the configuration chooses.
    Named(String, Definition),
    /// An enum whose variants have fields: the variant's name and each field.
    Choice(Vec<(String, Field)>),
    Value,
}

fn kind(krate: &str, ty: &Type, default: &Value) -> Kind {
    let Type::Path(path) = ty else { return Kind::Value };
    let Some(last) = path.path.segments.last() else { return Kind::Value };
    let generics: Vec<&Type> = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => {
            arguments.args.iter().filter_map(as_type).collect()
        }
        _ => Vec::new(),
    };
    let name = last.ident.to_string();
    match (name.as_str(), generics.as_slice()) {
        ("Option", [inner]) => kind(krate, inner, default),
        ("BTreeMap" | "HashMap", [_, inner]) => match kind(krate, inner, &Value::Null) {
            Kind::Section(krate, section) => Kind::Named(krate, section),
            _ => Kind::Value,
        },
        // Rules are described where they are explained: they are a language of their own.
        (_, [_, ..]) | ("RuleFile", _) => Kind::Value,
        _ => {
            let first = path.path.segments.first().map(|first| first.ident.to_string());
            let krate = first.filter(|first| first.starts_with("atelier_")).unwrap_or(krate.into());
            match definition_of(&krate, &name, default) {
                Some((krate, Definition::Alias(ty))) => kind(&krate, &ty, default),
                Some((krate, section @ Definition::Struct(_))) if has_names(&section) => {
                    Kind::Section(krate, section)
                }
                Some((_, Definition::Enum(variants))) => {
                    let fields: Vec<(String, Field)> = variants
                        .iter()
                        .flat_map(|variant| {
                            variant
                                .fields
                                .iter()
                                .map(|field| (variant.name.to_lowercase(), field.clone()))
                        })
                        .filter(|(_, field)| !field.name.is_empty())
                        .collect();
                    if fields.is_empty() { Kind::Value } else { Kind::Choice(fields) }
                }
                _ => Kind::Value,
            }
        }
    }
}

fn has_names(section: &Definition) -> bool {
    matches!(section, Definition::Struct(fields) if fields.iter().all(|field| !field.name.is_empty()))
}

fn as_type(argument: &GenericArgument) -> Option<&Type> {
    match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

fn is_collection(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let last = path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
    ["Vec", "BTreeMap", "HashMap", "Map", "RuleFile"].contains(&last.as_str())
}
