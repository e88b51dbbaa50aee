//! Previews: what a call would change, computed before anybody is asked about it.

use crate::{backoff::Backoff, calls::CallRunner, dispatched_call, screen::summary};
use atelier_api::tools::{PreviewFailed, PreviewReport, PreviewShown};
use atelier_core::{
    CallId, FailureCode,
    gate::{CallFailure, CallPreview, CallRating, ToolOutcome},
    policy::verdict::Verdict,
};
use atelier_executor::{Origin, shown};
use serde_json::Value;
use std::sync::Arc;

impl CallRunner {
    /// Computes a preview in the background and sends it.
    pub(crate) fn preview(self: &Arc<Self>, origin: Origin, tool: String, params: Value) {
        let Some(id) = origin.tool_id else { return };
        let client = self.clone();
        self.tasks.spawn(async move {
            let slot = tokio::select! {
                slot = client.preview_slots.acquire() => slot,
                () = client.stop.cancelled() => return,
            };
            let computing = {
                let (client, tool, params) = (client.clone(), tool.clone(), params.clone());
                tokio::task::spawn_blocking(move || client.compute_preview(&origin, &tool, params))
                    .await
            };
            drop(slot);
            let preview = computing.unwrap_or_else(|_| {
                Err(CallFailure::new(FailureCode::Internal, "the preview failed"))
            });
            let outcome = match &preview {
                Ok(_) => "preview sent".to_owned(),
                Err(failure) => format!("cannot be done: {}", failure.detail),
            };
            client.screen.line(&format!("{}: {outcome}", summary(&tool, &params)));
            let report = match preview {
                Ok(preview) => PreviewReport::Shown(preview),
                Err(error) => {
                    PreviewReport::Failed(PreviewFailed { client_id: client.machine.client, error })
                }
            };
            client.send_preview(id, &report).await;
        });
    }

    async fn send_preview(&self, id: CallId, report: &PreviewReport) {
        let mut backoff = Backoff::new();
        loop {
            match self.machine.send_preview(id, report).await {
                Ok(()) => return,
                Err(error) if error.allows_another_report() => {
                    if !backoff.wait(&self.stop).await {
                        return;
                    }
                }
                // The call was settled, or another machine runs it now.
                Err(error) if matches!(error.status(), Some(404 | 409)) => return,
                Err(error) => {
                    let why = error.full_message();
                    return self.screen.line(&format!("the server refused a preview: {why}"));
                }
            }
        }
    }

    fn compute_preview(
        &self,
        origin: &Origin,
        tool: &str,
        params: Value,
    ) -> Result<PreviewShown, CallFailure> {
        let refused = |result: ToolOutcome| match result.failure {
            Some(failure) => CallFailure::new(failure.code, failure.detail),
            None => CallFailure::new(FailureCode::Internal, "refused without a reason"),
        };
        let call = self.local.parse(tool, params).map_err(refused)?;
        // Nobody should be asked about a call that this machine will refuse.
        let tools = self.local.tools_for(origin);
        let judgement = tools.judge(&call);
        if judgement.verdict == Verdict::Deny {
            return Err(refused(ToolOutcome::refused(&judgement)));
        }
        dispatched_call::check_risk_limit(self.up_to, judgement.verdict).map_err(refused)?;
        let preview = shown::preview(&tools, &call);
        let preview = preview.map_err(|error| CallFailure::new(error.code(), error.to_string()))?;
        let (CallPreview { base_checksum, diff }, unchanged) = preview
            .ok_or_else(|| CallFailure::new(FailureCode::Internal, "this tool has no preview"))?;
        let rating = Some(CallRating::from(judgement));
        let client_id = self.machine.client;
        Ok(PreviewShown { client_id, base_checksum, diff, rating, unchanged })
    }
}
