//! Authentication: bearer tokens, checked against pinned keys and algorithms.

mod exchange;
mod keys;
mod local;
mod recent;
mod verify;

pub use exchange::ProviderSignIn;
pub use keys::{AuthSettings, check_keys};
pub use local::{LocalKey, NewToken, user_id};
pub use verify::{Auth, AuthError};

pub(crate) use exchange::ProviderCode;
pub(crate) use local::{new_sign_in_code, sign_in_hash};
pub(crate) use verify::{Caller, Person, ToolRequester, ToolRunner};
