//! `Idempotency-Key`: a request that may be sent again after its answer was lost.

use crate::{
    auth::Caller,
    error::{Error, Result},
};
use atelier_store::RequestKey;
use axum::http::HeaderMap;
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::{
    IntoParams,
    openapi::{
        ObjectBuilder, Required, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
    },
};

const HEADER: &str = "idempotency-key";
/// The longest `Idempotency-Key`, in bytes.
const MAX_LENGTH: usize = 255;

/// The key that a caller has chosen for a request.
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Self>> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = value.to_str().ok().map(str::trim).filter(|key| {
            (1..=MAX_LENGTH).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic())
        });
        match (key, values.next()) {
            (Some(key), None) => Ok(Some(Self(key.to_owned()))),
            _ => Err(Error::Invalid(format!(
                "Idempotency-Key: must be one text of 1 to {MAX_LENGTH} visible ASCII characters"
            ))),
        }
    }

    /// The key as the store knows it. `request` is everything that decides what the request does.
    pub(crate) fn of_request(self, caller: &Caller, request: &impl Serialize) -> RequestKey {
        // A value sorts the fields of objects, so their order in the body does not matter.
        let request = serde_json::to_value(request)
            .unwrap_or_else(|error| unreachable!("a request came from JSON: {error}"));
        let digest = Sha256::digest(request.to_string().as_bytes()).to_vec();
        // Programs that share a user do not share keys.
        let caller = match caller.program() {
            None => caller.user.to_string(),
            Some(token) => format!("{}/{token}", caller.user),
        };
        RequestKey { caller, key: self.0, digest }
    }
}

impl IntoParams for IdempotencyKey {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(MAX_LENGTH))
            .pattern(Some("^[!-~]+$"));
        let key = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some("A key of your choice, new for each new request"))
            .schema(Some(schema));
        vec![key.build()]
    }
}
