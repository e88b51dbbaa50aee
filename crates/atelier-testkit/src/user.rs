//! A caller with a token.

use crate::{Events, Server};
use reqwest::{
    Method, StatusCode,
    header::HeaderMap,
    multipart::{Form, Part},
};
use serde_json::Value;

#[derive(Clone)]
pub struct User {
    pub token: String,
    url: String,
    http: reqwest::Client,
}

/// A whole answer of the server.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// `Null` if the answer has no body or the body is not JSON.
    pub body: Value,
}

impl Answer {
    /// The body. Panics if the answer does not have this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    /// The status and the stable code of a problem.
    #[track_caller]
    pub fn problem(&self) -> (u16, &str) {
        let kind = self.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        assert_eq!(kind, Some("application/problem+json"), "{} {}", self.status, self.body);
        assert_eq!(self.body["status"], self.status.as_u16());
        (self.status.as_u16(), self.body["code"].as_str().unwrap())
    }
}

impl User {
    pub(crate) fn new(server: &Server, token: String) -> Self {
        Self { token, url: server.url.clone(), http: server.http.clone() }
    }

    /// This user, with requests to another server.
    #[must_use]
    pub fn at(&self, server: &Server) -> Self {
        Self::new(server, self.token.clone())
    }

    /// This user, with requests to another address.
    #[must_use]
    pub fn at_address(&self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self.clone() }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        if self.token.is_empty() { request } else { request.bearer_auth(&self.token) }
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let request = self.request(method, path);
        answer(body.into_iter().fold(request, |request, body| request.json(&body))).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, None).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PUT, path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PATCH, path, Some(body)).await
    }

    /// Starts a conversation and returns the path of its workspace,
    /// `/api/tenants/{tenant}/workspace/{id}`.
    pub async fn workspace(&self) -> String {
        let tenant = self.claims()["tenant"].as_str().unwrap().to_owned();
        let path = format!("/api/tenants/{tenant}/conversations");
        let conversation = self.post(&path, serde_json::json!({})).await.expect(201);
        format!("/api/tenants/{tenant}/workspace/{}", conversation["id"].as_str().unwrap())
    }

    /// Uploads one file to a workspace under its own name.
    pub async fn upload(&self, workspace: &str, name: &str, content: impl Into<Vec<u8>>) -> Answer {
        self.send_form(workspace, Form::new().part("file", file(name, content))).await
    }

    pub async fn send_form(&self, workspace: &str, form: Form) -> Answer {
        let path = format!("{workspace}/files");
        answer(self.request(Method::POST, &path).multipart(form)).await
    }

    /// Downloads the bytes at a path.
    pub async fn download(&self, path: &str) -> (StatusCode, HeaderMap, reqwest::Result<Vec<u8>>) {
        let response = self.request(Method::GET, path).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        (status, headers, response.bytes().await.map(Vec::from))
    }

    /// Creates a project and returns its path, `/my/projects/{id}`.
    pub async fn project(&self, name: &str) -> String {
        let project =
            self.post("/my/projects/", serde_json::json!({"name": name})).await.expect(201);
        format!("/my/projects/{}", project["id"].as_str().unwrap())
    }

    /// Follows a stream after the given event id, or from now on.
    pub async fn events(&self, path: &str, last: Option<&str>) -> Events {
        let request = self.request(Method::GET, path);
        let request =
            last.into_iter().fold(request, |request, id| request.header("last-event-id", id));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Events::new(response)
    }

    /// The claims of the token, not verified.
    pub fn claims(&self) -> Value {
        let payload = self.token.split('.').nth(1).unwrap();
        serde_json::from_slice(&decode(payload)).unwrap()
    }
}

/// A file for a form.
pub fn file(name: &str, content: impl Into<Vec<u8>>) -> Part {
    Part::bytes(content.into()).file_name(name.to_owned())
}

pub async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = response.bytes().await.unwrap();
    Answer { status, headers, body: serde_json::from_slice(&bytes).unwrap_or_default() }
}

/// Decodes base64url without padding. One use does not justify a dependency.
fn decode(text: &str) -> Vec<u8> {
    let value = |b: u8| match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'-' => 62,
        _ => 63,
    };
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for b in text.bytes() {
        bits = (bits << 6) | u32::from(value(b));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
