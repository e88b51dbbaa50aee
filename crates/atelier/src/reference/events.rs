//! Every event of the event streams, from the `Event` enum and its doc comments.

use super::{
    markdown::{code, table},
    source::{Definition, Variant, definition},
};

/// Events that are sent but not stored, so that they are not variants of `Event`.
const UNSTORED: [[&str; 3]; 3] = [
    [
        "MESSAGE_DELTA",
        "`session_id`, `task_id`, `text`",
        "A piece of a message while the model is still writing it. It has no id and is not stored.",
    ],
    [
        "TOOL_OUTPUT",
        "`session_id`, `task_id`, `tool_id`, `text`",
        "What a running command has printed, in masked lines. It has no id and is not stored; the \
         call's result has the whole output.",
    ],
    [
        "STREAM_RESET",
        "`reason`, `last_event_id`, `snapshot`",
        "The first event of a stream whose cursor is too old or unknown. Continue from its id.",
    ],
];

pub(super) fn document() -> String {
    let Some((_, Definition::Enum(variants))) = definition("atelier_core", "Event") else {
        panic!("there is no enum Event");
    };
    let bare: Vec<&str> =
        variants.iter().filter(|it| it.docs.is_empty()).map(|it| it.name.as_str()).collect();
    assert!(bare.is_empty(), "events without a doc comment: {bare:?}");
    let unstored = UNSTORED.map(|[name, fields, docs]| [code(name), fields.into(), docs.into()]);
    format!(
        "# Events\n\n\
         What the event streams send; [api.md](../api.md#events) says how to follow them. The \
         `data` of every\n\
         event also has `type`, `project_id` and `created_at`. The OpenAPI document describes \
         each field.\n\n{}",
        table(["event", "fields", "meaning"], variants.iter().map(row).chain(unstored)),
    )
}

fn row(variant: &Variant) -> [String; 3] {
    let fields: Vec<String> = variant.fields.iter().map(|field| code(&field.name)).collect();
    [code(&screaming(&variant.name)), fields.join(", "), variant.docs.clone()]
}

/// `ProjectCreated` as the wire has it: `PROJECT_CREATED`.
fn screaming(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

#[test]
fn stored_events_have_the_names_on_the_wire() {
    assert_eq!(screaming("ToolResultAck"), "TOOL_RESULT_ACK");
    let deleted = atelier_core::Event::ProjectDeleted {};
    assert_eq!(deleted.name(), screaming("ProjectDeleted"));
}
