//! Typed ids. All are UUIDs. Those that Atelier makes are of version 7, so that they sort by the
//! time of creation. The code that writes a row makes its id, because this crate has no clock.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                Uuid::parse_str(s).map(Self)
            }
        }
    )+};
}

id! {
    /// The user of a token: its `sub` claim.
    UserId,
    ProjectId,
    AgentId,
    /// One issued token: its `jti` claim.
    TokenId,
    /// One tool call.
    CallId,
    ApprovalId,
    GrantId,
    /// One connected machine.
    ClientId,
    /// One interaction that an agent remembers.
    InteractionId,
    /// One conversation.
    ConversationId,
    /// One file of a conversation, through all its versions.
    FileId,
    /// One upload in parts.
    UploadId,
    /// One run of a program outside the server in a conversation's folder.
    RunId,
    /// One message of a conversation.
    MessageId,
    /// One task of an agent.
    TaskId,
    /// One plan.
    PlanId,
    /// One running server process.
    NodeId,
}
