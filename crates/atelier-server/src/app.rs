//! The services that every handler works with.

use crate::{Auth, ConversationHost, Loads, McpHandler, ProjectHost, Settings};
use atelier_core::{ProjectName, Role, Tenant, UserId};
use atelier_files::Files;
use atelier_memory::Memory;
use atelier_runtime::{Budgets, Bus, Gate, ModelKeys, NodeHealth, Spaces};
use atelier_store::{NewAgent, SignIn, Store};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{ops::Deref, sync::Arc};
use tokio_util::sync::CancellationToken;

/// A cheap handle on the services of the server.
#[derive(Clone)]
pub struct App(Arc<Services>);

pub struct Services {
    pub store: Store,
    pub spaces: Spaces,
    pub health: NodeHealth,
    pub gate: Gate,
    pub files: Files,
    pub bus: Bus,
    pub memory: Memory,
    pub model_keys: ModelKeys,
    pub budgets: Budgets,
    /// Answers MCP hosts that use a project, or the files of a conversation.
    pub mcp_projects: McpHandler<ProjectHost>,
    pub mcp_conversations: McpHandler<ConversationHost>,
    pub auth: Auth,
    pub loads: Loads,
    pub settings: Settings,
    /// The agents that every new project begins with.
    pub starter_pack: Vec<NewAgent>,
    pub metrics: PrometheusHandle,
    /// Cancelled when the server stops. Event streams end then.
    pub stop: CancellationToken,
}

impl Deref for App {
    type Target = Services;
    fn deref(&self) -> &Services {
        &self.0
    }
}

/// The name of the user who runs the server, as the first start creates them.
pub const OWNER: &str = "owner";
const FIRST_PROJECT: &str = "my-project";

impl App {
    pub fn new(services: Services) -> Self {
        Self(Arc::new(services))
    }

    /// On the first start of a server: creates its owner, a code that signs them in once, and a
    /// first project. `None` if the server already had a project, or if people sign in at an
    /// identity provider.
    ///
    /// The project comes last, so that an interrupted first start is repeated.
    pub async fn prepare_first_start(&self) -> atelier_store::Result<Option<String>> {
        if !self.auth.is_local() || self.store.has_projects().await? {
            return Ok(None);
        }
        let tenant: Tenant = "default"
            .parse()
            .unwrap_or_else(|invalid| unreachable!("the name is valid: {invalid}"));
        let name = ProjectName::try_from(FIRST_PROJECT)
            .unwrap_or_else(|invalid| unreachable!("the name is valid: {invalid}"));
        let user: UserId = crate::user_id(&tenant, OWNER);
        self.store.ensure_user(user, &tenant).await?;
        // The project comes before the code: of several nodes that start at once, only the one that
        // creates the project makes a code, because a new code replaces an older one.
        let (agents, nothing) = (self.starter_pack.clone(), Default::default());
        let project = self.store.create_project(
            user,
            tenant.clone(),
            name,
            Default::default(),
            nothing,
            agents,
        );
        match project.await {
            Err(atelier_store::Error::NameTaken) => return Ok(None),
            project => drop(project?),
        }
        let (code, hash) = crate::auth::new_sign_in_code();
        let expires = chrono::Utc::now() + chrono::TimeDelta::hours(24);
        let who = SignIn { user, tenant, role: Role::Admin };
        self.store.create_sign_in_code(hash, who, expires).await?;
        Ok(Some(code))
    }
}
