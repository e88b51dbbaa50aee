//! Kinds of arguments: what an argument means to its program.

/// The meaning of an operand or of an option's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text that the program only compares, prints or counts with.
    Data,
    /// A pattern for the names of files that are read.
    Name,
    /// A file or directory that is read.
    Read,
    /// A file of program text that is run. `-` would take the text from standard input.
    Script,
    /// A program by its name, or a script of the project.
    Program,
    /// A directory that the program changes to first. Other paths are relative to it.
    Enter,
    /// A file that a compiler reads. `@file`, which would hold more arguments, is denied.
    Source,
    /// A file or directory that is created or changed.
    Write,
    /// A file that a compiler or packer writes.
    Output,
    /// A destination of copied or moved files: a file, or a directory that gets their names.
    Dest,
    /// A file or directory that is moved away or deleted.
    Moved,
    /// An argument of a program of the project. If it looks like a path, it must stay inside the
    /// workspace.
    Arg,
    /// An argument of a program of the project. `@file`, which would hold more arguments, is
    /// denied.
    Response,
    /// Program text.
    Code,
    /// A sed script.
    Sed,
    /// An awk program.
    Awk,
    /// A suffix for backups. It must not contain a directory.
    Suffix,
    /// A format of `date`, such as `+%Y`. Anything else would set the clock.
    Plus,
    /// An archive. `host:file` would start a remote shell.
    Archive,
    /// A git repository, by name, path or address.
    Remote,
    /// A git repository that data is sent to.
    PushRemote,
    /// A git revision, or a path where git takes either.
    Rev,
    /// `1,20:path` or `/regular expression/,+5:path`.
    Lines,
    /// A git revision, or a path that would lose its changes.
    Checkout,
    /// A path that loses its changes.
    Discard,
    /// `src:dst`, `+src:dst` (forced), `:dst` (deletes).
    Refspec,
    /// A format of git log. `%G` asks for signatures, and that starts a program.
    Format,
    /// A key of git's configuration that is set or removed.
    GitKey,
    /// A key of git's configuration: shown if no value follows, set otherwise.
    LoneKey,
    /// A package by name, path or address.
    Spec,
    /// `NAME=value` for make, or a target.
    Assign,
    /// `NAME[:type]=value` for cmake.
    Define,
    /// Options that gcc passes on, separated by commas.
    Passed,
    /// Flags that are passed on to a compiler or linker.
    Flags,
    /// A time, or a file whose time is used.
    Date,
    /// A package of the project, or another package by its version.
    Versioned,
    /// An address where packages come from.
    Registry,
    /// A file that names packages, and may name the addresses where they come from.
    List,
    /// One of the listed values; `*` at the end matches any ending. For other values, the option's
    /// own verdict applies.
    In(Vec<Box<str>>),
}

impl Kind {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(list) = text.strip_prefix("in(").and_then(|rest| rest.strip_suffix(')')) {
            return Ok(Self::In(list.split('|').map(Into::into).collect()));
        }
        Ok(match text {
            "data" => Self::Data,
            "name" => Self::Name,
            "read" => Self::Read,
            "script" => Self::Script,
            "program" => Self::Program,
            "enter" => Self::Enter,
            "source" => Self::Source,
            "write" => Self::Write,
            "output" => Self::Output,
            "dest" => Self::Dest,
            "moved" => Self::Moved,
            "arg" => Self::Arg,
            "response" => Self::Response,
            "code" => Self::Code,
            "sed" => Self::Sed,
            "awk" => Self::Awk,
            "suffix" => Self::Suffix,
            "plus" => Self::Plus,
            "archive" => Self::Archive,
            "remote" => Self::Remote,
            "push-remote" => Self::PushRemote,
            "rev" => Self::Rev,
            "lines" => Self::Lines,
            "checkout" => Self::Checkout,
            "discard" => Self::Discard,
            "refspec" => Self::Refspec,
            "format" => Self::Format,
            "git-key" => Self::GitKey,
            "lone-key" => Self::LoneKey,
            "spec" => Self::Spec,
            "assign" => Self::Assign,
            "define" => Self::Define,
            "passed" => Self::Passed,
            "flags" => Self::Flags,
            "date" => Self::Date,
            "versioned" => Self::Versioned,
            "registry" => Self::Registry,
            "list" => Self::List,
            other => return Err(format!("{other:?} is no kind of argument")),
        })
    }
}

/// Whether the text is one of those that `in(a|b*)` lists.
pub(super) fn listed(list: &[Box<str>], text: &str) -> bool {
    list.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => **known == *text,
    })
}
