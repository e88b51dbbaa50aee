//! What every handler works with.

use crate::{Auth, McpDoor, OwnedConversation, Settings};
use atelier_core::{ProjectName, Role, Tenant, UserId};
use atelier_files::Files;
use atelier_memory::Memory;
use atelier_model::Models;
use atelier_runtime::{Bus, Gate, ModelKeys, Spaces};
use atelier_store::{NewAgent, Owned, SignIn, Store};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{ops::Deref, sync::Arc};
use tokio_util::sync::CancellationToken;

/// A cheap handle on the parts of the server.
#[derive(Clone)]
pub struct App(Arc<Parts>);

pub struct Parts {
    pub store: Store,
    pub spaces: Spaces,
    pub gate: Gate,
    pub files: Files,
    pub bus: Bus,
    pub memory: Memory,
    pub models: Models,
    pub model_keys: ModelKeys,
    /// What speaks MCP for the hosts of projects, and of conversations.
    pub mcp_projects: McpDoor<Owned>,
    pub mcp_conversations: McpDoor<OwnedConversation>,
    pub auth: Auth,
    pub settings: Settings,
    /// The agents a new project starts with.
    pub starter_pack: Vec<NewAgent>,
    pub metrics: PrometheusHandle,
    /// Cancelled when the server stops; event streams end then.
    pub stop: CancellationToken,
}

impl Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The person who runs the server, as the first start knows them.
pub const OWNER: &str = "owner";
const FIRST_PROJECT: &str = "my-project";

impl App {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// On the first start of a server: makes its owner, a code that signs them in once, and a project to begin
    /// with. `None` when there has been a project before, or when people sign in elsewhere.
    ///
    /// The project comes last: a start that is cut short is a first start again.
    pub async fn welcome(&self) -> atelier_store::Result<Option<String>> {
        if !self.auth.is_local() || self.store.has_projects().await? {
            return Ok(None);
        }
        let tenant: Tenant =
            "default".parse().unwrap_or_else(|invalid| unreachable!("a tenant of ours is valid: {invalid}"));
        let name = ProjectName::try_from(FIRST_PROJECT)
            .unwrap_or_else(|invalid| unreachable!("a name of ours is valid: {invalid}"));
        let user: UserId = crate::user_id(&tenant, OWNER);
        self.store.ensure_user(user, &tenant).await?;
        let (code, hash) = crate::auth::new_sign_in_code();
        let expires = chrono::Utc::now() + chrono::TimeDelta::hours(24);
        let who = SignIn { user, tenant: tenant.clone(), role: Role::Admin };
        self.store.create_sign_in_code(hash, who, expires).await?;
        let (agents, nothing) = (self.starter_pack.clone(), Default::default());
        self.store.create_project(user, tenant, name, Default::default(), nothing, agents).await?;
        Ok(Some(code))
    }
}
