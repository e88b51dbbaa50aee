//! JSON Schemas of parameters and of structured results.

use super::{Kind, McpForm, Param, Presence, Surface, ToolDef, parse::EDIT};
use crate::policy::limits::Limits;
use serde_json::{Map, Value, json};

/// One field of a structured result.
#[derive(Debug)]
pub struct Output {
    pub name: &'static str,
    pub kind: OutputKind,
    pub is_required: bool,
}

#[derive(Debug)]
pub enum OutputKind {
    Text,
    Texts,
    Number,
    Flag,
    Time,
    OneOf(&'static [&'static str]),
}

impl Output {
    pub const fn new(name: &'static str, kind: OutputKind) -> Output {
        Output { name, kind, is_required: true }
    }

    pub const fn optional(self) -> Output {
        Output { is_required: false, ..self }
    }
}

impl ToolDef {
    /// The schema of the parameters. `root` is the name of the workspace in descriptions.
    pub fn schema(&self, surface: Surface, root: &str, limits: &Limits) -> Map<String, Value> {
        object(self.params, surface, root, limits)
    }
}

impl McpForm {
    /// The schema of the structured result, if there is one.
    pub fn output_schema(&self) -> Option<Map<String, Value>> {
        if self.output.is_empty() {
            return None;
        }
        let property = |output: &Output| {
            let schema = match output.kind {
                OutputKind::Text => json!({ "type": "string" }),
                OutputKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
                OutputKind::Number => json!({ "type": "integer" }),
                OutputKind::Flag => json!({ "type": "boolean" }),
                OutputKind::Time => json!({ "type": "string", "format": "date-time" }),
                OutputKind::OneOf(names) => json!({ "enum": names }),
            };
            (output.name.to_owned(), schema)
        };
        let required =
            self.output.iter().filter(|output| output.is_required).map(|output| output.name);
        Some(strict(self.output.iter().map(property).collect(), required.collect()))
    }
}

fn object(params: &[Param], surface: Surface, root: &str, limits: &Limits) -> Map<String, Value> {
    let offered = || params.iter().filter(|param| param.is_on(surface));
    let property = |param: &Param| (param.name.to_owned(), property(param, surface, root, limits));
    let required = offered().filter(|param| param.is_required(surface)).map(|param| param.name);
    strict(offered().map(property).collect(), required.collect())
}

/// A schema of an object that has no other fields.
fn strict(properties: Map<String, Value>, required: Vec<&str>) -> Map<String, Value> {
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), properties.into()),
        ("required".to_owned(), json!(required)),
        ("additionalProperties".to_owned(), json!(false)),
    ])
}

fn property(param: &Param, surface: Surface, root: &str, limits: &Limits) -> Value {
    let mut schema = match param.kind {
        Kind::File(_) | Kind::Path(_) | Kind::Entry(_) => json!({ "type": "string" }),
        Kind::Text(_) | Kind::Glob(_) | Kind::Checksum => json!({ "type": "string" }),
        Kind::Id => json!({ "type": "string", "format": "uuid" }),
        // To JSON Schema `10.0` is an integer, and the parser agrees.
        Kind::Number { .. } => json!({ "type": "integer", "minimum": 0 }),
        Kind::Timeout(time) => {
            json!({ "type": "integer", "minimum": 1, "maximum": time.most(limits) })
        }
        Kind::Flag if param.presence == Presence::Optional => json!({ "type": "boolean" }),
        Kind::Flag => json!({ "type": "boolean", "default": false }),
        Kind::Choice(choices) => {
            let names: Vec<&str> = choices.iter().map(|choice| choice.name).collect();
            json!({ "enum": names, "default": names.first() })
        }
        Kind::Edits => {
            let edit = object(EDIT, surface, root, limits);
            json!({ "type": "array", "items": edit, "minItems": 1 })
        }
        Kind::Words if param.is_required(surface) => {
            json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 })
        }
        Kind::Names(names) => {
            json!({ "type": "array", "items": { "type": "string", "enum": names } })
        }
        Kind::Words | Kind::Hosts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Paths => json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 }),
    };
    schema["description"] = description(param, surface, root).into();
    schema
}

fn description(param: &Param, surface: Surface, root: &str) -> String {
    let text = match (surface, param.mcp_description) {
        (Surface::Mcp, Some(text)) => text,
        _ => param.description,
    };
    text.replace("{root}", root)
}
