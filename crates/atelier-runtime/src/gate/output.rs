//! What running calls print, for those who wait for one of them.

use atelier_core::CallId;
use atelier_store::DeltaReceiver;
use serde::Deserialize;

/// Receives what the running calls of a project print.
pub struct CallOutputs(pub(super) DeltaReceiver);

#[derive(Deserialize)]
struct Output {
    tool_id: CallId,
    text: String,
}

impl CallOutputs {
    /// What this call prints next. Cancel-safe.
    pub async fn next_of(&mut self, call: CallId) -> String {
        loop {
            let deltas = self.0.next().await;
            let outputs = deltas.iter().filter(|delta| delta.name == "TOOL_OUTPUT");
            let text: String = outputs
                .filter_map(|delta| serde_json::from_str::<Output>(&delta.data).ok())
                .filter(|output| output.tool_id == call)
                .map(|output| output.text)
                .collect();
            if !text.is_empty() {
                return text;
            }
        }
    }
}
