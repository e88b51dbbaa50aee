//! Who may act on what: extractors that prove access to the project, conversation or tenant in the
//! path.
//!
//! A resource of somebody else gets the same answer as one that does not exist.

use crate::{
    App,
    auth::{Caller, Person},
    error::Error,
    path::{ConversationInPath, ProjectInPath, SessionInPath, TenantInPath, has_segment},
};
use atelier_core::{
    Conversation, ConversationId, ProjectId, Role, Tenant, UserId,
    gate::{Decider, GatedCall},
};
use atelier_files::ConversationWorkspace;
use atelier_runtime::{Error as RuntimeError, LoadedAgent, WorkerSpace};
use atelier_store::{AgentRef, Author, Error as StoreError, Owned, OwnedConversation};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use std::{ops::Deref, sync::Arc};

/// The worker space of the caller's own project, for a request that the worker space counts. Routes
/// that use it are behind `middleware::in_worker_space`.
#[derive(Clone)]
pub(crate) struct CountedSpace(pub(crate) Arc<WorkerSpace>);

impl Deref for CountedSpace {
    type Target = WorkerSpace;
    fn deref(&self) -> &WorkerSpace {
        &self.0
    }
}

impl FromRequestParts<App> for CountedSpace {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
        let space = parts.extensions.get::<CountedSpace>().cloned();
        Ok(space.unwrap_or_else(|| unreachable!("the route is behind `in_worker_space`")))
    }
}

/// The caller, and the project in the path if their token is for it. A token for one conversation
/// reaches only the routes of that conversation.
pub(crate) async fn caller_and_project(
    parts: &mut Parts,
    app: &App,
) -> Result<(Caller, ProjectId), Error> {
    let caller = Caller::from_request_parts(parts, app).await?;
    let ProjectInPath(project) = ProjectInPath::from_request_parts(parts, app).await?;
    if caller.place.is_some() {
        let conversation = SessionInPath::from_request_parts(parts, app).await.ok();
        caller.check_place(project, conversation.map(|SessionInPath(id)| id))?;
    }
    Ok((caller, project))
}

/// The worker space of the caller's own project, created if necessary, for a request that the
/// worker space does not count: a call may wait minutes for a person, and its result must not queue
/// behind it.
pub(crate) struct OwnSpace(Arc<WorkerSpace>);

impl Deref for OwnSpace {
    type Target = WorkerSpace;
    fn deref(&self) -> &WorkerSpace {
        &self.0
    }
}

impl FromRequestParts<App> for OwnSpace {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let (caller, project) = caller_and_project(parts, app).await?;
        Ok(Self(app.spaces.enter(caller.user, project).await?))
    }
}

/// Like [`OwnSpace`], for routes of single tool calls. A token for one conversation reaches them
/// too, but only for calls of that conversation, which the handler checks with
/// [`CallSpace::check`].
pub(crate) struct CallSpace {
    space: OwnSpace,
    /// The only conversation whose calls the caller may make and see.
    pub(crate) conversation: Option<ConversationId>,
}

impl Deref for CallSpace {
    type Target = OwnSpace;
    fn deref(&self) -> &OwnSpace {
        &self.space
    }
}

impl FromRequestParts<App> for CallSpace {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let ProjectInPath(project) = ProjectInPath::from_request_parts(parts, app).await?;
        let conversation = caller.place.and_then(|place| place.conversation);
        caller.check_place(project, conversation)?;
        Ok(Self { space: OwnSpace(app.spaces.enter(caller.user, project).await?), conversation })
    }
}

impl CallSpace {
    /// Refuses calls of other conversations, if the caller's token is for one.
    pub(crate) fn check(&self, of: Option<ConversationId>) -> Result<(), Error> {
        if self.conversation.is_none_or(|own| Some(own) == of) {
            Ok(())
        } else {
            Err(Error::NotFound)
        }
    }
}

impl OwnSpace {
    /// The agent that a body names, by name or id.
    pub(crate) async fn named_agent(&self, name: &str) -> Result<Arc<LoadedAgent>, Error> {
        let wanted: AgentRef =
            name.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        self.agent(&wanted).await.map_err(|error| match error {
            RuntimeError::Store(StoreError::NotFound) => {
                Error::NoAgent(name.chars().take(100).collect())
            }
            other => other.into(),
        })
    }
}

/// The caller's own project, without entering its worker space: for requests that close or delete
/// it.
pub(crate) struct OwnProject(pub(crate) Owned);

impl FromRequestParts<App> for OwnProject {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let (caller, project) = caller_and_project(parts, app).await?;
        Ok(Self(app.store.owned_by(caller.user, project).await?))
    }
}

/// A project for its owner or an admin of the owner's tenant: for requests that only stop things.
pub(crate) struct OwnerOrAdmin(pub(crate) Owned);

impl FromRequestParts<App> for OwnerOrAdmin {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let (caller, project) = caller_and_project(parts, app).await?;
        let administered = (caller.role == Role::Admin).then_some(&caller.tenant);
        Ok(Self(app.store.owned_by_or_in(caller.user, administered, project).await?))
    }
}

/// A caller who belongs to the tenant in the path.
pub(crate) struct TenantMember(pub(crate) Caller);

impl FromRequestParts<App> for TenantMember {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let TenantInPath(tenant) = TenantInPath::from_request_parts(parts, app).await?;
        if caller.tenant == tenant { Ok(Self(caller)) } else { Err(Error::NotFound) }
    }
}

/// An admin of the tenant in the path. For everybody else the path does not exist.
pub(crate) struct TenantAdmin {
    pub(crate) tenant: Tenant,
    pub(crate) user: UserId,
}

impl FromRequestParts<App> for TenantAdmin {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let TenantMember(caller) = TenantMember::from_request_parts(parts, app).await?;
        if caller.role != Role::Admin {
            return Err(Error::NotFound);
        }
        Ok(Self { tenant: caller.tenant, user: caller.user })
    }
}

/// The caller's own conversation, from either family of routes:
/// `/my/projects/{project}/chat/sessions/{session}` and `/api/tenants/{tenant}/…/{conversation}`.
pub(crate) struct OwnConversation {
    pub(crate) caller: Caller,
    pub(crate) owned: OwnedConversation,
    pub(crate) conversation: Conversation,
}

impl FromRequestParts<App> for OwnConversation {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let (caller, owned, id) = if has_segment(parts, "session").await {
            let caller = Caller::from_request_parts(parts, app).await?;
            let space = OwnSpace::from_request_parts(parts, app).await?;
            let SessionInPath(id) = SessionInPath::from_request_parts(parts, app).await?;
            (caller, space.owned().clone(), id)
        } else {
            let TenantMember(caller) = TenantMember::from_request_parts(parts, app).await?;
            let ConversationInPath(id) = ConversationInPath::from_request_parts(parts, app).await?;
            let owned = owned_conversation(app, &caller, id).await?;
            (caller, owned.owned().clone(), id)
        };
        let (owned, conversation) = app.store.conversation(&owned, id).await?;
        Ok(Self { caller, owned, conversation })
    }
}

/// The right to act on the caller's own conversation.
pub(crate) async fn owned_conversation(
    app: &App,
    caller: &Caller,
    id: ConversationId,
) -> Result<OwnedConversation, Error> {
    let owned = app.store.owned_conversation(caller.user, &caller.tenant, id).await?;
    caller.check_place(owned.owned().project, Some(id))?;
    Ok(owned)
}

/// The files of the caller's own conversation, to read and to delete.
pub(crate) struct OwnFiles {
    pub(crate) workspace: ConversationWorkspace,
    pub(crate) conversation: Conversation,
    pub(crate) author: Author,
}

impl FromRequestParts<App> for OwnFiles {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Error> {
        let own = OwnConversation::from_request_parts(parts, app).await?;
        let mut workspace = app.files.workspace(&own.owned);
        if !own.caller.role.is_person() {
            // What the MCP mount of the conversation refuses to a program is refused here as well.
            if !own.conversation.workspace_enabled {
                return Err(atelier_files::Error::Disabled.into());
            }
            let project = app.store.project(own.owned.owned()).await?;
            workspace = workspace.for_programs(app.gate.own_files_policy(&project)?).await?;
        }
        Ok(Self {
            workspace,
            conversation: own.conversation,
            author: Author::Person(own.caller.user),
        })
    }
}

/// The files of the caller's own conversation, to change. Refused if the conversation's workspace
/// is switched off.
pub(crate) struct WritableFiles(pub(crate) OwnFiles);

impl FromRequestParts<App> for WritableFiles {
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

/// The call as the caller may see it. Programs see the content of their own calls, and of calls
/// that nobody had to approve. They see no previews: a preview holds the file as it is, which only
/// people may show to anybody. Machines look up what they are to run, and no results, which can be
/// those of another machine.
pub(crate) fn shown_to(caller: &Caller, call: GatedCall) -> GatedCall {
    match caller.program() {
        Some(session) if !call.is_open_to_program(session) => call.without_content(),
        Some(_) => GatedCall { preview: None, ..call },
        None if caller.role == Role::Client => GatedCall { preview: None, result: None, ..call },
        None => call,
    }
}

/// Who decides, and with which program, for the audit.
pub(crate) fn decider(caller: &Caller, headers: &HeaderMap) -> Decider {
    let via = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    Decider { user: caller.user, via: via.map(|agent| agent.chars().take(200).collect()) }
}
