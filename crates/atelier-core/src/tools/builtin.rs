//! The definitions of the tools that come with Atelier, in the order in which they are offered.

use super::{
    CardRow, Effect, Kind, McpForm, Offered, Output, OutputKind, Param, Rating, TextLimit, ToolDef,
    layered,
    param::{Choice, TimeLimit},
    ungated,
};
use crate::policy::{Access, verdict::Verdict};

pub static ALL: [&ToolDef; 28] = [
    &READ_FILE,
    &WRITE_FILE,
    &LIST_DIRECTORY,
    &CREATE_DIRECTORY,
    &GET_FILE_INFO,
    &SEARCH_FILES,
    &EDIT_FILE,
    &APPEND_FILE,
    &MOVE_FILE,
    &DELETE_FILE,
    &READ_MULTIPLE_FILES,
    &GREP,
    &DIRECTORY_TREE,
    &EXECUTE_COMMAND,
    &layered::SHELL,
    &layered::CHANGES,
    &layered::DIFF,
    &layered::LAND,
    &layered::DISCARD,
    &layered::UNDO,
    &layered::JOBS,
    &layered::JOB_OUTPUT,
    &layered::JOB_STOP,
    &ungated::SEARCH_CONTEXT,
    &ungated::ADD_CONTEXT,
    &ungated::PRESENT_FILES,
    &ungated::BEGIN_RUN,
    &ungated::END_RUN,
];

const NUMBER: Kind = Kind::Number { most: u64::MAX };
const FILE: &str = "File path relative to {root} (or absolute path within {root})";
const DIRECTORY: &str = "Directory path relative to {root} (or absolute path within {root})";
const START: &str = "Where to start, relative to {root}";
const PATH: &[CardRow] = &[CardRow::new("path", "{path}")];
const MAX_RESULTS: Param = Param::optional("max_results", NUMBER, "The most results to return");
const IF_CHECKSUM: Param = Param::optional(
    "if_checksum",
    Kind::Checksum,
    "The checksum that read_file returned. If the file has changed since, nothing is written",
)
.gate_only();

pub static READ_FILE: ToolDef = ToolDef {
    name: "read_file",
    title: "Read file",
    description: "Read a file.",
    params: &[
        Param::required("path", Kind::File(Access::Read), FILE),
        Param::optional("head", NUMBER, "Read only first N lines"),
        Param::optional("tail", NUMBER, "Read only last N lines"),
    ],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only reads a file of the workspace.",
    has_preview: false,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "Read complete file contents from workspace. Text files (UTF-8) only.",
        walks: false,
        output: &[],
    }),
};

pub static WRITE_FILE: ToolDef = ToolDef {
    name: "write_file",
    title: "Write file",
    description: "Write a file, or append to it.",
    params: &[
        Param::required("path", Kind::File(Access::Write), FILE),
        Param::required(
            "content",
            Kind::Text(TextLimit::File),
            "The complete content of the file or, with mode append, the text to add",
        )
        .mcp_description("Complete file contents to write (replaces any existing content)"),
        Param::default(
            "mode",
            Kind::Choice(&[
                Choice { name: "write", alias: Some("overwrite") },
                Choice::new("append"),
            ]),
            "Whether to replace the file or to add to its end",
        )
        .gate_only(),
        Param::default("create_dirs", Kind::Flag, "Create missing parent directories").gate_only(),
        IF_CHECKSUM,
    ],
    effect: Effect::Replaces,
    rating: Rating::Change,
    reason: "It changes a file of the project.",
    has_preview: true,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "Create new file or completely overwrite existing file in workspace. This \
            replaces the entire \
             file contents: to append, read the file first and write back the combined content. \
             Parent \
             directories are created.",
        walks: false,
        output: &[],
    }),
};

pub static LIST_DIRECTORY: ToolDef = ToolDef {
    name: "list_directory",
    title: "List directory",
    description: "List a directory.",
    params: &[
        Param::gate_default("path", Kind::Path(Access::Read), DIRECTORY),
        Param::default("recursive", Kind::Flag, "Include subdirectories").gate_only(),
        Param::optional(
            "pattern",
            Kind::Glob(None),
            "A glob pattern. Hidden names are listed only if the pattern names them, as in .*",
        )
        .gate_only(),
    ],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only lists names in the workspace.",
    has_preview: false,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "List directory contents with [FILE] and [DIR] indicators.",
        walks: false,
        output: &[
            Output::new("path", OutputKind::Text),
            Output::new("directories", OutputKind::Texts),
            Output::new("files", OutputKind::Texts),
        ],
    }),
};

pub static CREATE_DIRECTORY: ToolDef = ToolDef {
    name: "create_directory",
    title: "Create directory",
    description: "Create a directory and its parents.",
    params: &[Param::required("path", Kind::Entry(Access::Output), DIRECTORY)],
    effect: Effect::Adds,
    rating: Rating::Change,
    reason: "It makes a directory.",
    has_preview: false,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "Create new directory in workspace, with parent directories as needed. \
            Succeeds if it exists.",
        walks: false,
        output: &[],
    }),
};

pub static GET_FILE_INFO: ToolDef = ToolDef {
    name: "get_file_info",
    title: "Get file info",
    description: "Return the size, times and type of a file or directory.",
    params: &[Param::required(
        "path",
        Kind::Entry(Access::Read),
        "File or directory path relative to {root} (or absolute path within {root})",
    )],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only reads a file of the workspace.",
    has_preview: false,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "Get detailed file or directory metadata: type, size, permissions, owner, \
            timestamps.",
        walks: false,
        output: &[
            Output::new("path", OutputKind::Text),
            Output::new("type", OutputKind::OneOf(&["file", "directory", "symlink", "other"])),
            Output::new("size", OutputKind::Number),
            Output::new("permissions", OutputKind::Text),
            Output::new("uid", OutputKind::Number),
            Output::new("gid", OutputKind::Number),
            // Not every file system knows when a file was made.
            Output::new("created", OutputKind::Time).optional(),
            Output::new("modified", OutputKind::Time),
            Output::new("accessed", OutputKind::Time),
            // Only directories have entries.
            Output::new("entries", OutputKind::Number).optional(),
        ],
    }),
};

pub static SEARCH_FILES: ToolDef = ToolDef {
    name: "search_files",
    title: "Search files",
    description: "Find files by a glob pattern.",
    params: &[
        Param::gate_default(
            "path",
            Kind::Path(Access::Read),
            "Starting directory path relative to {root}",
        ),
        Param::required(
            "pattern",
            Kind::Glob(None),
            "Glob pattern to match (e.g., '*.rb', '**/*.txt')",
        ),
        MAX_RESULTS.mcp_description("Maximum number of results to return (default: 100)"),
    ],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only lists names in the workspace.",
    has_preview: false,
    card: &[CardRow::new("pattern", "{pattern}"), CardRow::new("path", "{path}")],
    summary: "{pattern} · {path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: false,
        description: "Recursively search for files and directories matching a glob pattern: * \
            (not /), ** (any depth), \
             ?, [abc], {a,b}. Hidden names match only if the pattern contains the dot.",
        walks: true,
        output: &[
            Output::new("pattern", OutputKind::Text),
            Output::new("count", OutputKind::Number),
            Output::new("limited", OutputKind::Flag),
            Output::new("directories", OutputKind::Texts),
            Output::new("files", OutputKind::Texts),
        ],
    }),
};

pub static EDIT_FILE: ToolDef = ToolDef {
    name: "edit_file",
    title: "Edit file",
    description: "Replace exact text in a file. Either all edits are made or none.",
    params: &[
        Param::required("path", Kind::File(Access::Write), FILE),
        IF_CHECKSUM,
        Param::required("edits", Kind::Edits, "The replacements, made in this order"),
    ],
    effect: Effect::Changes,
    rating: Rating::Change,
    reason: "It changes a file of the project.",
    has_preview: true,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: true,
        description: "Replace exact pieces of text in a file. All edits are made, or none.",
        walks: false,
        output: &[],
    }),
};

pub static APPEND_FILE: ToolDef = ToolDef {
    name: "append_file",
    title: "Append to file",
    description: "Add text to the end of a file.",
    params: &[
        Param::required("path", Kind::File(Access::Write), FILE),
        Param::required("content", Kind::Text(TextLimit::File), "Text to add"),
    ],
    effect: Effect::Changes,
    rating: Rating::Change,
    reason: "It changes a file of the project.",
    has_preview: false,
    card: PATH,
    summary: "{path}",
    offered: Offered::OverMcpOnly,
    mcp: Some(McpForm {
        extra: true,
        description: "Add text to the end of a file, which is created if it does not exist.",
        walks: false,
        output: &[],
    }),
};

pub static MOVE_FILE: ToolDef = ToolDef {
    name: "move_file",
    title: "Move file",
    description: "Move or rename a file or directory. Nothing is replaced.",
    params: &[
        Param::required("source", Kind::Path(Access::Remove), FILE).aliases(&["from", "path"]),
        Param::required("destination", Kind::Entry(Access::Write), FILE).aliases(&["to"]),
    ],
    effect: Effect::Changes,
    rating: Rating::Change,
    reason: "It moves a file of the project.",
    has_preview: true,
    card: &[CardRow::new("from", "{source}"), CardRow::new("to", "{destination}")],
    summary: "{source} → {destination}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: true,
        description: "Move or rename a file or directory. An existing destination is never \
            replaced.",
        walks: false,
        output: &[],
    }),
};

pub static DELETE_FILE: ToolDef = ToolDef {
    name: "delete_file",
    title: "Delete file",
    description: "Delete a file or an empty directory.",
    params: &[
        Param::required("path", Kind::Entry(Access::Remove), FILE),
        Param::default("recursive", Kind::Flag, "Delete a directory with everything in it")
            .mcp_only(),
    ],
    effect: Effect::Changes,
    rating: Rating::Always(Verdict::High),
    reason: "It deletes a file of the project.",
    has_preview: true,
    card: PATH,
    summary: "{path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: true,
        description: "Delete a file, a link or an empty directory; with recursive a whole \
            directory.",
        walks: false,
        output: &[],
    }),
};

pub static READ_MULTIPLE_FILES: ToolDef = ToolDef {
    name: "read_multiple_files",
    title: "Read multiple files",
    description: "Read several text files at once.",
    params: &[Param::required("paths", Kind::Words, "Paths of the files")],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only reads files of the workspace.",
    has_preview: false,
    card: &[CardRow::new("paths", "{paths}")],
    summary: "{paths}",
    offered: Offered::OverMcpOnly,
    mcp: Some(McpForm {
        extra: true,
        description: "Read several text files at once. A file that cannot be read does not affect \
            the others.",
        walks: false,
        output: &[],
    }),
};

pub static GREP: ToolDef = ToolDef {
    name: "grep",
    title: "Search in files",
    description: "Search file contents for a regular expression.",
    params: &[
        Param::required(
            "pattern",
            Kind::Text(TextLimit::Pattern),
            "Regular expression, or plain text with literal",
        ),
        Param::gate_default("path", Kind::Path(Access::Read), START),
        Param::optional(
            "glob",
            Kind::Glob(Some(Access::Read)),
            "Only files whose path matches this glob",
        )
        .aliases(&["include"]),
        Param::default("ignore_case", Kind::Flag, "Ignore case"),
        Param::default("literal", Kind::Flag, "The pattern is plain text"),
        Param::default(
            "context",
            Kind::Number { most: 100 },
            "Lines to show before and after each match",
        ),
        MAX_RESULTS.mcp_description("Maximum number of matching lines (default: 100)"),
    ],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only searches files of the workspace.",
    has_preview: false,
    card: &[CardRow::new("pattern", "{pattern}"), CardRow::new("path", "{path}")],
    summary: "{pattern} · {path}",
    offered: Offered::ThroughGate,
    mcp: Some(McpForm {
        extra: true,
        description: "Search file contents by regular expression and list matching lines as \
            path:line:text.",
        walks: true,
        output: &[],
    }),
};

pub static DIRECTORY_TREE: ToolDef = ToolDef {
    name: "directory_tree",
    title: "Directory tree",
    description: "Show a directory and everything below it as a tree.",
    params: &[
        Param::required("path", Kind::Path(Access::Read), START),
        Param::optional("max_depth", NUMBER, "How many levels to show (default: all)"),
        MAX_RESULTS.mcp_description("Maximum number of entries (default: 1000)"),
    ],
    effect: Effect::Reads,
    rating: Rating::Always(Verdict::Low),
    reason: "It only lists names in the workspace.",
    has_preview: false,
    card: PATH,
    summary: "{path}",
    offered: Offered::OverMcpOnly,
    mcp: Some(McpForm {
        extra: true,
        description: "Show a directory and everything below it as an indented tree. Hidden names \
            are left out.",
        walks: true,
        output: &[],
    }),
};

pub static EXECUTE_COMMAND: ToolDef = ToolDef {
    name: "execute_command",
    title: "Run command",
    description: "Run a program with arguments; there is no shell.",
    params: &[
        Param::default(
            "cwd",
            Kind::Path(Access::Read),
            "Where to run it: a directory relative to {root}",
        ),
        Param::required(
            "command",
            Kind::Text(TextLimit::Argument),
            "The bare name of an allowed program",
        ),
        Param::default("args", Kind::Words, "The arguments, each as one text"),
        Param::optional("timeout", Kind::Timeout(TimeLimit::Command), "Seconds"),
    ],
    effect: Effect::Runs,
    rating: Rating::Command,
    reason: "It runs a command.",
    has_preview: false,
    card: &[CardRow::new("command", "{command} {args}"), CardRow::new("folder", "{cwd}")],
    summary: "{command} {args}",
    offered: Offered::ThroughGate,
    mcp: None,
};
