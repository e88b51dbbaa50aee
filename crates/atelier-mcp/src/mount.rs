//! Tools that another part of the program runs. A mount passes each call on, waits for its outcome,
//! and keeps the host informed. `atelier serve` has a mount for the gate of each project and for
//! the files of each conversation.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use atelier_core::TextEncoding;
use atelier_core::policy::Policy;
use atelier_core::tools::ToolDef;
use axum::extract::Request;
use axum::response::Response;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest, CustomResult,
    Implementation, JsonObject, ListPromptsRequestMethod, ListPromptsResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::http::{self, HttpService};
use crate::jsonrpc;
use crate::listing;
use crate::notify::log_failure;
use crate::replay::ReplayBuffer;
use crate::reply::{Answer, Reply, encoding_note};
use crate::served;
use crate::server::{TOOLS_FRESH_MS, VERSION, is_modern};

/// A call, and how to reach its host.
pub struct Call {
    pub tool: String,
    pub arguments: JsonObject,
    pub progress: Progress,
    /// Cancelled when the host no longer waits for the call.
    pub given_up: CancellationToken,
}

/// Reports the progress of a call, if its host asked for that.
pub struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    began: Instant,
}

impl Progress {
    pub async fn report(&self, message: String) {
        let Some(token) = self.token.clone() else { return };
        let seconds = self.began.elapsed().as_secs_f64();
        let progress = ProgressNotificationParam::new(token, seconds).with_message(message);
        log_failure(self.peer.notify_progress(progress).await);
    }
}

/// The outcome of a call, for its host.
pub struct Outcome {
    pub text: String,
    /// The result as data, for tools that have an output schema.
    pub data: Option<Value>,
    /// The encoding of the file that was read or written.
    pub encoding: Option<TextEncoding>,
    /// A second text, beside the result.
    pub remark: Option<String>,
    pub failed: bool,
}

impl Outcome {
    pub fn success(text: String) -> Self {
        Self { text, data: None, encoding: None, remark: None, failed: false }
    }

    /// A failure whose text says that it is one.
    pub fn failure(text: String) -> Self {
        Self { failed: true, ..Self::success(text) }
    }

    /// A failure that is shown as `Error: …`.
    pub fn error(why: &str) -> Self {
        Self::failure(format!("Error: {why}"))
    }

    pub(crate) fn of(answer: Answer) -> Self {
        match answer {
            Ok(Reply { text, data, encoding }) => Self { data, encoding, ..Self::success(text) },
            Err(failure) => Self::error(&failure.into_text()),
        }
    }

    fn into_result(self) -> CallToolResult {
        let content = [self.text].into_iter().chain(self.remark).map(ContentBlock::text).collect();
        let mut result = if self.failed {
            CallToolResult::error(content)
        } else {
            CallToolResult::success(content)
        };
        result.structured_content = self.data;
        result.meta = self.encoding.and_then(encoding_note);
        result
    }
}

/// Runs a call in another part of the program.
pub type RunTool = Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// The information and the tools that a mount offers to hosts.
#[derive(Clone)]
pub struct MountInfo {
    tools: Arc<[Tool]>,
    instructions: Arc<str>,
}

impl MountInfo {
    /// The tools that go through the gate.
    pub fn gated(policy: &Policy, instructions: &str) -> Self {
        let tools = listing::gated_tools(policy.tools(), policy.limits());
        Self { tools: tools.into(), instructions: instructions.into() }
    }

    /// The workspace's own tools.
    pub fn workspace(settings: &served::Settings, instructions: &str) -> Self {
        Self { tools: listing::workspace_tools(settings).into(), instructions: instructions.into() }
    }
}

impl MountInfo {
    /// Adds tools that only this mount has.
    #[must_use]
    pub fn with_tools(self, tools: impl Iterator<Item = &'static ToolDef>) -> Self {
        let added = tools.map(listing::ungated_tool);
        Self { tools: self.tools.iter().cloned().chain(added).collect(), ..self }
    }
}

/// The tools of one project or conversation, and the sessions of its hosts. Access is checked
/// before a request gets here.
pub struct Mount(HttpService<MountHandler>);

impl Mount {
    pub fn new(
        info: MountInfo,
        run: RunTool,
        settings: http::Settings,
        stop: &CancellationToken,
    ) -> Self {
        let handler = MountHandler { info, run };
        let replay = Some(Arc::new(ReplayBuffer::default()) as _);
        Self(HttpService::with_replay(move |_| handler.clone(), settings, stop, replay))
    }

    pub async fn handle(&self, request: Request) -> Response {
        self.0.handle(request).await
    }
}

#[derive(Clone)]
struct MountHandler {
    info: MountInfo,
    run: RunTool,
}

impl ServerHandler for MountHandler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("atelier", VERSION).with_title("Atelier"))
            .with_instructions(self.info.instructions.to_string())
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(jsonrpc::unknown(&request, &["initialize", "tools/list", "tools/call"]))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let list = ListToolsResult::with_all_items(self.info.tools.to_vec());
        Ok(if is_modern(&context) {
            list.with_ttl_ms(TOOLS_FRESH_MS).with_cache_scope(CacheScope::Public)
        } else {
            list
        })
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.info.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.get_tool(&request.name).is_none() {
            return Err(ErrorData::invalid_params(format!("Unknown tool: {}", request.name), None));
        }
        let call = Call {
            tool: request.name.into_owned(),
            arguments: request.arguments.unwrap_or_default(),
            progress: Progress {
                token: context.meta.get_progress_token(),
                peer: context.peer,
                began: Instant::now(),
            },
            given_up: context.ct,
        };
        Ok((self.run)(call).await.into_result().into())
    }

    // The SDK would answer these with empty lists, but a mount has only tools.

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

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
}
