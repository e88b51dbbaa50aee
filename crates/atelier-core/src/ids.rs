//! Typed ids. All are UUIDs; those Atelier makes itself are version 7, so that they sort by creation.
//! They are made where the row is written: this crate has no clock.

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
    /// The person (or machine) a token speaks for: its `sub`.
    UserId,
    ProjectId,
    AgentId,
    /// One issued token: its `jti`.
    TokenId,
    /// One tool call.
    CallId,
    ApprovalId,
    GrantId,
    /// One machine that is connected.
    ClientId,
    /// One thing that an agent remembers.
    InteractionId,
    /// One conversation.
    ConversationId,
    /// One file of a conversation, through all its versions.
    FileId,
    /// A large upload in parts.
    UploadId,
    /// One message of a conversation.
    MessageId,
    /// One piece of work for one agent.
    TaskId,
    /// One graph of tasks.
    PlanId,
    /// One running server.
    NodeId,
}
