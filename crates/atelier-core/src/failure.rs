//! Failure codes: stable names for the reasons why a tool call failed or was refused.

use crate::codes::codes;

codes! {
/// The stable code of a failed or refused tool call.
FailureCode {
    // The gate.
    ApprovalRejected = "approval_rejected",
    /// The call needs an approval, or a higher one than it has.
    ApprovalRequired = "approval_required",
    ApprovalTimeout = "approval_timeout",
    Cancelled = "cancelled",
    /// The machine was lost while it ran the call.
    ClientLost = "client_lost",
    Denied = "denied",
    InvalidSettings = "invalid_settings",
    /// The server runs commands only on machines that can sandbox them.
    IsolationRequired = "isolation_required",
    /// No machine was connected in time.
    NoClient = "no_client",
    /// The machine did not begin in time.
    NotBegun = "not_begun",

    // Calls that cannot be parsed.
    ArgumentsTooLong = "arguments_too_long",
    InvalidCall = "invalid_call",
    InvalidParams = "invalid_params",
    PatternInvalid = "pattern_invalid",
    TimeoutExceeded = "timeout_exceeded",
    UnknownTool = "unknown_tool",

    // Paths and files.
    AlreadyExists = "already_exists",
    BinaryFile = "binary_file",
    /// The file has changed since the caller read it.
    Conflict = "conflict",
    DirectoryNotEmpty = "directory_not_empty",
    EditEmpty = "edit_empty",
    EditMismatch = "edit_mismatch",
    FileSizeExceeded = "file_size_exceeded",
    InvalidUtf8 = "invalid_utf8",
    IoError = "io_error",
    LinkRefused = "link_refused",
    NameTooLong = "name_too_long",
    NotADirectory = "not_a_directory",
    NotAFile = "not_a_file",
    /// The encoding of the file lacks a character of the text.
    NotEncodable = "not_encodable",
    NotFound = "not_found",
    PathEmpty = "path_empty",
    PathNotAllowed = "path_not_allowed",
    PathOutsideWorkspace = "path_outside_workspace",
    PathProtected = "path_protected",
    PathReserved = "path_reserved",
    PathTooDeep = "path_too_deep",
    PathTooLong = "path_too_long",
    PathUnprintable = "path_unprintable",
    PatternNotAllowed = "pattern_not_allowed",
    PermissionDenied = "permission_denied",
    /// The file has changed since the preview that a person approved.
    Stale = "stale",
    TooManyLinks = "too_many_links",
    WriteNotAllowed = "write_not_allowed",

    // Commands.
    CommandFailed = "command_failed",
    CommandNotAllowed = "command_not_allowed",
    CommandNotFound = "command_not_found",
    CommandTimeout = "command_timeout",
    SandboxFailed = "sandbox_failed",

    // Machines.
    /// The call is not the one that was approved.
    DigestMismatch = "digest_mismatch",
    Failed = "failed",
    Internal = "internal",
    /// The machine's owner allows nothing above LOW.
    LowOnly = "low_only",
    ResultTooLarge = "result_too_large",
    /// The machine was restarted while the call ran. The call may have had an effect.
    Unknown = "unknown",
}
}
