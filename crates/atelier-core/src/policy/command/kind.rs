//! What an argument is, and what its value makes of the call.

/// The meaning of an operand or of an option's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text that the program only compares, prints or counts with.
    Data,
    /// A pattern of names that are looked into.
    Name,
    /// A file or directory that is looked at.
    Read,
    /// A directory that the program goes to first: other paths then start there.
    Enter,
    /// As Read, for a compiler, which takes `@file` for more arguments.
    Source,
    /// A file or directory that is made or changed.
    Write,
    /// As Write, by a compiler or packer.
    Output,
    /// Where files are copied or moved to: a file, or a directory that gets their names.
    Dest,
    /// A file or directory that is moved away or deleted.
    Moved,
    /// An argument of a program of the project: whatever looks like a path must stay inside.
    Arg,
    /// As Arg, for a program that takes `@file` for more arguments.
    Response,
    /// Program text.
    Code,
    /// A sed script.
    Sed,
    /// An awk program.
    Awk,
    /// A suffix for backups, which must not smuggle a directory in.
    Suffix,
    /// `+%Y` for date; anything else would set the clock.
    Plus,
    /// An archive. `host:file` would start a remote shell.
    Archive,
    /// A git repository, by name, path or address.
    Remote,
    /// As Remote, where data is sent to.
    PushRemote,
    /// A git revision, or a path where git takes either.
    Rev,
    /// `1,20:path` or `/regular expression/,+5:path`.
    Lines,
    /// As Rev, where a path would lose its changes.
    Checkout,
    /// A path that loses its changes.
    Discard,
    /// `src:dst`, `+src:dst` (forced), `:dst` (deletes).
    Refspec,
    /// A format of git log. `%G` asks for signatures, and that starts a program.
    Format,
    /// A key of git's configuration that is set or taken away.
    GitKey,
    /// As GitKey, where a key with no value behind it is only shown.
    LoneKey,
    /// A package by name, path or address.
    Spec,
    /// `NAME=value` for make, or a target.
    Assign,
    /// `NAME[:type]=value` for cmake.
    Define,
    /// Options that gcc hands on, between commas.
    Passed,
    /// Flags that are handed on to a compiler or linker.
    Flags,
    /// A time, or a file whose time counts.
    Date,
    /// A package of the project, or one from elsewhere by its version.
    Versioned,
    /// An address where packages come from.
    Registry,
    /// One of these, `*` at the end for any; for anything else the option's own verdict counts.
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
