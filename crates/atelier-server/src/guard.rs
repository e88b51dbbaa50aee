//! What stands around the handlers: time, measures, and the way into a worker space.

use crate::{
    App,
    auth::{Caller, Person},
    body::{ConversationInPath, ProjectInPath, TenantInPath},
    error::Error,
};
use atelier_core::{Agent, Conversation, ConversationId, Role, Tenant, UserId};
use atelier_files::ConversationWorkspace;
use atelier_runtime::{Decider, Error as RuntimeError, WorkerSpace};
use atelier_store::{AgentRef, Author, Error as StoreError, Owned};
use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use metrics::{counter, histogram};
use std::{ops::Deref, sync::Arc, time::Instant};
use tracing::Instrument;

/// The worker space of the project in the path. Having it means being the project's owner.
#[derive(Clone)]
pub(crate) struct Space(Arc<WorkerSpace>);

impl Deref for Space {
    type Target = WorkerSpace;
    fn deref(&self) -> &WorkerSpace {
        &self.0
    }
}

impl FromRequestParts<App> for Space {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        let space = parts.extensions.get::<Space>().cloned();
        Ok(space.unwrap_or_else(|| unreachable!("a route that uses a space stands behind `in_space`")))
    }
}

/// The caller's own project, without entering its worker space: for what ends or removes that.
pub(crate) struct OwnProject(pub(crate) Owned);

impl FromRequestParts<App> for OwnProject {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let ProjectInPath(project) = ProjectInPath::from_request_parts(parts, app).await?;
        Ok(Self(app.store.owned_by(caller.user, project).await?))
    }
}

/// The project in the path for its owner, its worker space made if need be, without counting as a task
/// there: a call may wait for a person for minutes, and its result must not queue behind it.
pub(crate) struct Member(Arc<WorkerSpace>);

impl Deref for Member {
    type Target = WorkerSpace;
    fn deref(&self) -> &WorkerSpace {
        &self.0
    }
}

impl FromRequestParts<App> for Member {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let ProjectInPath(project) = ProjectInPath::from_request_parts(parts, app).await?;
        Ok(Self(app.spaces.enter(caller.user, project).await?))
    }
}

impl Member {
    /// The agent that a body names, by its name or its id.
    pub(crate) async fn named_agent(&self, name: &str) -> Result<Arc<Agent>, Error> {
        let wanted: AgentRef = name.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        self.agent(&wanted).await.map_err(|error| match error {
            RuntimeError::Store(StoreError::NotFound) => Error::NoAgent(name.chars().take(100).collect()),
            other => other.into(),
        })
    }
}

/// A project for its owner or an admin of the owner's tenant: for what only stops things.
pub(crate) struct OwnOrAdmin(pub(crate) Owned);

impl FromRequestParts<App> for OwnOrAdmin {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let ProjectInPath(project) = ProjectInPath::from_request_parts(parts, app).await?;
        let administered = (caller.role == Role::Admin).then_some(&caller.tenant);
        Ok(Self(app.store.owned_by_or_in(caller.user, administered, project).await?))
    }
}

/// The caller, in the tenant that the path names: it has to be their own.
pub(crate) struct InTenant(pub(crate) Caller);

impl FromRequestParts<App> for InTenant {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let TenantInPath(tenant) = TenantInPath::from_request_parts(parts, app).await?;
        if caller.tenant == tenant { Ok(Self(caller)) } else { Err(Error::NotFound) }
    }
}

/// The caller's own conversation. A colleague's, a stranger's and nobody's look alike.
pub(crate) struct OwnConversation {
    pub(crate) caller: Caller,
    pub(crate) owned: Owned,
    pub(crate) conversation: Conversation,
}

impl FromRequestParts<App> for OwnConversation {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let InTenant(caller) = InTenant::from_request_parts(parts, app).await?;
        let ConversationInPath(id) = ConversationInPath::from_request_parts(parts, app).await?;
        let owned = owned_conversation(app, &caller, id).await?;
        let conversation = app.store.conversation(&owned, id).await?;
        Ok(Self { caller, owned, conversation })
    }
}

/// The caller's own conversation, for whoever needs no more than whose it is.
pub(crate) async fn owned_conversation(
    app: &App,
    caller: &Caller,
    id: ConversationId,
) -> Result<Owned, Error> {
    Ok(app.store.owned_conversation(caller.user, &caller.tenant, id).await?)
}

/// The files of the caller's own conversation, to look at and to delete.
pub(crate) struct OwnFiles {
    pub(crate) workspace: ConversationWorkspace,
    pub(crate) conversation: Conversation,
    pub(crate) author: Author,
}

impl FromRequestParts<App> for OwnFiles {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let own = OwnConversation::from_request_parts(parts, app).await?;
        let workspace = app.files.workspace(&own.owned, &own.conversation);
        Ok(Self { workspace, conversation: own.conversation, author: Author::Person(own.caller.user) })
    }
}

/// The same for changes: not where the conversation's workspace is switched off.
pub(crate) struct OpenFiles(pub(crate) OwnFiles);

impl FromRequestParts<App> for OpenFiles {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        Person::from_request_parts(parts, app).await?;
        let files = OwnFiles::from_request_parts(parts, app).await?;
        match files.conversation.workspace_enabled {
            true => Ok(Self(files)),
            false => Err(atelier_files::Error::Disabled.into()),
        }
    }
}

/// An admin of the tenant in the path; to everybody else there is nothing there.
pub(crate) struct TenantAdmin {
    pub(crate) tenant: Tenant,
    pub(crate) user: UserId,
}

impl FromRequestParts<App> for TenantAdmin {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let TenantInPath(tenant) = TenantInPath::from_request_parts(parts, app).await?;
        if caller.role != Role::Admin || caller.tenant != tenant {
            return Err(Error::NotFound);
        }
        Ok(Self { tenant, user: caller.user })
    }
}

/// Whoever decides, and the program they do it with, for the record.
pub(crate) fn decider(caller: &Caller, headers: &HeaderMap) -> Decider {
    let via = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    Decider { user: caller.user, via: via.map(|agent| agent.chars().take(200).collect()) }
}

/// Lets the owner into the project's worker space, makes it if need be, and counts the request as a
/// task there: it waits its turn, keeps the space alive, and ends when the space is reset.
pub(crate) async fn in_space(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, &app).await?;
    let ProjectInPath(project) = ProjectInPath::from_request_parts(&mut parts, &app).await?;
    let what = format!("{} {}", parts.method, route(&parts.extensions));
    let (space, task) = app.spaces.begin(caller.user, project, &what).await?;
    parts.extensions.insert(Arc::new(caller));
    parts.extensions.insert(Space(space));
    Ok(task.run(next.run(Request::from_parts(parts, body))).await?)
}

fn route(extensions: &axum::http::Extensions) -> &str {
    extensions.get::<MatchedPath>().map_or("(none)", MatchedPath::as_str)
}

/// Whoever sends a request chooses its method: what is not one of the usual must not become a figure.
fn label(method: &Method) -> &'static str {
    const USUAL: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    USUAL.into_iter().find(|usual| method.as_str() == *usual).unwrap_or("other")
}

/// Keeps a request within its time. A stream counts until it begins. Not for uploads: how long those take is the
/// sender's line to say, and they watch over its pace themselves.
pub(crate) async fn in_time(State(app): State<App>, request: Request, next: Next) -> Response {
    // Twice: a slow body has its own, the peer's, and then it is we who are slow.
    let answer = tokio::time::timeout(app.settings.request_timeout * 2, next.run(request)).await;
    answer.unwrap_or_else(|_| Error::TookTooLong.into_response())
}

/// Measures a request.
pub(crate) async fn measured(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = label(request.method());
    let route = route(request.extensions()).to_owned();
    let span = tracing::info_span!("request", method, route, status = tracing::field::Empty);
    let mut response = next.run(request).instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    // Answers are somebody's own data unless they say otherwise.
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16().to_string();
    counter!("atelier_http_requests_total", "method" => method, "route" => route.clone(), "status" => status)
        .increment(1);
    histogram!("atelier_http_request_seconds", "method" => method, "route" => route)
        .record(start.elapsed().as_secs_f64());
    response
}
