//! From a request to the function that answers it.
//!
//! Most tools have a function of their own here, because their texts and error messages over MCP
//! are fixed. A tool without one is run by its function in `atelier-executor`, and answers with the
//! JSON of its result.

use atelier_core::policy::call::{CallError, ToolCall};
use atelier_executor::{Approval, Cancel};
use rmcp::model::JsonObject;
use serde_json::Value;

use crate::reply::{Answer, Failure, Reply};
use crate::served::ServedWorkspace;
use crate::{extra, list, read, search, write};

/// A call with checked arguments, and the paths as its host wrote them, for messages.
pub(crate) struct Request {
    pub(crate) call: ToolCall,
    written: Vec<(&'static str, String)>,
}

impl Request {
    fn parse(served: &ServedWorkspace, name: &str, arguments: JsonObject) -> Result<Self, Failure> {
        let tool = served.settings().table().get(name);
        let params =
            tool.iter().flat_map(|tool| tool.params).filter(|param| param.kind.access().is_some());
        let written = params
            .filter_map(|param| Some((param.name, arguments.get(param.name)?.as_str()?.to_owned())))
            .collect();
        let call = served.parse(name, Value::Object(arguments)).map_err(|error| match error {
            CallError::Params(problems) => Failure::new(problems),
            CallError::Pattern(error) => Failure::new(format!("Search failed - {error}")),
            other => Failure::new(other.to_string()),
        })?;
        Ok(Self { call, written })
    }

    /// The path as the host wrote it.
    pub(crate) fn written(&self, param: &str) -> &str {
        self.written.iter().find(|(name, _)| *name == param).map_or("", |(_, raw)| raw)
    }

    /// A count. Hosts write 0 for one that is not given.
    pub(crate) fn count(&self, param: &str) -> Option<u64> {
        self.call.number(param).filter(|count| *count > 0)
    }
}

type Function = fn(&ServedWorkspace, &Request, &Cancel) -> Answer;

fn function(name: &str) -> Function {
    match name {
        "read_file" => read::read_file,
        "write_file" => write::write_file,
        "list_directory" => list::list_directory,
        "create_directory" => write::create_directory,
        "get_file_info" => list::get_file_info,
        "search_files" => search::search_files,
        "edit_file" => extra::edit_file,
        "append_file" => extra::append_file,
        "move_file" => extra::move_file,
        "delete_file" => extra::delete_file,
        "read_multiple_files" => extra::read_multiple_files,
        "grep" => extra::grep,
        "directory_tree" => extra::directory_tree,
        _ => execute,
    }
}

/// Runs a tool that is listed. Blocks.
pub(crate) fn run(
    served: &ServedWorkspace,
    name: &str,
    arguments: JsonObject,
    cancel: &Cancel,
) -> Answer {
    let request = Request::parse(served, name, arguments)?;
    function(name)(served, &request, cancel)
}

/// Runs a tool by its function in `atelier-executor`.
fn execute(served: &ServedWorkspace, request: &Request, cancel: &Cancel) -> Answer {
    let approval = if served.settings().host_asks { Approval::full() } else { Approval::none() };
    let outcome = served.tools().execute(&request.call, &approval, cancel);
    if let Some(failure) = outcome.failure {
        return Err(Failure::new(failure.detail));
    }
    let fields = Value::Object(outcome.fields);
    let has_schema = request.call.tool.mcp.as_ref().is_some_and(|form| !form.output.is_empty());
    let text = fields.to_string();
    Ok(if has_schema { Reply::with_data(text, fields) } else { Reply::text(text) })
}
