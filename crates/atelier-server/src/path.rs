//! Parameters in the path of a request. Each extractor also describes its parameter in the OpenAPI
//! document.
//!
//! A malformed value gets the same answer as an id that does not exist.

use crate::{App, error::Error};
use atelier_core::{
    ApprovalId, CallId, ClientId, ConversationId, FileId, GrantId, InteractionId, PlanId,
    ProjectId, RunId, TaskId, Tenant, TokenId, UploadId,
};
use atelier_store::AgentRef;
use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
};
use std::str::FromStr;
use utoipa::{
    IntoParams, PartialSchema,
    openapi::{
        Required,
        path::{Parameter, ParameterBuilder, ParameterIn},
    },
};

async fn segment<T: FromStr>(parts: &mut Parts, name: &str) -> Result<T, Error> {
    let path = Path::<Vec<(String, String)>>::from_request_parts(parts, &()).await;
    let Path(segments) = path.map_err(|_| Error::NotFound)?;
    let found = segments.into_iter().find(|(key, _)| key == name).ok_or(Error::NotFound)?;
    found.1.parse().map_err(|_| Error::NotFound)
}

/// Whether the route has a parameter of this name.
pub(crate) async fn has_segment(parts: &mut Parts, name: &str) -> bool {
    segment::<String>(parts, name).await.is_ok()
}

macro_rules! path_parameters {
    ($(
        $(#[doc = $description:literal])+
        $extractor:ident($value:ty as $schema:ty) = $name:literal;
    )+) => {$(
        $(#[doc = $description])+
        pub(crate) struct $extractor(pub(crate) $value);

        impl FromRequestParts<App> for $extractor {
            type Rejection = Error;

            async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Error> {
                segment(parts, $name).await.map(Self)
            }
        }

        impl IntoParams for $extractor {
            fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                let description = [$($description),+].map(str::trim).join(" ");
                let parameter = ParameterBuilder::new()
                    .name($name)
                    .parameter_in(ParameterIn::Path)
                    .required(Required::True)
                    .description(Some(description))
                    .schema(Some(<$schema>::schema()));
                vec![parameter.build()]
            }
        }
    )+};
}

path_parameters! {
    /// The id of a project.
    ProjectInPath(ProjectId as ProjectId) = "project";
    /// The id or name of an agent; `coder` also finds `agent_coder`.
    AgentInPath(AgentRef as String) = "agent";
    /// The id of a tool call.
    CallInPath(CallId as CallId) = "tool";
    /// The id of an approval.
    ApprovalInPath(ApprovalId as ApprovalId) = "approval";
    /// The id of a permission.
    GrantInPath(GrantId as GrantId) = "grant";
    /// The id of an interaction.
    InteractionInPath(InteractionId as InteractionId) = "interaction";
    /// The id of a connected machine.
    ClientInPath(ClientId as ClientId) = "client";
    /// The id of a conversation.
    ConversationInPath(ConversationId as ConversationId) = "conversation";
    /// The id of a conversation.
    SessionInPath(ConversationId as ConversationId) = "session";
    /// The id of a sign-in session.
    SignInPath(TokenId as TokenId) = "sign_in";
    /// The id of a run.
    RunInPath(RunId as RunId) = "run";
    /// The id of a file.
    FileInPath(FileId as FileId) = "file";
    /// The id of an upload in parts.
    UploadInPath(UploadId as UploadId) = "upload";
    /// The id of a task.
    TaskInPath(TaskId as TaskId) = "task";
    /// The id of a plan.
    PlanInPath(PlanId as PlanId) = "plan";
    /// The number of a version or of a part, from 1 on.
    NumberInPath(i64 as i64) = "number";
    /// The name of a tenant.
    TenantInPath(Tenant as String) = "tenant";
    /// The name of a model provider.
    ProviderInPath(ProviderName as String) = "provider";
}

/// The name of a model provider. It holds no NUL, because PostgreSQL cannot be asked for one.
pub(crate) struct ProviderName(pub(crate) String);

impl FromStr for ProviderName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        if name.contains('\0') { Err(Error::NotFound) } else { Ok(Self(name.to_owned())) }
    }
}
