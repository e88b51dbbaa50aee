//! Asking again about a call whose question has run out. Its task goes on with the new call: one
//! that has ended is opened again, as if its agent had made the call once more.

use crate::{
    Decided, Error, Owned, Result, Store, Tx,
    db::on,
    feed::Wakeup,
    gate::{lock_call, new_ids, remember, store_decision},
    messages::check_conversation,
    plans,
    rows::{from_json, json, now, tasks::queue_of},
    tasks::lock_task,
};
use atelier_core::{
    CallId, Event, Invalid, TaskId, TaskStatus,
    event::TaskCall,
    gate::{AskedAgain, Decider, GateRules, GatedCall, Refusal},
    task::{Step, StepCall},
};
use std::sync::Arc;

impl Store {
    /// Asks again about a call whose question has run out, and lets its task go on with the new
    /// call.
    pub async fn ask_again(
        &self,
        owned: &Owned,
        expired: CallId,
        new: CallId,
        rules: Arc<GateRules>,
        by: Decider,
    ) -> Result<Result<Result<Decided, Invalid>, Refusal>> {
        let owned = owned.clone();
        self.write_with_cache(owned.owner, move |tx| {
            Box::pin(async move {
                let expired = lock_call(tx, owned.project, expired).await?;
                let context = tx.decision_context(owned.project).await?;
                if context.deleted {
                    return Err(Error::NotFound);
                }
                let asked = match rules.ask_again(expired, new, by, &context, new_ids()) {
                    Ok(Ok(asked)) => asked,
                    Ok(Err(invalid)) => return Ok(Ok(Err(invalid))),
                    Err(refusal) => return Ok(Err(refusal)),
                };
                let AskedAgain { expired, of_expired, call, effects } = asked;
                if let Some(task) = call.task_id {
                    continue_task(tx, &owned, task, expired.tool_id, &call).await?;
                }
                remember(&mut tx.rows, &owned, &call);
                store_decision(&mut tx.rows, &owned, expired, of_expired);
                store_decision(&mut tx.rows, &owned, call.clone(), effects);
                Ok(Ok(Ok(Decided { call, grant: None })))
            })
        })
        .await
    }
}

/// Adds the new call to the last step of the task, which waits for it then.
async fn continue_task(
    tx: &mut Tx,
    owned: &Owned,
    id: TaskId,
    expired: CallId,
    new: &GatedCall,
) -> Result<()> {
    let mut task = lock_task(tx, owned.project, id).await?;
    let had_ended = task.status.is_settled();
    match task.status {
        // A node has its journal, and would not know of the new call.
        TaskStatus::Running | TaskStatus::Waiting => return Err(Error::TaskAtWork),
        TaskStatus::Queued | TaskStatus::Parked => {}
        TaskStatus::Completed | TaskStatus::Failed | TaskStatus::Cancelled => {
            let (archived, load) =
                check_conversation(tx, owned, task.session_id, queue_of(&task)).await?;
            if archived {
                return Err(Error::Archived);
            }
            if !load.of_agent {
                return Err(Error::AgentDeleted);
            }
            (task.result, task.error, task.completed_at, task.started_at) =
                (None, None, None, None);
            plans::reopen(tx, owned, &mut task).await?;
            if task.status == TaskStatus::Waiting {
                return Err(Error::TaskAtWork);
            }
        }
    }
    let waits = !new.status.is_settled();
    if waits {
        task.status = TaskStatus::Parked;
    } else if had_ended {
        task.status = TaskStatus::Queued;
    }
    let call = add_to_last_step(tx, id, expired, new.tool_id).await?;
    let queued = (task.status == TaskStatus::Queued).then(now);
    on!(&mut tx.conn, |c| {
        sqlx::query(
            "UPDATE tasks SET status = $1, node = NULL, fence = fence + 1, begun = TRUE,
                 pending_calls = CASE WHEN status = 'parked' THEN pending_calls ELSE 0 END + $2,
                 started_at = $3, queued_at = $4, record = $5 WHERE id = $6",
        )
        .bind(task.status.as_str())
        .bind(i64::from(waits))
        .bind(task.started_at)
        .bind(queued)
        .bind(json(&task))
        .bind(id.0)
        .execute(c)
        .await
        .map(drop)
    })?;
    if had_ended {
        tx.emit(owned.project, owned.owner, &Event::TaskQueued { task: task.for_event() });
    }
    let progress = Event::TaskProgress {
        task_id: id,
        session_id: task.session_id,
        step: task.steps,
        text: String::new(),
        calls: vec![TaskCall { name: call.name, tool_id: call.tool_id }],
    };
    tx.emit(owned.project, owned.owner, &progress);
    if queued.is_some() {
        tx.wake(Wakeup::Queue(owned.owner, queue_of(&task)));
    }
    Ok(())
}

/// Adds the call to the task's last step, in the words in which its agent asked for it before.
async fn add_to_last_step(
    tx: &mut Tx,
    task: TaskId,
    expired: CallId,
    new: CallId,
) -> Result<StepCall> {
    let rows: Vec<(i64, String)> = on!(&mut tx.conn, |c| sqlx::query_as(
        "SELECT step, record FROM task_steps WHERE task_id = $1 ORDER BY step"
    )
    .bind(task.0)
    .fetch_all(c)
    .await)?;
    let (mut last, mut asked) = (None, None);
    for (number, record) in rows {
        let step: Step = from_json(&record)?;
        asked = step.calls.iter().find(|call| call.tool_id == Some(expired)).cloned().or(asked);
        last = Some((number, step));
    }
    let ((number, mut step), asked) = last.zip(asked).ok_or(Error::NotFound)?;
    let id = format!("call_{}", &new.0.simple().to_string()[8..]);
    let call = StepCall { id, tool_id: Some(new), result: None, ..asked };
    step.calls.push(call.clone());
    on!(&mut tx.conn, |c| sqlx::query(
        "UPDATE task_steps SET record = $1 WHERE task_id = $2 AND step = $3"
    )
    .bind(json(&step))
    .bind(task.0)
    .bind(number)
    .execute(c)
    .await
    .map(drop))?;
    Ok(call)
}
