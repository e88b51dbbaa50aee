//! What any user of a project can ask the server.

use crate::{
    api_client::{ApiClient, REQUEST_TIMEOUT},
    error::{Error, Result},
    sse::Stream,
};
use atelier_api::{
    approvals::{ApproveRequest, KeepWaitingRequest, RejectRequest},
    clients::{Client, ClientList},
    tools::ToolCallList,
    work::{PlanApproval, PlanDetails, PlanRejection},
};
use atelier_core::{
    Agent, AgentId, ApprovalId, CallId, Conversation, PlanId, Project,
    gate::{CallStatus, GatedCall, GrantScope},
};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct ConversationList {
    sessions: Vec<Conversation>,
}

#[derive(Deserialize)]
struct Approvals {
    approvals: Vec<GatedCall>,
}

pub(crate) struct ProjectApi {
    pub(crate) api: ApiClient,
    pub(crate) project: Project,
}

impl ProjectApi {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/my/projects/{}/{rest}", self.project.id)
    }

    /// The machine that runs the project's calls.
    pub(crate) async fn active_client(&self) -> Result<Option<Client>> {
        let list: ClientList = self.api.get(&self.path("clients")).await?;
        Ok(list.clients.into_iter().next())
    }

    /// An event stream of the project, from the event after `cursor` on, or from now on.
    pub(crate) async fn events(&self, path: &str, cursor: Option<&str>) -> Result<Stream> {
        let request = self.api.request(Method::GET, &self.path(path));
        let request =
            cursor.into_iter().fold(request, |request, id| request.header("last-event-id", id));
        // A stream has no end, so only its beginning has a time limit.
        let opening = tokio::time::timeout(REQUEST_TIMEOUT, self.api.send(request)).await;
        let response = opening.map_err(|_| Error::Timeout(self.api.server().to_owned()))??;
        Ok(Stream::new(response))
    }

    pub(crate) async fn call(&self, id: CallId) -> Result<GatedCall> {
        self.api.get(&self.path(&format!("tools/{id}"))).await
    }

    /// Calls with the given status, oldest first.
    pub(crate) async fn calls(&self, status: CallStatus) -> Result<Vec<GatedCall>> {
        let path = self.path(&format!("tools?status={}&limit=1000", status.as_str()));
        let mut calls = self.api.get::<ToolCallList>(&path).await?.tools;
        calls.reverse();
        Ok(calls)
    }

    pub(crate) async fn approve(&self, id: ApprovalId, scope: GrantScope) -> Result<()> {
        let body = ApproveRequest { scope, ..ApproveRequest::default() };
        self.api.post_only(&self.path(&format!("approvals/{id}/approve")), &body).await
    }

    pub(crate) async fn reject(&self, id: ApprovalId, reason: Option<&str>) -> Result<()> {
        let body = RejectRequest { reason: reason.map(str::to_owned) };
        self.api.post_only(&self.path(&format!("approvals/{id}/reject")), &body).await
    }

    /// Lets the question wait until it is answered.
    pub(crate) async fn keep_waiting(&self, id: ApprovalId) -> Result<GatedCall> {
        let path = self.path(&format!("approvals/{id}/wait"));
        self.api.post(&path, &KeepWaitingRequest::default()).await
    }

    /// Asks again about a call whose question has run out. Returns the new call.
    pub(crate) async fn ask_again(&self, id: ApprovalId) -> Result<GatedCall> {
        self.api.post(&self.path(&format!("approvals/{id}/ask-again")), &json!({})).await
    }

    /// The newest calls whose question has run out, newest first.
    pub(crate) async fn run_out(&self) -> Result<Vec<GatedCall>> {
        let path = self.path("approvals?status=expired&limit=100");
        Ok(self.api.get::<Approvals>(&path).await?.approvals)
    }

    pub(crate) async fn plan(&self, id: PlanId) -> Result<PlanDetails> {
        self.api.get(&self.path(&format!("plans/{id}"))).await
    }

    pub(crate) async fn approve_plan(&self, id: PlanId) -> Result<()> {
        let path = self.path(&format!("plans/{id}/approve"));
        self.api.post_only(&path, &PlanApproval::default()).await
    }

    pub(crate) async fn reject_plan(&self, id: PlanId, reason: Option<&str>) -> Result<()> {
        let body = PlanRejection { reason: reason.map(str::to_owned) };
        self.api.post_only(&self.path(&format!("plans/{id}/reject")), &body).await
    }

    /// The newest conversations of the project.
    pub(crate) async fn conversations(&self, most: u32) -> Result<Vec<Conversation>> {
        let path = self.path(&format!("chat/sessions?limit={most}"));
        Ok(self.api.get::<ConversationList>(&path).await?.sessions)
    }

    pub(crate) async fn agent_name(&self, id: AgentId) -> Result<String> {
        let agent: Agent = self.api.get(&self.path(&format!("agents/{id}"))).await?;
        Ok(agent.name.to_string())
    }
}
