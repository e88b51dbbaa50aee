//! Tools that other code runs. A mount passes each call on, reports progress to the host and
//! returns the outcome. `atelier serve` uses mounts for the gate of a project and for the files of
//! a conversation.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use atelier_core::policy::catalog::ToolInfo;
use axum::extract::Request;
use axum::response::Response;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest, CustomResult,
    Implementation, JsonObject, ListPromptsRequestMethod, ListPromptsResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProgressToken, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::catalogue;
use crate::follow::told;
use crate::http::{self, Front};
use crate::jsonrpc;
use crate::replay::ReplayBuffer;
use crate::reply::Answer;
use crate::server::{TOOLS_FRESH_MS, VERSION, is_modern};
use crate::space;

/// A call, and the ways to report to its host.
pub struct Call {
    pub tool: String,
    pub arguments: JsonObject,
    pub progress: Progress,
    /// Cancelled when the host no longer waits.
    pub given_up: CancellationToken,
}

/// Reports the progress of a call to its host, if the host asked for it.
pub struct Progress {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    began: Instant,
}

impl Progress {
    pub async fn tell(&self, message: String) {
        let Some(token) = self.token.clone() else { return };
        let seconds = self.began.elapsed().as_secs_f64();
        let progress = ProgressNotificationParam::new(token, seconds).with_message(message);
        told(self.peer.notify_progress(progress).await);
    }
}

/// The outcome of a call.
pub struct Outcome {
    pub text: String,
    /// The outcome as data, for tools with an output schema.
    pub data: Option<Value>,
    /// A remark to the host in addition to the result.
    pub remark: Option<String>,
    pub failed: bool,
}

impl Outcome {
    pub fn success(text: String) -> Self {
        Self { text, data: None, remark: None, failed: false }
    }

    /// A failure with a text that already says what failed.
    pub fn failure(text: String) -> Self {
        Self { failed: true, ..Self::success(text) }
    }

    /// A failure that is shown as `Error: …`.
    pub fn error(why: &str) -> Self {
        Self::failure(format!("Error: {why}"))
    }

    pub(crate) fn of(answer: Answer) -> Self {
        match answer {
            Ok(reply) => Self { data: reply.data, ..Self::success(reply.text) },
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
        result
    }
}

/// Runs a call.
pub type Run = Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// The tools and instructions that a mount offers to hosts.
#[derive(Clone)]
pub struct Offer {
    tools: Arc<[Tool]>,
    instructions: Arc<str>,
}

impl Offer {
    /// Offers the tools that go through the gate.
    pub fn gated(tools: &[ToolInfo], instructions: &str) -> Self {
        Self { tools: tools.iter().map(described).collect(), instructions: instructions.into() }
    }

    /// Offers the workspace tools.
    pub fn workspace(settings: &space::Settings, instructions: &str) -> Self {
        Self { tools: catalogue::tools(settings).into(), instructions: instructions.into() }
    }
}

/// One project or conversation with its tools and the sessions of its hosts, as an HTTP service.
/// The caller has to check access before.
pub struct Mount(Front<MountHandler>);

impl Mount {
    pub fn new(offer: Offer, run: Run, settings: http::Settings, stop: &CancellationToken) -> Self {
        let handler = MountHandler { offer, run };
        Self(Front::keeping(
            move |_| handler.clone(),
            settings,
            stop,
            Some(Arc::new(ReplayBuffer::default())),
        ))
    }

    pub async fn handle(&self, request: Request) -> Response {
        self.0.handle(request).await
    }
}

#[derive(Clone)]
struct MountHandler {
    offer: Offer,
    run: Run,
}

fn described(tool: &ToolInfo) -> Tool {
    let parameters = tool.parameters.as_object().cloned().unwrap_or_default();
    let looks = tool.usual_risk == "LOW";
    let mut described = Tool::new(tool.name, tool.description, Arc::new(parameters));
    described.annotations = Some(
        ToolAnnotations::default()
            .read_only(looks)
            .destructive(!looks)
            .open_world(tool.name == "execute_command"),
    );
    described
}

impl ServerHandler for MountHandler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("atelier", VERSION).with_title("Atelier"))
            .with_instructions(self.offer.instructions.to_string())
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
        let list = ListToolsResult::with_all_items(self.offer.tools.to_vec());
        Ok(if is_modern(&context) {
            list.with_ttl_ms(TOOLS_FRESH_MS).with_cache_scope(CacheScope::Public)
        } else {
            list
        })
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.offer.tools.iter().find(|tool| tool.name == name).cloned()
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

    // The SDK would answer these methods with empty lists, but a mount does not offer them.

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
