//! The time of a question: letting it wait longer, and asking again after it has run out.

use super::{Card, Cards, Subject, TextTyped};
use crate::error::Error;
use atelier_core::{
    CallId,
    gate::{CallApproval, GatedCall},
    visible::visible,
};
use chrono::{DateTime, Utc};

pub(super) const KEEP_WAITING: &str = "[w] keep waiting  ";

/// The time of day, as people read it.
fn clock(at: DateTime<Utc>) -> String {
    at.with_timezone(&chrono::Local).format("%H:%M:%S").to_string()
}

/// When a question runs out, for a card.
pub(super) fn expiry(approval: &CallApproval) -> String {
    approval.expires_at.map_or_else(|| "not before it is answered".to_owned(), clock)
}

/// Whether a question waits for a limited time, which a person can lengthen.
pub(super) fn has_end(call: &GatedCall) -> bool {
    call.approval.as_ref().is_some_and(|approval| approval.expires_at.is_some())
}

/// The warning before an approval expires.
pub(crate) fn expires_soon(expires_at: DateTime<Utc>) -> String {
    format!("Nobody has decided yet. The approval expires at {}.", clock(expires_at))
}

impl Cards {
    /// Takes over the time of the question that is shown.
    pub(super) fn extended(&mut self, id: CallId, expires_at: Option<DateTime<Utc>>) {
        let Some(Card { subject: Subject::Call(call), .. }) = &mut self.card else { return };
        if call.tool_id == id
            && let Some(approval) = &mut call.approval
        {
            approval.expires_at = expires_at;
        }
    }

    /// Lets the question that is shown wait until it is answered.
    pub(super) async fn keep_waiting(&mut self) {
        let Some(Card { subject: Subject::Call(call), .. }) = &self.card else { return };
        let Some(id) = call.approval_id.filter(|_| has_end(call)) else { return };
        let tool = call.tool_id;
        let said = match self.project.keep_waiting(id).await {
            Ok(_) => {
                self.extended(tool, None);
                "The question waits until you answer it.".to_owned()
            }
            Err(Error::Refused(problem)) if problem.status == 409 => {
                return self.close(&format!("decided elsewhere: {}", problem.detail));
            }
            Err(error) => format!("not sent ({}); try again.", visible(&error.full_message())),
        };
        let keys = self.card.as_ref().map(Card::keys).unwrap_or_default();
        self.screen.raw(&format!("\n{said} {keys}"));
    }

    /// Notes that nobody answered in time, and says how to be asked again.
    pub(super) fn ran_out(&mut self, id: CallId, was_shown: bool) {
        self.ran_out = Some(id);
        let how = match self.text {
            TextTyped::Lost => "press r to be asked again",
            TextTyped::Kept => "/again asks it again",
        };
        match was_shown {
            true => self.close(&format!("expired: nobody decided in time; {how}")),
            false => self.screen.line(&format!("a question expired: {how}")),
        }
    }

    /// Asks again about the call whose question ran out last. Its card comes with its event.
    pub(super) async fn ask_again(&mut self, id: CallId) {
        let asked = async {
            match self.project.call(id).await?.approval_id {
                Some(approval) => self.project.ask_again(approval).await.map(drop),
                None => Ok(()),
            }
        };
        match asked.await {
            Ok(()) => self.screen.line("asked again"),
            Err(error) => {
                if error.is_temporary() {
                    self.ran_out = Some(id);
                }
                self.screen.line(&format!("not asked again: {}", visible(&error.full_message())));
            }
        }
    }
}
