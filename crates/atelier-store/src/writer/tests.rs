use super::*;
use crate::{Owned, Settings};
use atelier_core::{
    CallId,
    gate::{Audit, AuditDecision},
};
use uuid::Uuid;

type Submitted = (Box<dyn Job>, oneshot::Receiver<Result<()>>);

fn job(
    mode: WriteMode,
    work: impl for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<((), PendingRows)>> + Send + 'static,
) -> Submitted {
    let (reply, answer) = oneshot::channel();
    let (lock, begun) = (OwnerLock::of(UserId(Uuid::nil())), OnceFlag::default());
    (
        Box::new(Write {
            work: Some(work),
            mode,
            lock,
            begun,
            patient: false,
            outcome: None,
            reply,
            submitted: Instant::now(),
        }),
        answer,
    )
}

const DEFERRED: WriteMode = WriteMode::Deferred(None);
const PROJECT: ProjectId = ProjectId(Uuid::from_u128(1));

fn rows() -> PendingRows {
    let audit = Audit {
        tool_id: Some(CallId(Uuid::now_v7())),
        approval_id: None,
        decision: AuditDecision::Approved,
        by: None,
        via: None,
        digest: None,
        grant_id: None,
        at: Utc::now(),
    };
    PendingRows { audit: vec![(PROJECT, audit)], ..PendingRows::default() }
}

/// A write with one audit row that succeeds.
fn succeeds(mode: WriteMode) -> Submitted {
    job(mode, |_| Box::pin(async { Ok(((), rows())) }))
}

/// A write that fails after it added one audit row.
fn fails(mode: WriteMode) -> Submitted {
    job(mode, |tx| {
        tx.rows = rows();
        Box::pin(async { Err(Error::NotFound) })
    })
}

/// Runs a group and returns how many audit rows are in the database.
async fn audit_rows(group: Vec<Submitted>) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        Settings { data: folder.path().into(), database_url: None, ..Default::default() };
    let store = Store::open(&settings).await.unwrap();
    let (mut group, _answers): (Vec<_>, Vec<_>) = group.into_iter().unzip();
    let mut tx = Tx::new(store.db.connect_writer().await.unwrap());
    begin(&mut tx, &OwnerLocks::new(), &mut OwnerLocks::new()).await.unwrap();
    run_group(&mut tx, &mut group, &store.feeds).await.unwrap();
    let owned = Owned::from_row((PROJECT.0, Uuid::nil(), "acme".into())).unwrap();
    store.audit(&owned, 10, 0).await.unwrap().0.len()
}

#[tokio::test]
async fn rows_of_a_direct_write_survive_the_failure_of_the_next() {
    let direct = WriteMode::Direct;
    let group = vec![succeeds(direct), fails(direct), succeeds(direct), fails(direct)];
    assert_eq!(audit_rows(group).await, 2);
}

#[tokio::test]
async fn rows_of_a_direct_write_are_dropped_if_it_fails() {
    let direct = WriteMode::Direct;
    assert_eq!(audit_rows(vec![fails(direct), succeeds(direct), fails(direct)]).await, 1);
    assert_eq!(audit_rows(vec![fails(direct)]).await, 0);
}

#[tokio::test]
async fn rows_of_deferred_writes_survive_the_failure_of_any_other_write() {
    let direct = WriteMode::Direct;
    let group =
        vec![fails(direct), succeeds(DEFERRED), fails(DEFERRED), fails(direct), succeeds(DEFERRED)];
    assert_eq!(audit_rows(group).await, 2);
    assert_eq!(audit_rows(vec![fails(DEFERRED), succeeds(direct)]).await, 1);
}
