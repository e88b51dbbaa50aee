//! What a group of writes has read and can use again.
//!
//! Two nodes never write for one owner at the same time, so nothing outside the group changes these
//! rows before the commit. The writer clears the cache before every direct write that may
//! change them.

use crate::{
    db::{Conn, DbError},
    pending::PendingRows,
    rows::calls::lock_calls,
};
use atelier_core::{CallId, ProjectId, gate::DecisionContext};
use std::{collections::HashMap, sync::Arc};

#[derive(Default)]
pub(crate) struct ReadCache {
    /// The state of each project, for decisions about its calls.
    pub(crate) contexts: HashMap<ProjectId, DecisionContext>,
    /// The records of calls that deferred writes of the group decide about.
    pub(crate) calls: HashMap<CallId, String>,
}

/// A row that a deferred write will read. The group reads the rows of all its writes in one trip.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    pub(crate) project: ProjectId,
    pub(crate) call: CallId,
}

impl ReadCache {
    pub(crate) fn clear(&mut self) {
        self.contexts.clear();
        self.calls.clear();
    }

    /// Reads the rows that the deferred writes of a group will need. One write alone reads its own.
    pub(crate) async fn prefetch(
        &mut self,
        conn: &mut Conn,
        wanted: &[Prefetch],
    ) -> Result<(), DbError> {
        if wanted.len() > 1 {
            let calls: Vec<_> = wanted.iter().map(|wanted| (wanted.project, wanted.call)).collect();
            self.calls = lock_calls(conn, &calls).await?;
        }
        Ok(())
    }

    /// Drops the rows that were read ahead: the writes that wanted them have run.
    pub(crate) fn drop_prefetched(&mut self) {
        self.calls.clear();
    }

    /// Takes over what a write of the group adds to the cached rows.
    pub(crate) fn add(&mut self, rows: &PendingRows) {
        for grant in &rows.grants {
            if let Some(context) = self.contexts.get_mut(&grant.project_id) {
                let grants = context.grants.iter().cloned().chain([grant.clone()]);
                context.grants = grants.collect::<Arc<[_]>>();
            }
        }
    }
}
