//! The functions that run the tools, one for each definition in `atelier_core::tools`.

use std::borrow::Cow;

use atelier_core::gate::ToolOutcome;
use atelier_core::path::WorkspacePath;
use atelier_core::policy::call::ToolCall;
use atelier_core::{FailureCode, TextEncoding};
use serde_json::json;

use super::answer::{self, fields};
use super::judge::Judged;
use super::kind::{Shown, present};
use super::{Approval, Tools, commands, exact, layered};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::glob::Glob;
use crate::grep::GrepSpec;
use crate::read::Part;
use crate::search::Listing;
use crate::write::{Expect, MissingParents, Written};

/// One call that is about to run: it was judged, and is within what was approved.
pub struct ReadyCall<'a> {
    pub tools: &'a Tools<'a>,
    pub call: &'a ToolCall,
    /// For a write: the file that the approval was shown against.
    pub expect: &'a Expect,
    pub cancel: &'a Cancel,
    /// The approval, for functions that find out only while they run what exactly they change.
    pub approval: &'a Approval,
    pub(super) judged: Judged,
}

/// Runs one tool. It may rely on the arguments being checked by the tool's definition.
pub type Function = fn(&ReadyCall<'_>) -> Result<ToolOutcome>;

/// The functions that run the tools, by the names of the tools.
#[derive(Debug, Clone)]
pub struct Functions(Cow<'static, [(&'static str, Function)]>);

static BUILTIN: Functions = Functions(Cow::Borrowed(&[
    ("read_file", read_file),
    ("write_file", write_file),
    ("list_directory", list_directory),
    ("create_directory", create_directory),
    ("get_file_info", get_file_info),
    ("search_files", search_files),
    ("edit_file", edit_file),
    ("move_file", move_file),
    ("delete_file", delete_file),
    ("grep", grep),
    ("execute_command", commands::execute_command),
    ("shell", layered::shell),
    ("changes", layered::changes),
    ("diff", layered::diff),
    ("land", layered::land_or_undo),
    ("discard", layered::discard),
    ("undo", layered::land_or_undo),
    ("jobs", layered::jobs),
    ("job_output", layered::job_output),
    ("job_stop", layered::job_stop),
]));

impl Functions {
    /// The functions of the tools that come with Atelier.
    pub fn builtin() -> &'static Functions {
        &BUILTIN
    }

    /// These functions, and one for another tool.
    #[must_use]
    pub fn with(&self, tool: &'static str, function: Function) -> Functions {
        let others = self.0.iter().copied().filter(|(name, _)| *name != tool);
        Functions(others.chain([(tool, function)]).collect())
    }

    pub(super) fn get(&self, tool: &str) -> Option<Function> {
        self.0.iter().find(|(name, _)| *name == tool).map(|(_, function)| *function)
    }
}

fn read_file(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    let lines = |name| ready.call.number(name).filter(|lines| *lines > 0);
    let part = match (lines("head"), lines("tail")) {
        (Some(_), Some(_)) => {
            return Ok(ToolOutcome::failed(
                FailureCode::InvalidParams,
                "Cannot specify both 'head' and 'tail' parameters",
            ));
        }
        (Some(lines), None) => Part::Head(lines),
        (None, Some(lines)) => Part::Tail(lines),
        (None, None) => Part::Whole,
    };
    let Shown { content, encoding, size, checksum } = present(ready.tools.workspace, path, part)?;
    Ok(fields(json!({
        "path": path.as_str(), "content": content, "encoding": encoding, "size": size, "checksum": checksum,
    })))
}

fn write_file(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let (path, content) = (ready.call.path("path")?, ready.call.text("content")?);
    let expect = &ready.unchanged(path)?;
    let parents = if ready.call.flag("create_dirs") {
        MissingParents::Create
    } else {
        MissingParents::Refuse
    };
    let ws = ready.tools.workspace;
    let written = match ready.call.chose("mode", "append") {
        true => ws.append_text(path, content, expect, parents),
        false => ws.write_text(path, content, expect, parents),
    };
    let (written, encoding) = written.map_err(|error| match error {
        Error::NotFound { path } if parents == MissingParents::Refuse => Error::NoFolder { path },
        other => other,
    })?;
    Ok(wrote(path, &written, encoding))
}

fn edit_file(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    let expect = &ready.unchanged(path)?;
    let ws = ready.tools.workspace;
    let (written, encoding) = ws.edit(path, &exact(ready.call.edits("edits")), expect)?;
    Ok(wrote(path, &written, encoding))
}

fn list_directory(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    let pattern = ready.call.optional_text("pattern").unwrap_or("*");
    let glob = Glob::parse_for_names(pattern, ready.call.flag("recursive"))?;
    let limit = ready.tools.policy.limits().list_entries;
    let listed = ready.tools.workspace.list(path, &Listing { glob, limit }, ready.cancel)?;
    Ok(answer::listing(path.as_str(), &listed))
}

fn search_files(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    let glob = Glob::parse(ready.call.text("pattern")?)?;
    let found = ready.tools.workspace.search(path, &glob, ready.max_results(), ready.cancel)?;
    Ok(answer::found(path.as_str(), &found))
}

fn create_directory(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    let created = ready.tools.workspace.create_directory(path)?;
    Ok(fields(json!({ "path": path.as_str(), "created": created })))
}

fn get_file_info(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    Ok(answer::info(path.as_str(), &ready.tools.workspace.info(path)?))
}

fn move_file(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let (source, destination) = (ready.call.path("source")?, ready.call.path("destination")?);
    ready.check_shown(source)?;
    ready.tools.workspace.move_entry(source, destination, false)?;
    Ok(fields(json!({ "source": source.as_str(), "destination": destination.as_str() })))
}

fn delete_file(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let path = ready.call.path("path")?;
    ready.check_shown(path)?;
    let deleted = ready.tools.workspace.delete(path, false)?;
    Ok(fields(json!({ "path": path.as_str(), "deleted": deleted })))
}

fn grep(ready: &ReadyCall<'_>) -> Result<ToolOutcome> {
    let (call, tools) = (ready.call, ready.tools);
    let glob =
        call.optional_text("glob").map(|glob| Glob::parse_for_names(glob, true)).transpose()?;
    let spec = GrepSpec {
        pattern: call.text("pattern")?.to_owned(),
        literal: call.flag("literal"),
        ignore_case: call.flag("ignore_case"),
        glob,
        context: u32::try_from(call.number("context").unwrap_or(0)).unwrap_or(u32::MAX),
        limit: ready.max_results(),
    };
    // A file that the call names was judged and approved. Secret files that the search meets on its
    // way are skipped.
    let is_secret = |path: &std::path::Path| tools.is_secret(path);
    let found = tools.workspace.grep(call.path("path")?, &spec, is_secret, ready.cancel)?;
    Ok(answer::grepped(&found))
}

impl ReadyCall<'_> {
    /// Checks that the entry to move or delete is the one that was shown.
    fn check_shown(&self, path: &WorkspacePath) -> Result<()> {
        let expected = match self.expect {
            Expect::Anything => return Ok(()),
            Expect::Absent => "",
            Expect::Checksum(expected) => expected,
        };
        let found = self.tools.describe(path)?.checksum;
        match found == expected {
            true => Ok(()),
            false => {
                let path = path.as_str().to_owned();
                Err(Error::Stale { path, expected: expected.to_owned(), found })
            }
        }
    }

    /// The state that a file must have if the caller has read it before. If the file differs
    /// already, the caller gets an error. If it changes between this check and the write, the write
    /// fails.
    fn unchanged(&self, path: &WorkspacePath) -> Result<Expect> {
        let Some(read) = self.call.optional_text("if_checksum") else {
            return Ok(self.expect.clone());
        };
        let found = match self.tools.workspace.read(path, Part::Whole) {
            Ok(content) => Some(content.checksum),
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        if found.as_deref() != Some(read) {
            return Err(Error::Conflict { path: path.as_str().to_owned() });
        }
        Ok(match self.expect {
            Expect::Anything => Expect::Checksum(read.to_owned()),
            stricter => stricter.clone(),
        })
    }

    fn max_results(&self) -> usize {
        let limit = self.tools.policy.limits().search_results;
        let wanted =
            self.call.number("max_results").and_then(|wanted| usize::try_from(wanted).ok());
        wanted.unwrap_or(limit).min(limit)
    }
}

fn wrote(path: &WorkspacePath, written: &Written, encoding: TextEncoding) -> ToolOutcome {
    fields(json!({
        "path": path.as_str(),
        "encoding": encoding,
        "size": written.size,
        "timestamp": chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        "checksum": written.checksum,
        "created": written.created,
        "replaced_checksum": written.replaced,
    }))
}
