//! Authentication: bearer tokens of programs and session cookies of browsers, checked against
//! pinned keys and algorithms.

mod browser;
mod caller;
mod exchange;
mod guesses;
mod keys;
mod local;
mod recent;
mod verify;

pub use exchange::ProviderSignIn;
pub use keys::{AuthSettings, check_keys};
pub use local::{LocalKey, NewToken, user_id};
pub use verify::{Auth, AuthError};

pub(crate) use browser::{BrowserToken, SESSION_KEY, check_same_origin, origin, reached_by_tls};
pub(crate) use caller::{Caller, Person, ToolRequester, ToolRunner, has_credentials};
pub(crate) use exchange::ProviderCode;
pub(crate) use local::{new_sign_in_code, sign_in_hash};
