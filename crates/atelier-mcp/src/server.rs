//! The protocol's side of a workspace: which methods it has and what they answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atelier_executor::Cancel;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, CustomRequest, CustomResult, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{Peer, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::args::Args;
use crate::follow::{Changes, Session, tell_subscriber, told};
use crate::space::Space;
use crate::{catalogue, jsonrpc, reply, resources, tools, uri};

/// What hosts and health checks know this server as.
pub(crate) const NAME: &str = "workspace-tool";
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How often somebody who asked for progress hears of it.
const PROGRESS: Duration = Duration::from_millis(500);
/// The list of tools never changes while the server runs.
pub(crate) const TOOLS_FRESH_MS: u64 = 3_600_000;

/// The methods that take parameters.
const OFFERED: [&str; 8] = [
    "initialize",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// Answers one host: clones share its subscriptions.
#[derive(Debug, Clone)]
pub struct WorkspaceServer {
    space: Space,
    tools: Arc<Vec<Tool>>,
    session: Option<Arc<Session>>,
}

impl WorkspaceServer {
    /// For a host that stays: it may subscribe to changes.
    pub fn new(space: Space) -> Self {
        Self { session: Some(Arc::default()), ..Self::stateless(space) }
    }

    /// For requests that stand alone.
    pub fn stateless(space: Space) -> Self {
        let tools = Arc::new(catalogue::tools(space.settings()));
        Self { space, tools, session: None }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Space) -> T + Send + 'static,
    ) -> Result<T, ErrorData> {
        let space = self.space.clone();
        tokio::task::spawn_blocking(move || work(&space)).await.map_err(|error| {
            tracing::error!(%error, "a tool failed");
            ErrorData::internal_error("The tool failed", None)
        })
    }

    /// Tells a host of the older protocol about changes, from its first interest in resources to its end.
    async fn follow(&self, peer: &Peer<RoleServer>) -> Result<(), ErrorData> {
        let Some(session) = &self.session else { return Ok(()) };
        if session.is_followed() {
            return Ok(());
        }
        let changes = self.changes().await?;
        session.follow(changes, peer.clone(), self.space.settings().root_name.clone());
        Ok(())
    }

    async fn changes(&self) -> Result<Changes, ErrorData> {
        let runtime = tokio::runtime::Handle::current();
        self.blocking(move |space| space.watch().subscribe(&runtime)).await
    }

    /// The path of a resource that a host wants to hear of.
    fn resource(&self, asked: &str) -> Result<String, ErrorData> {
        uri::path(&self.space.settings().root_name, asked)
            .and_then(|raw| self.space.path(&raw).ok())
            .map(|path| path.as_str().to_owned())
            .ok_or_else(|| ErrorData::resource_not_found(format!("Resource not found: {asked}"), None))
    }
}

/// Says how far `cancel`'s work is, until dropped.
async fn report(peer: Peer<RoleServer>, token: ProgressToken, cancel: Cancel) {
    let began = Instant::now();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS, PROGRESS);
    loop {
        ticks.tick().await;
        let seconds = began.elapsed().as_secs_f64();
        let message = match cancel.seen() {
            0 => format!("working for {seconds:.1} s"),
            seen => format!("{seen} entries looked at in {seconds:.1} s"),
        };
        let progress = ProgressNotificationParam::new(token.clone(), seconds).with_message(message);
        told(peer.notify_progress(progress).await);
    }
}

pub(crate) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

fn new_cancel() -> Result<Cancel, ErrorData> {
    Cancel::new().map_err(|error| ErrorData::internal_error(format!("Out of handles: {error}"), None))
}

impl ServerHandler for WorkspaceServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .build();
        let root = &self.space.settings().root_name;
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(NAME, VERSION).with_title("Workspace"))
            .with_instructions(format!(
                "Persistent files shared by agents, below {root}. Paths are relative to it."
            ))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(jsonrpc::unknown(&request, &OFFERED))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let list = ListToolsResult::with_all_items(self.tools.to_vec());
        Ok(if is_modern(&context) {
            list.with_ttl_ms(TOOLS_FRESH_MS).with_cache_scope(CacheScope::Public)
        } else {
            list
        })
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name;
        if !self.tools.iter().any(|tool| tool.name == name) {
            return Err(ErrorData::invalid_params(format!("Unknown tool: {name}"), None));
        }
        let args = Args::new(request.arguments);
        let walks = tools::walks(&name);
        // What does not walk cannot be stopped; all of it shares one signal, which is never given.
        let cancel = if walks { new_cancel()? } else { self.space.never().clone() };
        let for_work = cancel.clone();
        let mut work = std::pin::pin!(
            self.blocking(move |space| tools::run(space, &name, args, &for_work).map(reply::result))
        );
        let progress = context.meta.get_progress_token();
        let report = async {
            match progress {
                Some(token) => report(context.peer.clone(), token, cancel.clone()).await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            result = &mut work => result?,
            () = context.ct.cancelled(), if walks => {
                cancel.cancel();
                work.await?
            }
            () = report => None,
        };
        result.map(Into::into).ok_or_else(|| ErrorData::internal_error("The tool has no code", None))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        if !is_modern(&context) {
            self.follow(&context.peer).await?;
        }
        let cursor = request.and_then(|request| request.cursor);
        let cancel = new_cancel()?;
        let for_work = cancel.clone();
        let mut work =
            std::pin::pin!(self.blocking(move |space| resources::list(space, cursor.as_deref(), &for_work)));
        tokio::select! {
            page = &mut work => page?,
            () = context.ct.cancelled() => {
                cancel.cancel();
                work.await?
            }
        }
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates(&self.space))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.blocking(move |space| resources::read(space, &request.uri)).await?.map(Into::into)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let path = self.resource(&request.uri)?;
        let Some(session) = &self.session else {
            return Err(ErrorData::invalid_request("Subscribing needs a session", None));
        };
        self.follow(&context.peer).await?;
        session.add(path);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let path = self.resource(&request.uri)?;
        if let Some(session) = &self.session {
            session.remove(&path);
        }
        Ok(())
    }

    // The SDK would answer these with empty lists; but there are no prompts here, and nothing to complete.

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        // The SDK leaves out what our capabilities do not name.
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let changes = self.changes().await?;
        let wanted: Vec<(String, String)> = context
            .accepted()
            .resource_subscriptions
            .iter()
            .flatten()
            .filter_map(|uri| Some((self.resource(uri).ok()?, uri.clone())))
            .collect();
        tell_subscriber(changes, &context, &wanted).await;
        Ok(())
    }
}
