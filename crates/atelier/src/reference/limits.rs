//! Sizes, counts and times that calls, tasks and requests cannot exceed.

use super::{
    markdown::{code, table},
    settings,
    source::{Constant, Definition, Field, Value, constants, definition_of},
};
use atelier_core::policy::Policy;

/// Settings that are limits, beside those of `policy.limits` and `work.limits`, and those whose name
/// begins with `max_`.
const SETTINGS: [&str; 12] = [
    "files.cache_bytes",
    "gate.approval_high",
    "gate.approval_medium",
    "gate.dispatch",
    "gate.result",
    "server.body_limit",
    "server.file_body_limit",
    "server.request_timeout",
    "server.user_requests",
    "server.user_requests_per_second",
    "server.user_streams",
    "work.history",
];

/// Constants that bound only the work of the program itself, by crate, module and name. All other
/// constants whose names begin with `MAX_` are limits that a person or a program can run into.
const INTERNAL: [(&str, &str, &str); 43] = [
    ("atelier", "files/remote", "MAX_WHOLE"),
    ("atelier", "lists", "MAX_COLUMN"),
    ("atelier", "mcp_mounts", "MAX_MOUNTS"),
    ("atelier_client", "calls", "MAX_FILE_CALLS"),
    ("atelier_client", "editor", "MAX_SHOWN"),
    ("atelier_client", "interactive/memory", "MAX_ENTRY"),
    ("atelier_client", "interactive/memory", "MAX_HISTORY"),
    ("atelier_client", "journal", "MAX_GROWTH"),
    ("atelier_client", "screen", "MAX_HELD"),
    ("atelier_core", "mask/names", "MAX_BETWEEN"),
    ("atelier_core", "mask/names", "MAX_LOOK"),
    ("atelier_core", "mask/names", "MAX_NAME"),
    ("atelier_core", "policy/command/awk", "MAX_FORKS"),
    ("atelier_core", "policy/git", "MAX_EXCLUDED"),
    ("atelier_core", "remembered", "MAX_METADATA"),
    ("atelier_core", "remembered/quotes", "MAX_BYTES"),
    ("atelier_core", "remembered/quotes", "MAX_SCANNED"),
    ("atelier_core", "terms", "MAX_TERM"),
    ("atelier_executor", "grep", "MAX_HEAP"),
    ("atelier_executor", "grep", "MAX_PROGRAM"),
    ("atelier_executor", "repositories", "MAX_FINGERPRINTED"),
    ("atelier_executor", "shown", "MAX_COMPARED"),
    ("atelier_executor", "tools/seal", "MAX_ASKED"),
    ("atelier_executor", "tools/seal", "MAX_FOLDERS"),
    ("atelier_executor", "tools/seal", "MAX_NAMED"),
    ("atelier_executor", "tools/seal", "MAX_HIDDEN"),
    ("atelier_executor", "tools/path_restrictions", "MAX_RESTRICTED"),
    ("atelier_executor", "tools/planted", "MAX_DESCRIBED"),
    ("atelier_executor", "tools/planted", "MAX_EXAMINED"),
    ("atelier_executor", "tools/planted", "MAX_NAMES"),
    ("atelier_executor", "tools/repository", "MAX_COMMITS"),
    ("atelier_executor", "tools/repository", "MAX_NAMED"),
    ("atelier_executor", "walk", "MAX_UNREADABLE"),
    ("atelier_files", "folder_states", "MAX_FILES"),
    ("atelier_files", "folder_states", "MAX_FOLDERS"),
    ("atelier_files", "folder_states", "MAX_PLACED"),
    ("atelier_memory", "index/edge", "MAX_UNOPTIMIZED"),
    ("atelier_memory", "indexer", "MAX_FLUSH_DELAY"),
    ("atelier_memory", "indexer", "MAX_RETRY_DELAY"),
    ("atelier_memory", "retrieval", "MAX_UNINDEXED"),
    ("atelier_model", "demo/intent", "MAX_SEPARATORS"),
    ("atelier_model", "listing", "MAX_BYTES"),
    ("atelier_store", "rows/interactions", "MAX_TERMS"),
];

pub(super) fn document() -> String {
    format!(
        "# Limits\n\n\
         ## Tool calls\n\n\
         Set by `[policy.limits]` in `atelier.toml`. Sizes are in bytes, times in seconds.\n\n{}\n\
         ## Server and tasks\n\n\
         Set by the setting of that name.\n\n{}\n\
         ## Fixed\n\n\
         Constants of the program.\n\n{}",
        table(["limit", "default", "meaning"], tools()),
        table(["setting", "default", "meaning"], configured()),
        table(["limit", "value", "meaning", "crate and module"], fixed()),
    )
}

fn tools() -> Vec<[String; 3]> {
    let limits = Policy::builtin().limits();
    let values = serde_json::to_value(limits).expect("limits are JSON");
    let name = std::any::type_name_of_val(limits).rsplit("::").next().unwrap_or_default();
    let Some((_, Definition::Struct(fields))) = definition_of("atelier_core", name, &values) else {
        panic!("{name} is not a struct of atelier-core");
    };
    let bare: Vec<&str> =
        fields.iter().filter(|it| it.docs.is_empty()).map(|it| it.name.as_str()).collect();
    assert!(bare.is_empty(), "limits of tool calls without a doc comment: {bare:?}");
    let row = |field: Field| {
        let number = values[&field.name].as_i64().unwrap_or_default();
        [code(&field.name), grouped(i128::from(number)), field.docs]
    };
    fields.into_iter().map(row).collect()
}

fn configured() -> Vec<[String; 3]> {
    let all = settings::server();
    for key in SETTINGS {
        assert!(all.iter().any(|setting| setting.key == key), "there is no setting {key}");
    }
    let is_limit = |key: &str| {
        let name = key.rsplit('.').next().unwrap_or(key);
        SETTINGS.contains(&key) || key.starts_with("work.limits.") || name.starts_with("max_")
    };
    all.into_iter()
        .filter(|setting| is_limit(&setting.key) && !setting.key.starts_with("policy.limits."))
        .map(|setting| [code(&setting.key), setting.default, setting.docs])
        .collect()
}

fn fixed() -> Vec<[String; 4]> {
    let all = constants("MAX_");
    let is_it = |constant: &Constant, (krate, module, name): (&str, &str, &str)| {
        constant.krate == krate && constant.module == module && constant.name == name
    };
    for internal in INTERNAL {
        let is_there = all.iter().any(|constant| is_it(constant, internal));
        assert!(is_there, "there is no constant {internal:?}: correct reference/limits.rs");
    }
    let is_limit =
        |constant: &Constant| !INTERNAL.iter().any(|internal| is_it(constant, *internal));
    let row = |constant: Constant| {
        let Constant { krate, module, name, docs, value } = constant;
        assert!(!docs.is_empty(), "the limit {name} in {krate}, {module}.rs has no doc comment");
        let value = match value {
            Value::Number(number) => grouped(number),
            Value::Seconds(seconds) => format!("{} s", grouped(seconds)),
        };
        [code(&name), value, docs, format!("{}, `{module}`", krate.replace('_', "-"))]
    };
    all.into_iter().filter(is_limit).map(row).collect()
}

/// A number with commas between thousands.
fn grouped(number: i128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
