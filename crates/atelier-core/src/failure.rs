//! Failure codes: stable names for the reasons why a tool call failed or was refused.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

macro_rules! failure_codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)+) => {
        /// The stable code of a failed or refused tool call. On the wire and in stored records it
        /// is its snake-case name.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum FailureCode {
            $($(#[$doc])* $variant,)+
            /// A code that this version does not know: a machine of another version reported it.
            Other(Box<str>),
        }

        impl FailureCode {
            /// Every code that this version knows.
            pub const KNOWN: &[FailureCode] = &[$(FailureCode::$variant),+];

            /// The code as a static string; `None` for a code that this version does not know.
            pub const fn known(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($code),)+
                    Self::Other(_) => None,
                }
            }
        }

        impl From<&str> for FailureCode {
            fn from(code: &str) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

failure_codes! {
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

impl FailureCode {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(code) => code,
            known => known.known().unwrap_or_default(),
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for FailureCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for FailureCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(deserializer)?.as_str().into())
    }
}

#[cfg(test)]
mod tests {
    use super::FailureCode;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_survives_the_wire() {
        for code in FailureCode::KNOWN {
            assert_eq!(FailureCode::from(code.as_str()), *code);
            assert_eq!(serde_json::from_value::<FailureCode>(json!(code)).unwrap(), *code);
        }
        let names: BTreeSet<&str> = FailureCode::KNOWN.iter().map(FailureCode::as_str).collect();
        assert_eq!(names.len(), FailureCode::KNOWN.len(), "each code has a name of its own");
        let snake = |name: &&str| name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
        assert!(names.iter().all(snake), "{names:?}");
    }

    #[test]
    fn a_code_of_another_version_is_kept_as_it_is() {
        let code = serde_json::from_value::<FailureCode>(json!("from_the_future")).unwrap();
        assert_eq!(code, FailureCode::Other("from_the_future".into()));
        assert_eq!((code.known(), json!(code)), (None, json!("from_the_future")));
        assert_eq!(format!("{code:>17}"), "  from_the_future");
    }
}
