//! The HTTP client of every command that talks to a server.

use crate::{
    credentials::{Credentials, server_address, server_or_usual},
    error::{Error, Result},
};
use atelier_api::{
    Me, Problem,
    account::{MachineToken, SignInLink, SignInRequest, SignInSession, SignInSessions, Token},
    projects::ProjectList,
    tools::ServerPolicy,
};
use atelier_core::{Project, ProjectId, TokenId, nearest::suggestion};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    sync::{PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::watch;

/// How long a request may take by default. Streams have no limit, and uploads and tool outcomes
/// have their own.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How many projects are requested at a time.
const PAGE: usize = 1000;

/// A server, which may have several addresses, and the token to use there.
pub struct ApiClient {
    http: reqwest::Client,
    /// At least one address. All of them are nodes of the same server.
    addresses: Vec<String>,
    /// The position of the address in use. Changing it ends the requests that wait for an answer.
    current: watch::Sender<usize>,
    token: RwLock<Option<String>>,
    stored: StoredToken,
}

/// What has stored the token. A renewed token is then stored as well.
#[derive(Debug, Clone, Copy)]
enum StoredToken {
    No,
    ByLogin,
    /// `atelier connect --code`, for this project.
    ByCode(ProjectId),
}

#[derive(Deserialize)]
struct Alive {
    service: String,
}

impl ApiClient {
    /// A client with the given token, or with the one that `atelier login` stored for the server.
    /// Without `server`, the server of the last login is used.
    /// The audit shows `command` as the program that made a decision.
    pub fn signed_in(command: &str, server: Option<&str>, token: Option<String>) -> Result<Self> {
        let server = server.map(str::to_owned);
        Self::signed_in_to_any(command, server.as_slice(), token, None)
    }

    /// A client of a server with several addresses. Without a token, it uses the one that `atelier
    /// login` stored for any of them, or the one that `atelier connect --code` stored for the
    /// project. It leaves an address that does not answer for the next one.
    pub(crate) fn signed_in_to_any(
        command: &str,
        servers: &[String],
        token: Option<String>,
        project: Option<&str>,
    ) -> Result<Self> {
        let addresses = match servers {
            [] => vec![server_or_usual(None)?],
            given => given.iter().map(|server| server_address(server)).collect::<Result<_>>()?,
        };
        let client = Self::anonymous(command, &addresses[0])?;
        let given = token.filter(|token| !token.is_empty());
        let (token, stored) = match given {
            Some(token) => (token, StoredToken::No),
            None => {
                let credentials = Credentials::load()?;
                let by_login = addresses.iter().find_map(|server| credentials.token(server));
                let by_login = by_login.map(|token| (token.to_owned(), StoredToken::ByLogin));
                let by_code = || {
                    let (id, token) = credentials.machine_token(&addresses[0], project?)?;
                    Some((token.to_owned(), StoredToken::ByCode(id)))
                };
                by_login.or_else(by_code).ok_or_else(|| Error::NoToken(addresses[0].clone()))?
            }
        };
        Ok(Self { token: RwLock::new(Some(token)), stored, addresses, ..client })
    }

    /// Exchanges a one-time code for the token of this machine, and stores it. Also returns the
    /// project that it is for.
    pub(crate) async fn connect_by_code(
        servers: &[String],
        code: &str,
    ) -> Result<(Self, MachineToken)> {
        let first = server_or_usual(servers.first().map(String::as_str))?;
        let body = SignInRequest { code: code.to_owned() };
        let got: MachineToken =
            Self::anonymous("connect", &first)?.post("/auth/machine", &body).await?;
        let (id, token) = (got.project_id, &got.token.token);
        Credentials::store_machine(&first, id, Some(got.project_name.as_str()), token)?;
        let client = Self::signed_in_to_any("connect", servers, Some(token.clone()), None)?;
        Ok((Self { stored: StoredToken::ByCode(id), ..client }, got))
    }

    /// A client without a token.
    pub fn anonymous(command: &str, server: &str) -> Result<Self> {
        let server = server_address(server)?;
        let http = reqwest::Client::builder()
            .user_agent(format!("atelier-{command}/{}", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|cause| Error::Unreachable { server: server.clone(), cause })?;
        Ok(Self {
            http,
            addresses: vec![server],
            current: watch::Sender::new(0),
            token: RwLock::new(None),
            stored: StoredToken::No,
        })
    }

    /// The address in use.
    pub fn server(&self) -> &str {
        &self.addresses[*self.current.borrow() % self.addresses.len()]
    }

    /// The first address. State and tokens are stored under it.
    pub(crate) fn first_address(&self) -> &str {
        &self.addresses[0]
    }

    pub(crate) fn has_several_addresses(&self) -> bool {
        self.addresses.len() > 1
    }

    /// Waits until the address in use is left for another one.
    pub(crate) async fn left(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        drop(self.current.subscribe().changed().await);
    }

    /// Leaves an address for the next one, unless that has happened already. The requests that wait
    /// for an answer end as if the server had not answered in time.
    fn leave(&self, position: usize) {
        if self.has_several_addresses() {
            self.current.send_if_modified(|current| {
                let is_current = *current == position;
                if is_current {
                    *current = (position + 1) % self.addresses.len();
                }
                is_current
            });
        }
    }

    /// Leaves addresses that do not answer, until one of them does or each has been asked twice.
    pub(crate) async fn leave_if_silent(&self, timeout: Duration) {
        if !self.has_several_addresses() {
            return;
        }
        for _ in 0..2 * self.addresses.len() {
            let position = *self.current.borrow();
            for _ in 0..2 {
                let health = format!("{}/health", self.addresses[position]);
                if self.http.get(health).timeout(timeout).send().await.is_ok() {
                    return;
                }
            }
            self.leave(position);
        }
    }

    /// Stores a renewed token where the one before was stored.
    pub(crate) fn store_renewed(&self, token: &str) -> Result<()> {
        match self.stored {
            StoredToken::No => Ok(()),
            StoredToken::ByLogin => Credentials::store(self.first_address(), token).map(drop),
            StoredToken::ByCode(id) => {
                Credentials::store_machine(self.first_address(), id, None, token)
            }
        }
    }

    pub fn use_token(&self, token: String) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    fn token(&self) -> Option<String> {
        self.token.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A request without a time limit. `path` begins with a slash.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.server()));
        match self.token() {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn unreachable(&self) -> impl FnOnce(reqwest::Error) -> Error {
        let server = self.server().to_owned();
        move |cause| Error::Unreachable { server, cause }
    }

    /// Waits for the server, unless its address is left for another one.
    async fn unless_left<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let server = self.server().to_owned();
        tokio::select! {
            answer = answer => answer,
            () = self.left() => Err(Error::Timeout(server)),
        }
    }

    /// Sends a request. Every answer that is not a success is an error.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let position = *self.current.borrow();
        let sent = self.unless_left(self.send_once(request)).await;
        if let Err(error) = &sent
            && error.is_the_servers_fault()
        {
            self.leave(position);
        }
        sent
    }

    async fn send_once(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(self.unreachable())?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED && self.token().is_some() {
            return Err(Error::TokenRejected);
        }
        let body = response.bytes().await.map_err(self.unreachable())?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(Error::Refused(problem)),
            Err(_) => {
                Err(Error::NotAtelier { server: self.server().to_owned(), status: status.as_u16() })
            }
        }
    }

    /// Sends a request and reads the JSON of its answer.
    pub async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let response = self.send(request).await?;
        let status = response.status().as_u16();
        let body = async { response.bytes().await.map_err(self.unreachable()) };
        let body = self.unless_left(body).await?;
        serde_json::from_slice(&body).map_err(|error| {
            tracing::debug!(%error, "cannot parse an answer");
            Error::NotAtelier { server: self.server().to_owned(), status }
        })
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.json(self.request(Method::GET, path).timeout(REQUEST_TIMEOUT)).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.json(self.request(Method::POST, path).timeout(REQUEST_TIMEOUT).json(body)).await
    }

    /// Sends a request whose answer does not matter, as long as it is a success.
    pub async fn post_only(&self, path: &str, body: &impl Serialize) -> Result<()> {
        let request = self.request(Method::POST, path).timeout(REQUEST_TIMEOUT);
        self.send(request.json(body)).await.map(drop)
    }

    /// Sends a `PUT` request whose answer does not matter, as long as it is a success.
    pub async fn put_only(&self, path: &str, body: &impl Serialize) -> Result<()> {
        let request = self.request(Method::PUT, path).timeout(REQUEST_TIMEOUT);
        self.send(request.json(body)).await.map(drop)
    }

    pub async fn delete(&self, path: &str) -> Result<()> {
        self.send(self.request(Method::DELETE, path).timeout(REQUEST_TIMEOUT)).await.map(drop)
    }

    /// Whether the address belongs to an Atelier server.
    pub async fn is_atelier(&self, timeout: Duration) -> bool {
        let alive = self.json::<Alive>(self.request(Method::GET, "/health").timeout(timeout)).await;
        alive.is_ok_and(|alive| alive.service == "atelier")
    }

    pub async fn me(&self) -> Result<Me> {
        self.get("/auth/me").await
    }

    /// Exchanges the code of a sign-in link for a token.
    pub async fn sign_in(&self, code: &str) -> Result<Token> {
        self.post("/auth/sign-in", &SignInRequest { code: code.to_owned() }).await
    }

    /// Makes a link that signs a browser in once.
    pub async fn sign_in_link(&self) -> Result<SignInLink> {
        self.post("/auth/links", &json!({})).await
    }

    /// Lists the sessions of the token's user.
    pub async fn sessions(&self) -> Result<Vec<SignInSession>> {
        Ok(self.get::<SignInSessions>("/auth/sessions").await?.sessions)
    }

    pub async fn end_session(&self, session: TokenId) -> Result<()> {
        let request = self.request(Method::DELETE, &format!("/auth/sessions/{session}"));
        self.send(request.timeout(REQUEST_TIMEOUT)).await.map(drop)
    }

    /// Ends the session of the token in use.
    pub async fn sign_out(&self) -> Result<()> {
        self.post_only("/auth/revoke", &json!({ "token": self.token() })).await
    }

    /// Ends every session of the token's user.
    pub async fn sign_out_everywhere(&self) -> Result<()> {
        self.post_only("/auth/sign-out-everywhere", &json!({})).await
    }

    pub(crate) async fn refresh(&self) -> Result<Token> {
        self.post("/auth/refresh", &json!({})).await
    }

    /// What the server adds to the built-in rules. Older servers add nothing.
    pub(crate) async fn policy(&self) -> Result<ServerPolicy> {
        match self.get("/my/policy").await {
            Err(Error::Refused(Problem { status: 404, .. })) => Ok(ServerPolicy::default()),
            other => other,
        }
    }

    /// A project of the token's user, by id or name.
    pub async fn project(&self, wanted: &str) -> Result<Project> {
        let is_wanted = |project: &Project| {
            project.name.as_str() == wanted || project.id.to_string().eq_ignore_ascii_case(wanted)
        };
        let projects = self.projects().await?;
        let names: Vec<String> =
            projects.iter().map(|project| project.name.as_str().to_owned()).collect();
        projects.into_iter().find(is_wanted).ok_or_else(|| {
            let known = names.iter().map(String::as_str);
            let remedy = match names.is_empty() {
                true => "you have none yet; create one in the console".to_owned(),
                false => suggestion(wanted, known),
            };
            Error::NoProject { wanted: wanted.to_owned(), remedy }
        })
    }

    /// The project that is named or, without a name, the user's only project.
    pub async fn project_or_only(&self, wanted: Option<&str>) -> Result<Project> {
        if let Some(wanted) = wanted {
            return self.project(wanted).await;
        }
        let mut projects = self.projects().await?;
        match projects.len() {
            1 => Ok(projects.swap_remove(0)),
            _ => Err(which_project(&projects)),
        }
    }

    /// All projects of the token's user.
    pub async fn projects(&self) -> Result<Vec<Project>> {
        let mut projects = Vec::new();
        for offset in (0..).step_by(PAGE) {
            let path = format!("/my/projects?limit={PAGE}&offset={offset}");
            let page: ProjectList = self.get(&path).await?;
            let is_last = page.projects.len() < PAGE;
            projects.extend(page.projects);
            if is_last {
                break;
            }
        }
        Ok(projects)
    }
}

/// Says that a project has to be named, and which ones there are.
pub(crate) fn which_project(projects: &[Project]) -> Error {
    let names: Vec<&str> = projects.iter().map(|project| project.name.as_str()).collect();
    match names.is_empty() {
        true => Error::NoProjects,
        false => Error::WhichProject(names.join(", ")),
    }
}
