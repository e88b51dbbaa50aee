//! The definitions of the tools that act beside a workspace: on an agent's memory, and on the files
//! of a conversation as a whole. Nobody is asked about their calls, so they do not go through the
//! gate.

use super::{Effect, Kind, Offered, Param, Rating, TextLimit, ToolDef};
use crate::{InteractionType, policy::verdict::Verdict};

/// The common fields of these definitions.
const UNGATED: ToolDef = ToolDef {
    name: "",
    title: "",
    description: "",
    params: &[],
    effect: Effect::ActsBeside,
    rating: Rating::Always(Verdict::Low),
    reason: "It does not act on the workspace.",
    has_preview: false,
    card: &[],
    summary: "",
    offered: Offered::WithMemory,
    mcp: None,
};

pub static SEARCH_CONTEXT: ToolDef = ToolDef {
    name: "search_context",
    title: "Search memory",
    description: "Search your memory of earlier messages, tasks and tool calls.",
    params: &[
        Param::required(
            "query",
            Kind::Text(TextLimit::None),
            "What to look for, in your own words",
        ),
        Param::optional(
            "k",
            Kind::Number { most: 20 },
            "The largest number of results, 5 by default and 20 at most",
        ),
        Param::optional(
            "types",
            Kind::Names(&InteractionType::NAMES),
            "Only interactions of these types",
        ),
        Param::optional(
            "success",
            Kind::Flag,
            "Only interactions that succeeded, or only those that failed",
        ),
    ],
    summary: "{query}",
    ..UNGATED
};

pub static ADD_CONTEXT: ToolDef = ToolDef {
    name: "add_context",
    title: "Add to memory",
    description: "Add a note to your memory, to find it again in later tasks.",
    params: &[Param::required(
        "text",
        Kind::Text(TextLimit::None),
        "What to remember, in a few sentences",
    )],
    summary: "{text}",
    ..UNGATED
};

pub static PRESENT_FILES: ToolDef = ToolDef {
    name: "present_files",
    title: "Present files",
    description: "Show files of this conversation to the user, who can then download them.",
    params: &[
        Param::required("paths", Kind::Words, "Paths of the files"),
        Param::optional("description", Kind::Text(TextLimit::None), "What the files are"),
    ],
    summary: "{paths}",
    offered: Offered::WithOwnFiles,
    ..UNGATED
};

pub static BEGIN_RUN: ToolDef = ToolDef {
    name: "begin_run",
    title: "Begin a run",
    description: "For programs on the server's machine: bring the newest versions of all files \
        into a local folder (workspace_path), to work on them there with your own tools. Call \
        end_run afterwards. Nobody else can change the folder meanwhile.",
    params: &[Param::optional(
        "lease_seconds",
        Kind::Number { most: 24 * 3600 },
        "How long the run may take, 600 seconds by default",
    )],
    offered: Offered::ToHostsOfOwnFiles,
    ..UNGATED
};

pub static END_RUN: ToolDef = ToolDef {
    name: "end_run",
    title: "End a run",
    description: "End a run: what changed in the folder becomes new versions of the files.",
    params: &[Param::required("run_id", Kind::Id, "The id that begin_run returned")],
    offered: Offered::ToHostsOfOwnFiles,
    ..UNGATED
};
