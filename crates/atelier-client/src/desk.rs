//! What one client of a project tells the server.

use crate::{error::Result, previews::Shown, project::ProjectApi};
use atelier_core::{CallId, ClientId, gate::CallFailure};
use reqwest::Method;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A result may hold a file.
const PATIENCE_WITH_FILES: Duration = Duration::from_secs(300);

pub(crate) struct Desk {
    pub(crate) project: Arc<ProjectApi>,
    pub(crate) client: ClientId,
    /// The server has heard of this process.
    pub(crate) known: AtomicBool,
}

impl Desk {
    pub(crate) async fn register(&self, root: &str, isolation: &Value) -> Result<()> {
        let body = json!({
            "client_id": self.client, "root": root, "os": std::env::consts::OS, "isolation": isolation,
            "resumed": self.known.load(Ordering::Relaxed),
        });
        self.project.api.post::<Value>(&self.project.path("clients"), &body).await?;
        self.known.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        let path = self.project.path(&format!("clients/{}/renew", self.client));
        self.project.api.post::<Value>(&path, &json!({})).await.map(drop)
    }

    pub(crate) async fn leave(&self) -> Result<()> {
        let path = self.project.path(&format!("clients/{}", self.client));
        let request = self.project.api.request(Method::DELETE, &path).timeout(Duration::from_secs(5));
        self.project.api.send(request).await.map(drop)
    }

    pub(crate) async fn previewed(&self, id: CallId, preview: &Result<Shown, CallFailure>) -> Result<()> {
        let body = match preview {
            Ok(shown) => {
                let mut body = json!(shown);
                body["client_id"] = json!(self.client);
                body
            }
            Err(failure) => json!({"client_id": self.client, "error": failure}),
        };
        self.project
            .api
            .post::<Value>(&self.project.path(&format!("tools/{id}/preview")), &body)
            .await
            .map(drop)
    }

    pub(crate) async fn claim(&self, id: CallId, attempt: u32) -> Result<()> {
        let body = json!({"client_id": self.client, "attempt": attempt});
        self.project
            .api
            .post::<Value>(&self.project.path(&format!("tools/{id}/claim")), &body)
            .await
            .map(drop)
    }

    pub(crate) async fn result(&self, id: CallId, attempt: u32, result: &Value) -> Result<()> {
        let body = json!({"client_id": self.client, "attempt": attempt, "result": result});
        let request =
            self.project.api.request(Method::POST, &self.project.path(&format!("tools/{id}/result")));
        self.project.api.send(request.timeout(PATIENCE_WITH_FILES).json(&body)).await.map(drop)
    }
}
