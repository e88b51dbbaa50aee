//! A server with everything that the official conformance suite expects, on the transports of
//! `atelier mcp`. It is not shipped: `scripts/mcp/conformance` builds and starts it. It prints its
//! address on standard output.
#![allow(clippy::print_stdout, reason = "whoever starts it reads the address there")]
#![allow(deprecated, reason = "the suite still asks about sampling")]

use std::sync::Arc;

use atelier_mcp::hosts::AllowedHosts;
use atelier_mcp::http::{self, Settings};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
    Implementation, JsonObject, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ReadResourceRequestParams,
    ReadResourceResponse, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
    ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// A PNG image with one red pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV file without samples.
const SILENCE: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

#[derive(Clone)]
struct Fixture {
    tools_changed: broadcast::Sender<()>,
}

impl Fixture {
    fn tools() -> Vec<Tool> {
        let plain = [
            "test_simple_text",
            "test_image_content",
            "test_audio_content",
            "test_embedded_resource",
            "test_multiple_content_types",
            "test_error_handling",
            "test_tool_with_progress",
            "test_missing_capability",
            "test_trigger_tool_change",
            "test_streaming_elicitation",
            "test_logging_tool",
        ];
        let empty = || object(json!({ "type": "object", "properties": {} }));
        let mut tools: Vec<Tool> = plain
            .into_iter()
            .map(|name| Tool::new(name, "For the conformance suite", empty()))
            .collect();
        tools.push(Tool::new(
            "json_schema_2020_12_tool",
            "Tool with JSON Schema 2020-12 features",
            schema(),
        ));
        let named = json!({
            "type": "object",
            "properties": { "region": { "type": "string", "x-mcp-header": "Region" } },
        });
        tools.push(Tool::new("test_headers", "For the conformance suite", object(named)));
        tools
    }
}

fn object(value: serde_json::Value) -> Arc<JsonObject> {
    Arc::new(value.as_object().cloned().unwrap_or_default())
}

fn schema() -> Arc<JsonObject> {
    object(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": { "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
        } },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    }))
}

fn text_resource(uri: &str, kind: &str, text: &str) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(kind)
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            // The SDK answers these requests itself, with empty lists.
            .enable_prompts()
            .enable_completions()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("atelier-conformance", "1"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(Self::tools()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        Self::tools().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let image = || ContentBlock::image(PIXEL, "image/png");
        let content = match request.name.as_ref() {
            "test_simple_text" => {
                vec![ContentBlock::text("This is a simple text response for testing.")]
            }
            "test_image_content" => vec![image()],
            "test_audio_content" => vec![ContentBlock::audio(SILENCE, "audio/wav")],
            "test_embedded_resource" => vec![ContentBlock::resource(text_resource(
                "test://embedded-resource",
                "text/plain",
                "This is an embedded resource content.",
            ))],
            "test_multiple_content_types" => vec![
                ContentBlock::text("Multiple content types test:"),
                image(),
                ContentBlock::resource(text_resource(
                    "test://mixed-content-resource",
                    "application/json",
                    r#"{"test":"data","value":123}"#,
                )),
            ],
            "test_error_handling" => {
                let text = "This tool intentionally returns an error for testing";
                return Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into());
            }
            "test_tool_with_progress" => {
                if let Some(token) = context.meta.get_progress_token() {
                    for progress in [0.0, 50.0, 100.0] {
                        let progress = ProgressNotificationParam::new(token.clone(), progress)
                            .with_total(100.0);
                        let sent = context.peer.notify_progress(progress).await;
                        sent.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                    }
                }
                vec![ContentBlock::text("done")]
            }
            "test_missing_capability" => {
                let needed = ClientCapabilities::builder().enable_sampling().build();
                return Err(ErrorData::missing_required_client_capability(needed));
            }
            "test_trigger_tool_change" => {
                // Sending fails if nobody is subscribed.
                let _ = self.tools_changed.send(());
                vec![ContentBlock::text("changed")]
            }
            // A stream of revision 2026-07-28 carries no requests, and log lines only on request.
            // This server sends neither.
            "test_streaming_elicitation"
            | "test_logging_tool"
            | "test_headers"
            | "json_schema_2020_12_tool" => vec![ContentBlock::text("ok")],
            other => return Err(ErrorData::invalid_params(format!("Unknown tool: {other}"), None)),
        };
        Ok(CallToolResult::success(content).into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |uri, name, kind| {
            Resource::new(uri, name)
                .with_description("For the conformance suite")
                .with_mime_type(kind)
        };
        Ok(ListResourcesResult::with_all_items(vec![
            resource("test://static-text", "static-text", "text/plain"),
            resource("test://static-binary", "static-binary", "image/png"),
            resource("test://watched-resource", "watched-resource", "text/plain"),
        ]))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new("test://template/{id}/data", "template");
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let contents = match (uri, id) {
            ("test://static-text", _) => {
                text_resource(uri, "text/plain", "This is the content of the static text resource.")
            }
            ("test://static-binary", _) => {
                ResourceContents::blob(PIXEL, uri).with_mime_type("image/png")
            }
            ("test://watched-resource", _) => text_resource(uri, "text/plain", "Watched."),
            (_, Some(id)) => {
                let data =
                    json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                text_resource(uri, "application/json", &data.to_string())
            }
            _ => {
                return Err(ErrorData::resource_not_found(
                    "Resource not found",
                    Some(json!({ "uri": uri })),
                ));
            }
        };
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changed = self.tools_changed.subscribe();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changed.recv() => {
                    if change.is_ok() && context.accepted().tools_list_changed == Some(true) {
                        let sent = context.sink().notify_tool_list_changed().await;
                        sent.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
                    }
                }
            }
        }
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let fixture = Fixture { tools_changed: broadcast::Sender::new(16) };
    let settings = Settings {
        allowed_hosts: AllowedHosts::loopback(),
        allowed_origins: Vec::new(),
        token: None,
        max_body: 4 << 20,
        session_idle: std::time::Duration::from_secs(60),
    };
    http::serve(listener, move |_| fixture.clone(), settings, CancellationToken::new()).await
}
