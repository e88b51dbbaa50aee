//! The simplest possible server on this SDK and transport. `make bench-mcp` measures it as the
//! floor. It answers every call with the same KB of text, or with a MB if the path asks for it.

use atelier_mcp::stdio;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio_util::sync::CancellationToken;

struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = rmcp::model::JsonObject::from_iter([("type".to_owned(), "object".into())]);
        Ok(ListToolsResult::with_all_items(vec![Tool::new("read_file", "echo", schema)]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let path = request.arguments.as_ref().and_then(|args| args.get("path")?.as_str());
        let lines = if path.is_some_and(|path| path.contains("1m")) { 1 << 14 } else { 1 << 4 };
        let text = format!("{}\n", "x".repeat(63)).repeat(lines);
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    Ok(stdio::serve(Echo, 1 << 20, CancellationToken::new()).await?)
}
