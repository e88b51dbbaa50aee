//! The OpenAPI document.

use crate::routes::events::ServerSentEvent;
use atelier_api::{
    Problem,
    events::{EventEnvelope, MessageDelta, StreamReset, ToolOutput},
};
use utoipa::{
    Modify, OpenApi, ToSchema,
    openapi::{
        ContentBuilder, OpenApi as Document, Ref, RefOr, Response, ResponseBuilder,
        path::{Operation, ParameterIn},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Atelier",
        description = "The workspace server for AI agents. Every answer that is not a success is a \
                       problem (RFC 9457) with a stable `code`. Every route works with and without \
                       a trailing slash.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem, ServerSentEvent, EventEnvelope, MessageDelta, ToolOutput, StreamReset)),
    security(("token" = [])),
    modifiers(&BearerToken)
)]
struct Preamble;

struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
}

/// The parts of the document that belong to no route.
pub(crate) fn preamble() -> Document {
    Preamble::openapi()
}

/// The whole document. It does not need a running server.
pub fn document() -> Document {
    let mut document = crate::routes::document();
    complete(&mut document);
    document
}

/// Names every operation, and adds the problems that follow from its parameters and its body.
fn complete(document: &mut Document) {
    for (path, item) in &mut document.paths.paths {
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            name(operation);
            let added = problems(path, operation);
            let responses = &mut operation.responses.responses;
            for (status, description) in added {
                responses.entry(status.to_owned()).or_insert_with(|| problem(description));
            }
            // Errors that a handler documents have no body there: it is always a problem.
            for (status, response) in responses {
                if let RefOr::T(response) = response
                    && status.starts_with(['4', '5'])
                    && response.content.is_empty()
                {
                    *response = problem_response(&response.description);
                }
            }
        }
    }
}

/// Handlers are called `list` and `show`. Generated clients need unique names.
fn name(operation: &mut Operation) {
    let tag =
        operation.tags.iter().flatten().next().map_or(String::new(), |tag| tag.replace(' ', "_"));
    operation.operation_id = operation.operation_id.take().map(|id| format!("{tag}_{id}"));
}

fn problems(path: &str, operation: &Operation) -> Vec<(&'static str, &'static str)> {
    let takes_body = operation.request_body.is_some();
    let is_open = operation
        .security
        .as_ref()
        .is_some_and(|needs| needs.iter().any(|need| *need == Default::default()));
    let has_query = operation.parameters.as_ref().is_some_and(|parameters| {
        parameters.iter().any(
            |parameter| matches!(parameter, RefOr::T(it) if it.parameter_in == ParameterIn::Query),
        )
    });
    let mut problems = vec![
        ("408", "The request arrived too slowly"),
        ("500", "The server failed; its log says why"),
        ("503", "A backing service does not answer; try again"),
    ];
    if takes_body {
        problems.extend([
            ("400", "The body is not well-formed JSON"),
            ("413", "The body is too large"),
            ("415", "The body is not application/json"),
        ]);
    }
    if takes_body || has_query {
        problems.push(("422", "A value is missing, unknown or out of range; `detail` names it"));
    }
    if !is_open {
        problems.extend([
            ("401", "The token is missing, expired, revoked or not valid"),
            ("403", "The token's role may not do this"),
            ("429", "Too many requests, or one of your limits is reached; see `Retry-After`"),
        ]);
    }
    if path.contains('{') {
        problems.extend([
            ("404", "It does not exist, or it is not yours"),
            ("409", "The worker space was reset while the request ran"),
        ]);
    }
    problems
}

fn problem(description: &str) -> RefOr<Response> {
    RefOr::T(problem_response(description))
}

fn problem_response(description: &str) -> Response {
    let schema = Ref::from_schema_name(Problem::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new()
        .description(description)
        .content("application/problem+json", content)
        .build()
}
