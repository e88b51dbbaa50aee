//! What anybody asks of the server who may see a project.

use crate::{
    api::{Api, PATIENCE},
    error::{Error, Result},
    sse::Stream,
};
use atelier_core::{
    AgentId, ApprovalId, CallId, ClientId, Plan, PlanId, Project, Task,
    gate::{CallStatus, GatedCall, GrantScope},
};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) struct ProjectApi {
    pub(crate) api: Api,
    pub(crate) project: Project,
}

#[derive(Deserialize)]
struct Clients {
    clients: Vec<Connected>,
}

/// A machine that is connected.
#[derive(Deserialize)]
pub(crate) struct Connected {
    pub(crate) client_id: ClientId,
    /// What its user calls the folder there.
    pub(crate) root: String,
    isolation: Value,
}

impl Connected {
    /// What holds commands in there, as it says itself.
    pub(crate) fn held_in(&self) -> &str {
        self.isolation["words"].as_str().unwrap_or("not known")
    }
}

#[derive(Deserialize)]
pub(crate) struct PlanDetails {
    #[serde(flatten)]
    pub(crate) plan: Plan,
    pub(crate) tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Calls {
    tools: Vec<GatedCall>,
}

impl ProjectApi {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/my/projects/{}/{rest}", self.project.id)
    }

    /// The client that runs the project's calls, and its folder.
    pub(crate) async fn holder(&self) -> Result<Option<Connected>> {
        let list: Clients = self.api.get(&self.path("clients")).await?;
        Ok(list.clients.into_iter().next())
    }

    /// What a stream of the project tells from `after` on, or from now on.
    pub(crate) async fn events(&self, path: &str, after: Option<&str>) -> Result<Stream> {
        let request = self.api.request(Method::GET, &self.path(path));
        let request = after.into_iter().fold(request, |request, id| request.header("last-event-id", id));
        // The request has no timeout, for it has no end; its beginning has one.
        let opening = tokio::time::timeout(PATIENCE, self.api.send(request)).await;
        let late = || Error::Refused { status: 408, code: String::new(), detail: "no answer in time".into() };
        Ok(Stream::new(opening.map_err(|_| late())??))
    }

    pub(crate) async fn call(&self, id: CallId) -> Result<GatedCall> {
        self.api.get(&self.path(&format!("tools/{id}"))).await
    }

    /// Calls in one state, oldest first.
    pub(crate) async fn calls(&self, status: CallStatus) -> Result<Vec<GatedCall>> {
        let path = self.path(&format!("tools?status={}&limit=1000", status.as_str()));
        let mut calls = self.api.get::<Calls>(&path).await?.tools;
        calls.reverse();
        Ok(calls)
    }

    pub(crate) async fn approve(&self, id: ApprovalId, scope: GrantScope) -> Result<()> {
        let path = self.path(&format!("approvals/{id}/approve"));
        self.api.post::<Value>(&path, &json!({"scope": scope})).await.map(drop)
    }

    pub(crate) async fn reject(&self, id: ApprovalId, reason: Option<&str>) -> Result<()> {
        let path = self.path(&format!("approvals/{id}/reject"));
        self.api.post::<Value>(&path, &json!({"reason": reason})).await.map(drop)
    }

    pub(crate) async fn plan(&self, id: PlanId) -> Result<PlanDetails> {
        self.api.get(&self.path(&format!("plans/{id}"))).await
    }

    pub(crate) async fn approve_plan(&self, id: PlanId) -> Result<()> {
        self.api.post::<Value>(&self.path(&format!("plans/{id}/approve")), &json!({})).await.map(drop)
    }

    pub(crate) async fn reject_plan(&self, id: PlanId, reason: Option<&str>) -> Result<()> {
        let path = self.path(&format!("plans/{id}/reject"));
        self.api.post::<Value>(&path, &json!({"reason": reason})).await.map(drop)
    }

    pub(crate) async fn agent_name(&self, id: AgentId) -> Result<String> {
        let agent: Value = self.api.get(&self.path(&format!("agents/{id}"))).await?;
        Ok(agent["name"].as_str().unwrap_or_default().to_owned())
    }
}
