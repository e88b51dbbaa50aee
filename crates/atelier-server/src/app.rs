//! What every handler works with.

use crate::{Auth, Settings};
use atelier_core::{ProjectName, Role, Tenant, UserId};
use atelier_runtime::{Gate, Spaces};
use atelier_store::{NewAgent, SignIn, Store};
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

    /// On the first start of a server: makes its owner and a project to begin with, and a code that
    /// signs them in once. `None` when somebody has been here before.
    pub async fn welcome(&self) -> atelier_store::Result<Option<String>> {
        if self.store.has_users().await? {
            return Ok(None);
        }
        let tenant: Tenant =
            "default".parse().unwrap_or_else(|invalid| unreachable!("a tenant of ours is valid: {invalid}"));
        let name = ProjectName::try_from(FIRST_PROJECT)
            .unwrap_or_else(|invalid| unreachable!("a name of ours is valid: {invalid}"));
        let user: UserId = crate::user_id(&tenant, OWNER);
        self.store.ensure_user(user, &tenant).await?;
        let agents = self.starter_pack.clone();
        self.store
            .create_project(user, tenant.clone(), name, Default::default(), Default::default(), agents)
            .await?;
        let (code, hash) = crate::auth::new_sign_in_code();
        let expires = chrono::Utc::now() + chrono::TimeDelta::hours(24);
        self.store.offer_sign_in(hash, SignIn { user, tenant, role: Role::Admin }, expires).await?;
        Ok(Some(code))
    }
}
