//! How many calls a user may have open, and how much of them is stored.
//!
//! Counting for every call would cost more than the call. A user gets an allowance instead: a
//! quarter of what is left when it was last counted. The closer a user is to the limit, the more
//! often is counted. Nodes count by themselves, so together they may exceed a limit by the
//! allowances that they gave.

use super::GateSettings;
use crate::{Error, Result};
use atelier_core::{TokenId, UserId};
use atelier_store::Store;
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Mutex as AsyncMutex;

/// What is stored of a user is measured at most this often while nothing is added.
const MEASURED_FOR: Duration = Duration::from_secs(5);
/// When more users than this have an allowance, idle ones lose theirs.
const MANY: usize = 10_000;

/// A user, or one of their agent tokens.
type Who = (UserId, Option<TokenId>);

#[derive(Clone)]
pub(super) struct CallLimits {
    open: u32,
    open_of_token: u32,
    stored: u64,
    allowances: Arc<Mutex<HashMap<Who, Arc<AsyncMutex<Allowance>>>>>,
}

/// What may be added before it is counted again.
#[derive(Default)]
struct Allowance {
    calls: i64,
    bytes: i64,
    /// How many bytes are stored, and when that was measured.
    measured: Option<(Instant, i64)>,
}

/// What a user has, and may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallUsage {
    pub open_calls: i64,
    pub max_open_calls: u32,
    pub max_open_calls_of_token: u32,
    pub stored_bytes: i64,
    pub max_stored_bytes: u64,
}

impl CallLimits {
    pub(super) fn new(settings: &GateSettings) -> Self {
        Self {
            open: settings.max_open_calls,
            open_of_token: settings.max_open_calls_of_token,
            stored: settings.max_stored_bytes,
            allowances: Arc::default(),
        }
    }

    /// Refuses a call that would exceed a limit of its user.
    pub(super) async fn admit(
        &self,
        store: &Store,
        user: UserId,
        token: Option<TokenId>,
        params: &Value,
    ) -> Result<()> {
        if token.is_some() {
            self.admit_call(store, (user, token), self.open_of_token).await?;
        }
        self.admit_call(store, (user, None), self.open).await?;
        self.admit_bytes(store, user, size(params)).await
    }

    /// Notes that the result of a call was stored.
    pub(super) async fn stored(&self, user: UserId, bytes: i64) {
        let allowance = self.allowance((user, None));
        allowance.lock().await.bytes -= bytes;
    }

    pub(super) async fn usage(&self, store: &Store, user: UserId) -> Result<CallUsage> {
        let allowance = self.allowance((user, None));
        let stored_bytes = measure(store, user, &mut *allowance.lock().await).await?;
        Ok(CallUsage {
            open_calls: store.open_calls(user, None).await?,
            max_open_calls: self.open,
            max_open_calls_of_token: self.open_of_token,
            stored_bytes,
            max_stored_bytes: self.stored,
        })
    }

    async fn admit_call(&self, store: &Store, who: Who, limit: u32) -> Result<()> {
        let allowance = self.allowance(who);
        let mut allowance = allowance.lock().await;
        if allowance.calls == 0 {
            let left = i64::from(limit) - store.open_calls(who.0, who.1).await?;
            if left <= 0 {
                return Err(Error::TooManyOpenCalls { limit });
            }
            allowance.calls = (left / 4).max(1);
        }
        allowance.calls -= 1;
        Ok(())
    }

    async fn admit_bytes(&self, store: &Store, user: UserId, size: i64) -> Result<()> {
        let allowance = self.allowance((user, None));
        let mut allowance = allowance.lock().await;
        if allowance.bytes < size {
            let limit = i64::try_from(self.stored).unwrap_or(i64::MAX);
            let left = limit.saturating_sub(measure(store, user, &mut allowance).await?);
            if left < size {
                return Err(Error::CallStorageFull { limit: self.stored });
            }
            allowance.bytes = (left / 4).max(size);
            // The next allowance needs a new measurement.
            allowance.measured = None;
        }
        allowance.bytes -= size;
        Ok(())
    }

    fn allowance(&self, who: Who) -> Arc<AsyncMutex<Allowance>> {
        let mut all = self.allowances.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > MANY {
            all.retain(|_, allowance| Arc::strong_count(allowance) > 1);
        }
        all.entry(who).or_default().clone()
    }
}

/// How many bytes are stored of a user's calls. Measuring reads every call of the user.
async fn measure(store: &Store, user: UserId, allowance: &mut Allowance) -> Result<i64> {
    match allowance.measured {
        Some((at, bytes)) if at.elapsed() < MEASURED_FOR => Ok(bytes),
        _ => {
            let bytes = store.stored_call_bytes(user).await?;
            allowance.measured = Some((Instant::now(), bytes));
            Ok(bytes)
        }
    }
}

/// About how many bytes a value takes in the database.
pub(super) fn size(value: &Value) -> i64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() as i64 + 2,
        Value::Array(items) => items.iter().map(size).sum::<i64>() + 2,
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() as i64 + 4 + size(value)).sum::<i64>() + 2
        }
    }
}
