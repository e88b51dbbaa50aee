//! What the client asks of the server, one method a question.

use crate::error::{Error, Result};
use atelier_core::{Project, Role, policy::Extension};
use chrono::{DateTime, Utc};
use reqwest::{Method, RequestBuilder};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    sync::{PoisonError, RwLock},
    time::Duration,
};

/// For anything but results, which may hold a file, and streams, which have no end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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
struct Problem {
    code: String,
    detail: String,
}

impl Api {
    /// `command` is what the record of decisions names: `connect` or `chat`.
    pub(crate) fn new(command: &str, server: &str, token: String) -> Result<Self> {
        let http = reqwest::Client::builder()
            .user_agent(format!("atelier-{command}/{}", env!("CARGO_PKG_VERSION")))
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

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.http.request(method, format!("{}{path}", self.server)).bearer_auth(token)
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<reqwest::Response> {
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

    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        let bytes = response.bytes().await;
        let bytes = bytes.map_err(|source| Error::Unreachable { server: self.server.clone(), source })?;
        serde_json::from_slice(&bytes).map_err(|error| {
            tracing::debug!(%error, "an answer that is not understood");
            Error::NotAtelier(self.server.clone())
        })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.json(self.request(Method::GET, path).timeout(PATIENCE)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T> {
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
