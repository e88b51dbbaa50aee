//! What this machine tells the server about itself and about the calls that it runs.

use crate::{error::Result, project::ProjectApi};
use atelier_api::{
    clients::NewClient,
    tools::{Claim, OutcomeReport, PreviewReport, PrintedReport},
};
use atelier_core::{CallId, ClientId, gate::ToolOutcome, isolation::ReportedIsolation};
use reqwest::Method;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How long it may take to send an outcome, which can contain a file.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(300);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct MachineApi {
    pub(crate) project: Arc<ProjectApi>,
    pub(crate) client: ClientId,
    /// Whether this process has registered before. Permissions end when another process takes over.
    pub(crate) registered: AtomicBool,
}

impl MachineApi {
    pub(crate) async fn register(&self, root: &str, isolation: &ReportedIsolation) -> Result<()> {
        let body = NewClient {
            client_id: self.client,
            root: root.to_owned(),
            os: std::env::consts::OS.to_owned(),
            isolation: isolation.clone(),
            resumed: self.registered.load(Ordering::Relaxed),
        };
        self.project.api.post_only(&self.project.path("clients"), &body).await?;
        self.registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        let path = self.project.path(&format!("clients/{}/renew", self.client));
        self.project.api.post_only(&path, &json!({})).await
    }

    pub(crate) async fn leave(&self) -> Result<()> {
        let path = self.project.path(&format!("clients/{}", self.client));
        let request = self.project.api.request(Method::DELETE, &path).timeout(LEAVE_TIMEOUT);
        self.project.api.send(request).await.map(drop)
    }

    pub(crate) async fn send_preview(&self, id: CallId, preview: &PreviewReport) -> Result<()> {
        self.project
            .api
            .post_only(&self.project.path(&format!("tools/{id}/preview")), preview)
            .await
    }

    /// Sends what a running call has printed.
    pub(crate) async fn send_printed(&self, id: CallId, report: &PrintedReport) -> Result<()> {
        self.project.api.post_only(&self.project.path(&format!("tools/{id}/output")), report).await
    }

    pub(crate) async fn claim(&self, id: CallId, attempt: u32) -> Result<()> {
        let body = Claim { client_id: self.client, attempt };
        self.project.api.post_only(&self.project.path(&format!("tools/{id}/claim")), &body).await
    }

    pub(crate) async fn send_outcome(
        &self,
        id: CallId,
        attempt: u32,
        result: &ToolOutcome,
    ) -> Result<()> {
        let body = OutcomeReport { client_id: self.client, attempt, result: result.clone() };
        let path = self.project.path(&format!("tools/{id}/result"));
        let request = self.project.api.request(Method::POST, &path).timeout(OUTCOME_TIMEOUT);
        self.project.api.send(request.json(&body)).await.map(drop)
    }
}
