//! All routes, one file a resource.

mod account;
mod agents;
mod approvals;
mod chat;
mod clients;
mod context;
mod context_file;
mod conversations;
mod events;
mod file_form;
mod file_reading;
mod file_uploads;
mod file_versions;
mod files;
pub(crate) mod mcp;
mod model_keys;
mod operations;
mod projects;
mod tools;
mod work;
mod worker_space;

use crate::{App, console, docs, error::Error, guard, openapi};
use axum::{Router, extract::DefaultBodyLimit, http::StatusCode, middleware, response::IntoResponse};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Routes behind the door of a project's worker space.
fn in_space() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(projects::show, projects::update))
        .routes(routes!(agents::create, agents::list))
        .routes(routes!(agents::show, agents::update, agents::delete))
        .routes(routes!(events::project))
        .routes(routes!(context::clear))
        .routes(routes!(context::search))
        .routes(routes!(context::stats))
        .routes(routes!(context::prune))
        .routes(routes!(context::reindex))
        .routes(routes!(context::interaction, context::forget))
        .routes(routes!(context_file::export))
        .routes(routes!(context_file::import))
}

fn outside() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::preamble())
        .routes(routes!(projects::create, projects::list))
        .routes(routes!(projects::delete))
        .routes(routes!(worker_space::show, worker_space::end))
        .routes(routes!(worker_space::reset))
        .routes(routes!(events::mine))
        .routes(routes!(tools::execute))
        .routes(routes!(tools::list))
        .routes(routes!(tools::available))
        .routes(routes!(tools::policy))
        .routes(routes!(tools::show))
        .routes(routes!(tools::cancel))
        .routes(routes!(tools::preview))
        .routes(routes!(tools::claim))
        .routes(routes!(tools::result))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::mine))
        .routes(routes!(approvals::approve))
        .routes(routes!(approvals::reject))
        .routes(routes!(approvals::decide))
        .routes(routes!(approvals::grants))
        .routes(routes!(approvals::withdraw))
        .routes(routes!(approvals::audit))
        .routes(routes!(clients::connect, clients::list))
        .routes(routes!(clients::renew))
        .routes(routes!(clients::disconnect))
        .routes(routes!(conversations::create, conversations::list))
        .routes(routes!(conversations::show, conversations::update))
        .routes(routes!(files::info))
        .routes(routes!(files::sync))
        .routes(routes!(file_reading::download, files::change, files::delete))
        .routes(routes!(file_reading::archive))
        .routes(routes!(file_versions::list))
        .routes(routes!(file_versions::download))
        .routes(routes!(file_versions::restore))
        .routes(routes!(file_versions::diff))
        .routes(routes!(file_versions::link))
        .routes(routes!(file_uploads::begin))
        .routes(routes!(file_uploads::show, file_uploads::cancel))
        .routes(routes!(chat::create, chat::list))
        .routes(routes!(chat::show, chat::update, chat::delete))
        .routes(routes!(chat::messages))
        .routes(routes!(chat::say))
        .routes(routes!(chat::events))
        .routes(routes!(work::tasks))
        .routes(routes!(work::task))
        .routes(routes!(work::cancel_task))
        .routes(routes!(work::resume_task))
        .routes(routes!(work::plans))
        .routes(routes!(work::plan))
        .routes(routes!(work::approve_plan))
        .routes(routes!(work::reject_plan))
        .routes(routes!(work::cancel_plan))
        .routes(routes!(work::bus))
        .routes(routes!(model_keys::list))
        .routes(routes!(model_keys::show, model_keys::put, model_keys::delete))
        .routes(routes!(account::ways, account::sign_in))
        .routes(routes!(account::provider_sign_in))
        .routes(routes!(account::refresh))
        .routes(routes!(account::revoke))
        .routes(routes!(account::me))
        .routes(routes!(operations::health))
        .routes(routes!(operations::ready))
}

/// Bodies of any length, for as long as they keep coming.
fn uploads() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(files::upload))
        .routes(routes!(file_uploads::put_part))
        .routes(routes!(file_uploads::complete))
        .layer(DefaultBodyLimit::disable())
}

/// What the routes say about themselves.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    outside().merge(in_space()).merge(uploads()).into_openapi()
}

/// Everything the main address answers.
pub(crate) fn all(app: App) -> Router {
    let guarded = in_space().route_layer(middleware::from_fn_with_state(app.clone(), guard::in_space));
    let hurried = middleware::from_fn_with_state(app.clone(), guard::in_time);
    let mut router = Router::from(outside().merge(guarded).layer(hurried).merge(uploads()))
        .merge(console::routes())
        .merge(docs::routes())
        // Outside of the usual time: a host waits for a person, whose time the gate keeps, or for another run.
        .route(MCP_PROJECT, axum::routing::any(mcp::project))
        .route(MCP_CONVERSATION, axum::routing::any(mcp::conversation));
    if app.settings.metrics_listen.is_none() {
        router = router.merge(metrics());
    }
    router
        .fallback(|| async { Error::NotFound })
        .method_not_allowed_fallback(|| async { Error::MethodNotAllowed })
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| Error::Internal.into_response()))
        .layer(middleware::from_fn(guard::measured))
        .with_state(app)
}

/// `/metrics`, for the main address or one of its own.
pub(crate) fn metrics() -> Router<App> {
    Router::new().route("/metrics", axum::routing::get(operations::metrics))
}

/// Behind these is another protocol than HTTP's own, so they are not in the document.
pub(crate) const MCP_PROJECT: &str = "/mcp/projects/{project}";
pub(crate) const MCP_CONVERSATION: &str = "/mcp/conversations/{conversation}";

/// For answers without a body.
const DONE: StatusCode = StatusCode::NO_CONTENT;
