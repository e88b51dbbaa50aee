//! The definitions of the tools that work in a layer: a copy-on-write view of the workspace in
//! which commands run before their changes are landed.

use super::{CardRow, Effect, Kind, Offered, Param, Rating, TextLimit, TimeLimit, ToolDef};
use crate::policy::verdict::Verdict;

/// The common fields of these definitions: the tools are offered to agents and to MCP hosts of
/// projects. `atelier mcp` has no layers, so it does not offer them.
const LAYERED: ToolDef = ToolDef {
    name: "",
    title: "",
    description: "",
    params: &[],
    effect: Effect::ReadsLayer,
    rating: Rating::Always(Verdict::Low),
    reason: "It only reads the layer.",
    has_preview: false,
    card: &[],
    summary: "",
    offered: Offered::ThroughGate,
    mcp: None,
};

const PATHS: Param = Param::optional(
    "paths",
    Kind::Paths,
    "Files and folders relative to {root} (default: all changes)",
);
const PATHS_CARD: &[CardRow] = &[CardRow::new("paths", "{paths}")];
const JOB: Param = Param::required(
    "job_id",
    Kind::Text(TextLimit::Argument),
    "The job, as shell and jobs return it",
);
const JOB_CARD: &[CardRow] = &[CardRow::new("job", "{job_id}")];

pub static SHELL: ToolDef = ToolDef {
    name: "shell",
    title: "Run in a shell",
    description: "Run a bash script in a layer over the workspace: pipes, loops, heredocs, any \
        program of the machine. Files that it changes stay in the layer until `land` puts them \
        into the workspace, so that you can try freely. There is no network but the layer's own \
        localhost, unless `network` names hosts, which a person is asked about.",
    params: &[
        Param::required("script", Kind::Text(TextLimit::Script), "The script, as bash reads it"),
        Param::optional("timeout", Kind::Timeout(TimeLimit::Shell), "Seconds (default: 120)"),
        Param::default(
            "background",
            Kind::Flag,
            "Return at once and let the script go on as a job: see jobs, job_output, job_stop",
        ),
        Param::default(
            "network",
            Kind::Hosts,
            "Host names that the script may connect to, such as pypi.org",
        ),
    ],
    effect: Effect::ChangesLayer,
    rating: Rating::Shell,
    reason: "It runs in a layer, without the network. The workspace stays as it is.",
    card: &[CardRow::new("script", "{script}"), CardRow::new("network", "{network}")],
    summary: "{script}",
    ..LAYERED
};

pub static CHANGES: ToolDef = ToolDef {
    name: "changes",
    title: "List changes",
    description: "List the files that differ between the layer and the workspace. Files that git \
        ignores are only counted.",
    ..LAYERED
};

pub static DIFF: ToolDef = ToolDef {
    name: "diff",
    title: "Show changes",
    description: "Show what landing the layer would change, as a unified diff.",
    params: &[PATHS],
    card: PATHS_CARD,
    summary: "{paths}",
    ..LAYERED
};

pub static LAND: ToolDef = ToolDef {
    name: "land",
    title: "Land changes",
    description: "Put the layer's changes into the workspace, all or nothing. A person sees the \
        whole difference first. It can be undone.",
    params: &[PATHS],
    effect: Effect::Lands,
    rating: Rating::Landing,
    reason: "It puts changes of the layer into the workspace.",
    has_preview: true,
    card: PATHS_CARD,
    summary: "{paths}",
    ..LAYERED
};

pub static DISCARD: ToolDef = ToolDef {
    name: "discard",
    title: "Discard changes",
    description: "Throw the layer's changes away, so that the layer shows the workspace again.",
    params: &[PATHS],
    effect: Effect::ChangesLayer,
    reason: "It only changes the layer. The workspace stays as it is.",
    card: PATHS_CARD,
    summary: "{paths}",
    ..LAYERED
};

pub static UNDO: ToolDef = ToolDef {
    name: "undo",
    title: "Undo changes",
    description: "Bring back the files as they were before a call, a task or a conversation \
        changed them; without a parameter, before the latest landing. Files that were changed \
        since are left alone.",
    params: &[
        Param::optional("tool_id", Kind::Id, "The call to undo"),
        Param::optional("task_id", Kind::Id, "The task whose changes to undo"),
        Param::optional("session_id", Kind::Id, "The conversation whose changes to undo"),
    ],
    effect: Effect::Lands,
    rating: Rating::Landing,
    reason: "It brings back files of the workspace as they were.",
    has_preview: true,
    card: &[
        CardRow::new("call", "{tool_id}"),
        CardRow::new("task", "{task_id}"),
        CardRow::new("conversation", "{session_id}"),
    ],
    summary: "{tool_id}{task_id}{session_id}",
    ..LAYERED
};

pub static JOBS: ToolDef = ToolDef {
    name: "jobs",
    title: "List jobs",
    description: "List the scripts that run in the background of this conversation.",
    ..LAYERED
};

pub static JOB_OUTPUT: ToolDef = ToolDef {
    name: "job_output",
    title: "Read job output",
    description: "Read what a job, or an earlier shell call, has written so far.",
    params: &[
        JOB,
        Param::optional("offset", Kind::Number { most: u64::MAX }, "The first byte to return"),
        Param::optional("limit", Kind::Number { most: u64::MAX }, "The most bytes to return"),
    ],
    card: JOB_CARD,
    summary: "{job_id}",
    ..LAYERED
};

pub static JOB_STOP: ToolDef = ToolDef {
    name: "job_stop",
    title: "Stop job",
    description: "End a job and all its processes.",
    params: &[JOB],
    effect: Effect::ChangesLayer,
    reason: "It only ends processes of the layer.",
    card: JOB_CARD,
    summary: "{job_id}",
    ..LAYERED
};
