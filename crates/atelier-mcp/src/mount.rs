//! Tools that somebody else runs: each call is handed over and its answer waited for, while the host hears how
//! it stands. `atelier serve` stands such a mount before the gate of a project and before a conversation's files.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use atelier_core::policy::catalog::ToolInfo;
use axum::extract::Request;
use axum::response::Response;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest, CustomResult, Implementation,
    JsonObject, ListPromptsRequestMethod, ListPromptsResult, ListResourcesRequestMethod, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ServerCapabilities,
    ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::catalogue;
use crate::follow::told;
use crate::http::{self, Front};
use crate::jsonrpc;
use crate::kept::Kept;
use crate::reply::Answer;
use crate::server::{TOOLS_FRESH_MS, VERSION, is_modern};
use crate::space;

/// A call, and the ways to its host.
pub struct Call {
    pub tool: String,
    pub arguments: JsonObject,
    pub progress: Progress,
    /// Cancelled when the host no longer waits.
    pub given_up: CancellationToken,
}

/// Tells the host how a call stands, if it asked to be told.
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

/// What came of a call.
pub struct Outcome {
    pub text: String,
    /// The same as data, for tools that promise it.
    pub data: Option<Value>,
    /// What there is to know beside the result.
    pub remark: Option<String>,
    pub failed: bool,
}

impl Outcome {
    pub fn success(text: String) -> Self {
        Self { text, data: None, remark: None, failed: false }
    }

    /// With a text that says so itself.
    pub fn failure(text: String) -> Self {
        Self { failed: true, ..Self::success(text) }
    }

    /// Shown as `Error: …`.
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
        let mut result =
            if self.failed { CallToolResult::error(content) } else { CallToolResult::success(content) };
        result.structured_content = self.data;
        result
    }
}

/// Runs a call, wherever that is.
pub type Run = Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// What a host is shown of a place.
#[derive(Clone)]
pub struct Offer {
    tools: Arc<[Tool]>,
    instructions: Arc<str>,
}

impl Offer {
    /// The tools that go through the gate.
    pub fn gated(tools: &[ToolInfo], instructions: &str) -> Self {
        Self { tools: tools.iter().map(described).collect(), instructions: instructions.into() }
    }

    /// The workspace's own tools.
    pub fn workspace(settings: &space::Settings, instructions: &str) -> Self {
        Self { tools: catalogue::tools(settings).into(), instructions: instructions.into() }
    }
}

/// One place with its tools and the sessions of its hosts, to be stood behind an address. Who may come in is
/// decided before it.
pub struct Mount(Front<Desk>);

impl Mount {
    pub fn new(offer: Offer, run: Run, settings: http::Settings, stop: &CancellationToken) -> Self {
        let desk = Desk { offer, run };
        Self(Front::keeping(move |_| desk.clone(), settings, stop, Some(Arc::new(Kept::default()))))
    }

    pub async fn handle(&self, request: Request) -> Response {
        self.0.handle(request).await
    }
}

#[derive(Clone)]
struct Desk {
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

impl ServerHandler for Desk {
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

    // The SDK would answer these with empty lists; but there is nothing of the kind here.

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
