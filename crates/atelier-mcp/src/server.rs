//! The protocol of a workspace: its methods and their answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atelier_executor::Cancel;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, CustomRequest, CustomResult, Implementation,
    ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{Peer, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::call_log::CallLog;
use crate::notify::{Changes, Session, log_failure, notify_subscriber};
use crate::served::ServedWorkspace;
use crate::{jsonrpc, listing, reply, resources, tools, uri};

/// The name of this server, for hosts and health checks.
pub(crate) const NAME: &str = "workspace-tool";
/// The version of the workspace tool: of its tools and texts, whichever version of Atelier serves
/// them.
pub(crate) const TOOL_VERSION: &str = "1.0.0";
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How often a host that asked for progress gets a notification.
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

/// Answers one host. Clones share its subscriptions.
#[derive(Debug, Clone)]
pub struct WorkspaceServer {
    served: ServedWorkspace,
    tools: Arc<Vec<Tool>>,
    session: Option<Arc<Session>>,
}

impl WorkspaceServer {
    /// For a host with a session. It may subscribe to changes.
    pub fn new(served: ServedWorkspace) -> Self {
        Self { session: Some(Arc::default()), ..Self::stateless(served) }
    }

    /// For requests without a session.
    pub fn stateless(served: ServedWorkspace) -> Self {
        let tools = Arc::new(listing::workspace_tools(served.settings()));
        Self { served, tools, session: None }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServedWorkspace) -> T + Send + 'static,
    ) -> Result<T, ErrorData> {
        let served = self.served.clone();
        let _slot = self.served.call_slot().await;
        tokio::task::spawn_blocking(move || work(&served)).await.map_err(|error| {
            tracing::error!(%error, "a tool failed");
            ErrorData::internal_error("The tool failed", None)
        })
    }

    /// Notifies a host of the older protocol about changes, from its first request for resources
    /// on.
    async fn follow(&self, peer: &Peer<RoleServer>) -> Result<(), ErrorData> {
        let Some(session) = &self.session else { return Ok(()) };
        if session.is_followed() {
            return Ok(());
        }
        let changes = self.changes().await?;
        session.follow(changes, peer.clone(), self.served.settings().root_name.clone());
        Ok(())
    }

    async fn changes(&self) -> Result<Changes, ErrorData> {
        let runtime = tokio::runtime::Handle::current();
        self.blocking(move |served| served.watch().subscribe(&runtime)).await
    }

    /// The path of a resource that a host subscribes to.
    fn resource(&self, asked: &str) -> Result<String, ErrorData> {
        uri::path(&self.served.settings().root_name, asked)
            .and_then(|raw| self.served.path(&raw).ok())
            .map(|path| path.as_str().to_owned())
            .ok_or_else(|| {
                ErrorData::resource_not_found(format!("Resource not found: {asked}"), None)
            })
    }
}

/// Reports the progress of the work that `cancel` belongs to, until it is dropped.
async fn report(peer: Peer<RoleServer>, token: ProgressToken, cancel: Cancel) -> Infallible {
    let began = Instant::now();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS, PROGRESS);
    loop {
        ticks.tick().await;
        let seconds = began.elapsed().as_secs_f64();
        let message = match cancel.seen() {
            0 => format!("working for {seconds:.1} s"),
            seen => format!("{seen} entries examined in {seconds:.1} s"),
        };
        let progress = ProgressNotificationParam::new(token.clone(), seconds).with_message(message);
        log_failure(peer.notify_progress(progress).await);
    }
}

pub(crate) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

fn new_cancel() -> Result<Cancel, ErrorData> {
    Cancel::new()
        .map_err(|error| ErrorData::internal_error(format!("Out of handles: {error}"), None))
}

impl ServerHandler for WorkspaceServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .build();
        let root = &self.served.settings().root_name;
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(NAME, TOOL_VERSION).with_title("Workspace"))
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
        let arguments = request.arguments.unwrap_or_default();
        let tool = self.served.settings().table().get(&name);
        let log = CallLog::begin(&name, tool, &arguments);
        if !self.tools.iter().any(|tool| tool.name == name) {
            log.failed();
            return Err(ErrorData::invalid_params(format!("Unknown tool: {name}"), None));
        }
        let walks = tool.and_then(|tool| tool.mcp.as_ref()).is_some_and(|form| form.walks);
        // Only tools that walk can be cancelled. The others share one signal, which is never given.
        let cancel = if walks { new_cancel()? } else { self.served.never_cancelled().clone() };
        let for_work = cancel.clone();
        let mut work = std::pin::pin!(self.blocking(move |served| reply::result(tools::run(
            served, &name, arguments, &for_work
        ))));
        let progress = context.meta.get_progress_token();
        let report = async {
            match progress {
                Some(token) => report(context.peer.clone(), token, cancel.clone()).await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            result = &mut work => result,
            () = context.ct.cancelled(), if walks => {
                cancel.cancel();
                work.await
            }
            never = report => match never {},
        };
        match &result {
            Ok(result) => log.end(result),
            Err(_) => log.failed(),
        }
        Ok(result?.into())
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
        let mut work = std::pin::pin!(self.blocking(move |served| resources::list(
            served,
            cursor.as_deref(),
            &for_work
        )));
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
        Ok(resources::templates(&self.served))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.blocking(move |served| resources::read(served, &request.uri)).await?.map(Into::into)
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

    // The SDK would answer these with empty lists, but this server has no prompts and completes
    // nothing.

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

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        // The SDK leaves out what our capabilities do not include.
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
        notify_subscriber(changes, &context, &wanted).await;
        Ok(())
    }
}
