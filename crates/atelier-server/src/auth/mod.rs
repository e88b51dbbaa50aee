//! Who is asking: bearer tokens, checked against pinned keys and algorithms.

mod exchange;
mod keys;
mod local;
mod verify;

pub use exchange::ProviderSignIn;
pub use keys::{AuthSettings, check_keys};
pub use local::{Grant, LocalKey, user_id};
pub use verify::{Auth, AuthError};

pub(crate) use exchange::Return;
pub(crate) use local::{new_sign_in_code, sign_in_hash};
pub(crate) use verify::{Asker, Caller, Person, Runner};
