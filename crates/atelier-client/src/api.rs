//! What the client asks of the server, one method a question.

use crate::{
    error::{Error, Result},
    previews::Shown,
    sse::Stream,
};
use atelier_core::{
    AgentId, ApprovalId, CallId, ClientId, Project, Role,
    gate::{CallFailure, CallStatus, GatedCall, GrantScope},
    policy::Extension,
};
use chrono::{DateTime, Utc};
use reqwest::{Method, RequestBuilder};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    sync::{PoisonError, RwLock},
    time::Duration,
};

/// For anything but results, which may hold a file.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_WITH_FILES: Duration = Duration::from_secs(300);

pub(crate) struct Api {
    http: reqwest::Client,
    server: String,
    token: RwLock<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Me {
    pub(crate) role: Role,
    pub(crate) expires_at: DateTime<Utc>,
}

#[derive(Deserialize)]
pub(crate) struct Token {
    pub(crate) token: String,
    pub(crate) expires_at: DateTime<Utc>,
}

#[derive(Deserialize, Default)]
pub(crate) struct ServerPolicy {
    pub(crate) extension: Extension,
    pub(crate) demand_isolation: bool,
}

#[derive(Deserialize)]
struct Projects {
    projects: Vec<Project>,
}

#[derive(Deserialize)]
struct Clients {
    clients: Vec<Connected>,
}

#[derive(Deserialize)]
struct Connected {
    client_id: ClientId,
    root: String,
}

#[derive(Deserialize)]
struct Calls {
    tools: Vec<GatedCall>,
}

#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

impl Api {
    pub(crate) fn new(server: &str, token: String) -> Result<Self> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("atelier-connect/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|source| Error::Unreachable { server: server.to_owned(), source })?;
        Ok(Self { http, server: server.to_owned(), token: RwLock::new(token) })
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn use_token(&self, token: String) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.http.request(method, format!("{}{path}", self.server)).bearer_auth(token)
    }

    async fn send(&self, request: RequestBuilder) -> Result<reqwest::Response> {
        let unreachable = |source| Error::Unreachable { server: self.server.clone(), source };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == reqwest::StatusCode::UNAUTHORIZED {
            return Err(Error::TokenEnded);
        }
        let bytes = response.bytes().await.map_err(unreachable)?;
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(Problem { code, detail }) => Err(Error::Refused { status: status.as_u16(), code, detail }),
            Err(_) => Err(Error::NotAtelier(self.server.clone())),
        }
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        let bytes = response.bytes().await;
        let bytes = bytes.map_err(|source| Error::Unreachable { server: self.server.clone(), source })?;
        serde_json::from_slice(&bytes).map_err(|error| {
            tracing::debug!(%error, "an answer that is not understood");
            Error::NotAtelier(self.server.clone())
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.json(self.request(Method::GET, path).timeout(PATIENCE)).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
        self.json(self.request(Method::POST, path).timeout(PATIENCE).json(body)).await
    }

    pub(crate) async fn me(&self) -> Result<Me> {
        self.get("/auth/me").await
    }

    /// What the server adds to the rules that every Atelier has. An older one adds nothing.
    pub(crate) async fn policy(&self) -> Result<ServerPolicy> {
        match self.get("/my/policy").await {
            Err(Error::Refused { status: 404, .. }) => Ok(ServerPolicy::default()),
            other => other,
        }
    }

    pub(crate) async fn refresh(&self) -> Result<Token> {
        self.post("/auth/refresh", &json!({})).await
    }

    /// A project of the token's user, by id or by name.
    pub(crate) async fn project(&self, wanted: &str) -> Result<Project> {
        for offset in (0..).step_by(1000) {
            let page: Projects = self.get(&format!("/my/projects?limit=1000&offset={offset}")).await?;
            let last = page.projects.len() < 1000;
            let named = |project: &Project| project.name.as_str() == wanted;
            let identified = |project: &Project| project.id.to_string().eq_ignore_ascii_case(wanted);
            if let Some(found) =
                page.projects.into_iter().find(|project| identified(project) || named(project))
            {
                return Ok(found);
            }
            if last {
                break;
            }
        }
        Err(Error::NoProject(wanted.to_owned()))
    }
}

/// The same for one project and one client of it.
pub(crate) struct Desk {
    pub(crate) api: Api,
    pub(crate) project: Project,
    pub(crate) client: ClientId,
}

impl Desk {
    fn path(&self, rest: &str) -> String {
        format!("/my/projects/{}/{rest}", self.project.id)
    }

    pub(crate) async fn register(&self, root: &str, isolation: &Value) -> Result<()> {
        let body = json!({
            "client_id": self.client, "root": root, "os": std::env::consts::OS, "isolation": isolation,
        });
        self.api.post::<Value>(&self.path("clients"), &body).await.map(drop)
    }

    pub(crate) async fn renew(&self) -> Result<()> {
        let path = self.path(&format!("clients/{}/renew", self.client));
        self.api.post::<Value>(&path, &json!({})).await.map(drop)
    }

    pub(crate) async fn leave(&self) -> Result<()> {
        let path = self.path(&format!("clients/{}", self.client));
        let request = self.api.request(Method::DELETE, &path).timeout(Duration::from_secs(5));
        self.api.send(request).await.map(drop)
    }

    /// The client that runs the project's calls, and its folder.
    pub(crate) async fn holder(&self) -> Result<Option<(ClientId, String)>> {
        let list: Clients = self.api.get(&self.path("clients")).await?;
        Ok(list.clients.into_iter().next().map(|first| (first.client_id, first.root)))
    }

    /// What happens from `after` on, or from now on.
    pub(crate) async fn events(&self, after: Option<&str>) -> Result<Stream> {
        let request = self.api.request(Method::GET, &self.path("events"));
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

    pub(crate) async fn previewed(&self, id: CallId, preview: &Result<Shown, CallFailure>) -> Result<()> {
        let body = match preview {
            Ok(shown) => {
                let mut body = json!(shown);
                body["client_id"] = json!(self.client);
                body
            }
            Err(failure) => json!({"client_id": self.client, "error": failure}),
        };
        self.api.post::<Value>(&self.path(&format!("tools/{id}/preview")), &body).await.map(drop)
    }

    pub(crate) async fn claim(&self, id: CallId, attempt: u32) -> Result<()> {
        let body = json!({"client_id": self.client, "attempt": attempt});
        self.api.post::<Value>(&self.path(&format!("tools/{id}/claim")), &body).await.map(drop)
    }

    pub(crate) async fn result(&self, id: CallId, attempt: u32, result: &Value) -> Result<CallStatus> {
        let body = json!({"client_id": self.client, "attempt": attempt, "result": result});
        let request = self.api.request(Method::POST, &self.path(&format!("tools/{id}/result")));
        let call: GatedCall = self.api.json(request.timeout(PATIENCE_WITH_FILES).json(&body)).await?;
        Ok(call.status)
    }

    pub(crate) async fn approve(&self, id: ApprovalId, scope: GrantScope) -> Result<()> {
        let path = self.path(&format!("approvals/{id}/approve"));
        self.api.post::<Value>(&path, &json!({"scope": scope})).await.map(drop)
    }

    pub(crate) async fn reject(&self, id: ApprovalId, reason: Option<&str>) -> Result<()> {
        let path = self.path(&format!("approvals/{id}/reject"));
        self.api.post::<Value>(&path, &json!({"reason": reason})).await.map(drop)
    }

    pub(crate) async fn agent_name(&self, id: AgentId) -> Result<String> {
        let agent: Value = self.api.get(&self.path(&format!("agents/{id}"))).await?;
        Ok(agent["name"].as_str().unwrap_or_default().to_owned())
    }
}
