//! All routes, one file for each resource.

mod account;
mod agents;
mod approvals;
mod budgets;
mod chat;
mod clients;
mod context;
mod context_file;
mod conversations;
pub(crate) mod events;
mod file_form;
mod file_reading;
mod file_runs;
mod file_uploads;
mod file_versions;
mod files;
pub(crate) mod mcp;
mod model_keys;
mod models;
mod operations;
mod projects;
mod sessions;
mod tools;
mod usage;
mod work;
mod worker_space;

use crate::{App, console, docs, error::Error, middleware, openapi};
use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::StatusCode,
    middleware::{from_fn, from_fn_with_state},
    response::IntoResponse,
};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Routes whose requests a project's worker space counts.
fn in_worker_space() -> OpenApiRouter<App> {
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
        .routes(routes!(context::interaction, context::change, context::forget))
        .routes(routes!(context::history))
        .routes(routes!(context_file::export))
        .routes(routes!(context_file::import))
}

/// Routes whose requests no worker space counts.
fn uncounted() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::preamble())
        .routes(routes!(projects::create, projects::list))
        .routes(routes!(projects::delete))
        .routes(routes!(worker_space::show, worker_space::close))
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
        .routes(routes!(approvals::keep_waiting))
        .routes(routes!(approvals::ask_again))
        .routes(routes!(approvals::decide))
        .routes(routes!(approvals::grants))
        .routes(routes!(approvals::withdraw))
        .routes(routes!(approvals::audit))
        .routes(routes!(clients::connect, clients::list))
        .routes(routes!(clients::renew))
        .routes(routes!(clients::disconnect))
        .routes(routes!(conversations::create, conversations::list))
        .routes(routes!(conversations::show, conversations::update, conversations::delete))
        .routes(routes!(files::info))
        .routes(routes!(files::sync))
        .routes(routes!(file_runs::begin))
        .routes(routes!(file_runs::renew))
        .routes(routes!(file_runs::end))
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
        .routes(routes!(chat::send_message))
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
        .routes(routes!(models::overview))
        .routes(routes!(models::put, models::delete))
        .routes(routes!(models::test))
        .routes(routes!(models::set_default))
        .routes(routes!(usage::show))
        .routes(routes!(budgets::list, budgets::set))
        .routes(routes!(model_keys::list))
        .routes(routes!(model_keys::show, model_keys::put, model_keys::delete))
        .routes(routes!(account::sign_in_options, account::sign_in))
        .routes(routes!(account::provider_sign_in))
        .routes(routes!(account::refresh))
        .routes(routes!(account::revoke))
        .routes(routes!(account::me))
        .routes(routes!(account::limits))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::end))
        .routes(routes!(sessions::sign_out_everywhere))
        .routes(routes!(operations::health))
        .routes(routes!(operations::ready))
}

/// Routes that read bodies of any length, without a time limit for the whole request.
fn uploads() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(files::upload))
        .routes(routes!(file_uploads::put_part))
        .routes(routes!(file_uploads::complete))
        .layer(DefaultBodyLimit::disable())
}

/// The OpenAPI document of all routes.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    uncounted().merge(in_worker_space()).merge(uploads()).into_openapi()
}

/// Everything that the main address answers.
pub(crate) fn all(app: App) -> Router {
    let counted = from_fn_with_state(app.clone(), middleware::in_worker_space);
    let time_limit = from_fn_with_state(app.clone(), middleware::with_time_limit);
    let routes = uncounted().merge(in_worker_space().route_layer(counted)).layer(time_limit);
    let mut router = Router::from(routes.merge(uploads()))
        .merge(console::routes())
        .merge(docs::routes())
        // Without the time limit: an MCP host may wait for a person to approve a call, or for
        // another run.
        .route(MCP_PROJECT, axum::routing::any(mcp::project))
        .route(MCP_CONVERSATION, axum::routing::any(mcp::conversation));
    if app.settings.metrics_listen.is_none() {
        router = router.merge(metrics());
    }
    let limits = from_fn_with_state(app.clone(), middleware::within_limits);
    router
        .layer(limits)
        .fallback(|| async { Error::NotFound })
        .method_not_allowed_fallback(|| async { Error::MethodNotAllowed })
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            Error::Internal.into_response()
        }))
        .layer(from_fn(middleware::measured))
        .with_state(app)
}

/// `/metrics`, for the main address or for a separate one.
pub(crate) fn metrics() -> Router<App> {
    Router::new().route("/metrics", axum::routing::get(operations::metrics))
}

/// These routes speak the Model Context Protocol, so they are not in the OpenAPI document.
pub(crate) const MCP_PROJECT: &str = "/mcp/projects/{project}";
pub(crate) const MCP_CONVERSATION: &str = "/mcp/conversations/{conversation}";

/// The status of successful answers without a body.
const DONE: StatusCode = StatusCode::NO_CONTENT;
