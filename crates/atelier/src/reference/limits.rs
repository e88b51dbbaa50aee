//! Sizes, counts and times that calls, tasks and requests cannot exceed.

use super::{
    markdown::{code, table},
    settings,
    source::{Constant, Definition, Field, Value, constants, definition_of},
};
use atelier_core::policy::Policy;

/// Settings that are limits, beside those of `policy.limits` and `work.limits`.
const SETTINGS: [&str; 20] = [
    "files.cache_bytes",
    "files.max_upload",
    "gate.approval_high",
    "gate.approval_medium",
    "gate.dispatch",
    "gate.max_open_calls",
    "gate.max_open_calls_of_token",
    "gate.max_stored_bytes",
    "gate.result",
    "server.body_limit",
    "server.file_body_limit",
    "server.request_timeout",
    "server.user_requests",
    "server.user_requests_per_second",
    "server.user_streams",
    "work.history",
    "work.max_queue",
    "work.max_running",
    "worker_space.max_active",
    "worker_space.max_waiting",
];

/// Constants that a person or a program can run into, by crate and name.
const FIXED: [(&str, &str); 24] = [
    ("atelier_core", "MAX_CONTENT"),
    ("atelier_core", "MAX_ATTACHMENTS"),
    ("atelier_core", "MAX_ATTACHMENT"),
    ("atelier_core", "MAX_TITLE"),
    ("atelier_core", "MAX_TASKS"),
    ("atelier_core", "MAX_DESCRIPTION"),
    ("atelier_core", "MAX_TOOLS"),
    ("atelier_core", "MAX_FREE_FORM"),
    ("atelier_core", "MAX_PATH_BYTES"),
    ("atelier_core", "MAX_NAME_BYTES"),
    ("atelier_core", "MAX_DEPTH"),
    ("atelier_core", "MAX_ALTERNATIVES"),
    ("atelier_executor", "MAX_LINE"),
    ("atelier_executor", "MAX_LINKS"),
    ("atelier_executor", "MAX_PROCESSES"),
    ("atelier_files", "MAX_PARTS"),
    ("atelier_files", "MAX_PART"),
    ("atelier_model", "MAX_ANSWER_BYTES"),
    ("atelier_runtime", "MAX_CALLS"),
    ("atelier_runtime", "MAX_RESULT"),
    ("atelier_server", "MAX_TOKEN"),
    ("atelier_server", "MAX_SESSION"),
    ("atelier_server", "MAX_FILES"),
    ("atelier_server", "MAX_WAIT"),
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
        table(["limit", "value", "meaning", "crate"], fixed()),
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
    let of_tasks = |key: &str| key.starts_with("work.limits.");
    for key in SETTINGS {
        assert!(all.iter().any(|setting| setting.key == key), "there is no setting {key}");
    }
    all.into_iter()
        .filter(|setting| SETTINGS.contains(&setting.key.as_str()) || of_tasks(&setting.key))
        .map(|setting| [code(&setting.key), setting.default, setting.docs])
        .collect()
}

fn fixed() -> Vec<[String; 4]> {
    let constants = constants("MAX_");
    let row = |(krate, name): (&str, &str)| {
        let is_it = |constant: &&Constant| constant.krate == krate && constant.name == name;
        let Some(constant) = constants.iter().find(is_it) else {
            panic!("{krate} has no constant {name}: correct the list in reference/limits.rs");
        };
        assert!(!constant.docs.is_empty(), "the limit {name} of {krate} has no doc comment");
        let value = match constant.value {
            Value::Number(number) => grouped(number),
            Value::Seconds(seconds) => format!("{} s", grouped(seconds)),
        };
        [code(name), value, constant.docs.clone(), krate.replace('_', "-")]
    };
    FIXED.into_iter().map(row).collect()
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
