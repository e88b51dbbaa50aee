//! Saying what a call would change, before anybody is asked about it.

use crate::{backoff::Backoff, calls::Client, diff, error::Error, screen::summary, signal};
use atelier_core::{
    CallId,
    gate::{CallFailure, CallRating},
    policy::{
        call::ToolCall,
        verdict::{Judgement, Verdict},
    },
};
use atelier_executor::ToolResult;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// What the person who decides has to know, as far as this machine knows it.
#[derive(Serialize)]
pub(crate) struct Shown {
    base_checksum: Option<String>,
    diff: String,
    rating: CallRating,
}

impl Client {
    pub(crate) fn preview(self: &Arc<Self>, id: CallId, tool: String, params: Value) {
        let client = self.clone();
        self.tasks.spawn(async move {
            let turn = tokio::select! {
                turn = client.looks.acquire() => turn,
                () = client.stop.cancelled() => return,
            };
            let looking = {
                let (client, tool, params) = (client.clone(), tool.clone(), params.clone());
                tokio::task::spawn_blocking(move || client.look(&tool, params)).await
            };
            drop(turn);
            let preview = looking.unwrap_or_else(|_| Err(CallFailure::new("internal", "the preview failed")));
            let outcome = match &preview {
                Ok(_) => "shown to be decided".to_owned(),
                Err(failure) => format!("cannot be done: {}", failure.detail),
            };
            client.screen.line(&format!("{}: {outcome}", summary(&tool, &params)));
            client.tell_preview(id, preview).await;
        });
    }

    async fn tell_preview(&self, id: CallId, preview: Result<Shown, CallFailure>) {
        let mut backoff = Backoff::new();
        loop {
            match self.desk.previewed(id, &preview).await {
                Ok(()) => return,
                Err(error) if error.passes() => {
                    if !backoff.wait(&self.stop).await {
                        return;
                    }
                }
                // Somebody else's by now, or settled.
                Err(Error::Refused { status: 404 | 409, .. }) => return,
                Err(error) => return self.screen.line(&format!("a preview was not taken: {}", error.told())),
            }
        }
    }

    fn look(&self, tool: &str, params: Value) -> Result<Shown, CallFailure> {
        let refused = |result: ToolResult| match result.failure {
            Some(failure) => CallFailure::new(&failure.code, failure.detail),
            None => CallFailure::new("internal", "refused without a reason"),
        };
        let call = self.local.parse(tool, params).map_err(refused)?;
        // What will be refused here in the end is nothing to ask a person about.
        let judgement = self.local.tools().judge(&call);
        if judgement.verdict == Verdict::Deny {
            return Err(refused(ToolResult::refused(&judgement)));
        }
        signal::within(self.up_to, judgement.verdict).map_err(refused)?;
        let preview = self.local.tools().preview(&call);
        let preview = preview.map_err(|error| CallFailure::new(error.code(), error.to_string()))?;
        let preview = preview.ok_or_else(|| CallFailure::new("internal", "this tool has no preview"))?;
        let path = match &call {
            ToolCall::WriteFile { path, .. } | ToolCall::EditFile { path, .. } => path.as_str(),
            _ => "",
        };
        let diff = diff::unified(path, &preview);
        let Judgement { verdict, rule, reason, network, .. } = judgement;
        let rating = CallRating { verdict, rule, reason, network };
        Ok(Shown { base_checksum: preview.base_checksum, diff, rating })
    }
}
