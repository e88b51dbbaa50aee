//! Events in the OpenAPI document: one named schema for each kind of event, so that generated
//! clients have one type for each.

use super::EventEnvelope;
use atelier_core::{Event, ProjectId};
use std::borrow::Cow;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema, SchemaFormat,
        schema::{Discriminator, Type},
    },
};

struct Kind {
    /// The event's name on the wire, such as `PROJECT_CREATED`.
    event: String,
    /// The name of the schema, such as `ProjectCreatedEvent`.
    name: String,
    schema: Schema,
}

/// The variants of `Event`, each with the fields that the envelope adds.
fn kinds() -> Vec<Kind> {
    let RefOr::T(Schema::OneOf(variants)) = Event::schema() else {
        unreachable!("an enum with fields is described as oneOf");
    };
    variants.items.into_iter().map(kind).collect()
}

fn kind(variant: RefOr<Schema>) -> Kind {
    let RefOr::T(Schema::Object(mut object)) = variant else {
        unreachable!("every variant of Event has named fields");
    };
    let event = match object.properties.get("type") {
        Some(RefOr::T(Schema::Object(tag))) => {
            tag.enum_values.iter().flatten().find_map(|name| name.as_str())
        }
        _ => None,
    };
    let event =
        event.unwrap_or_else(|| unreachable!("every variant of Event has a tag")).to_owned();
    let created_at = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    object.properties.insert("created_at".into(), created_at.into());
    object.properties.insert("project_id".into(), Ref::from_schema_name(ProjectId::name()).into());
    object.required.extend(["created_at".to_owned(), "project_id".to_owned()]);
    Kind { name: format!("{}Event", camel_case(&event)), event, schema: Schema::Object(object) }
}

fn camel_case(name: &str) -> String {
    let capitalized = |word: &str| format!("{}{}", &word[..1], word[1..].to_lowercase());
    name.split('_').map(capitalized).collect()
}

impl PartialSchema for EventEnvelope {
    fn schema() -> RefOr<Schema> {
        let kinds = kinds();
        let mapping = kinds.iter().map(|kind| {
            let schema = format!("#/components/schemas/{}", kind.name);
            (kind.event.clone(), schema)
        });
        let discriminator = Discriminator::with_mapping("type", mapping);
        let one_of = OneOfBuilder::new()
            .description(Some("An event of a project. `type` says which one."))
            .discriminator(Some(discriminator));
        let one_of = kinds
            .iter()
            .fold(one_of, |one_of, kind| one_of.item(Ref::from_schema_name(&kind.name)));
        one_of.into()
    }
}

impl ToSchema for EventEnvelope {
    fn name() -> Cow<'static, str> {
        "Event".into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Event::schemas(schemas);
        schemas.push((ProjectId::name().into(), ProjectId::schema()));
        schemas.extend(kinds().into_iter().map(|kind| (kind.name, RefOr::T(kind.schema))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_described_under_its_own_name() {
        let described: Vec<String> = kinds().into_iter().map(|kind| kind.event).collect();
        assert!(described.contains(&"PROJECT_CREATED".to_owned()), "{described:?}");
        let schema = serde_json::to_value(EventEnvelope::schema()).unwrap();
        let mapping = schema["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(
            mapping["TOOL_APPROVAL_REQUEST"],
            "#/components/schemas/ToolApprovalRequestEvent"
        );
        assert_eq!(mapping.len(), described.len(), "names are unique");
        assert_eq!(schema["oneOf"].as_array().unwrap().len(), described.len());
    }
}
