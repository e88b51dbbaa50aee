//! A call that the server has dispatched to this machine, and the last check before it runs.

use crate::{journal::Key, local_workspace::LocalWorkspace};
use atelier_core::{
    CallId, ClientId, ConversationId, FailureCode, TaskId, TokenId,
    digest::{CallDigest, PreviewDigest},
    gate::{GatedCall, ToolOutcome},
    policy::{
        call::ToolCall,
        class::CallClass,
        verdict::{Judgement, Verdict},
    },
};
use atelier_executor::{Approval, Expect, Origin, Tools, shown};
use serde_json::Value;

/// A dispatched call, and what was approved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DispatchedCall {
    pub(crate) tool_id: CallId,
    pub(crate) attempt: u32,
    pub(crate) tool_name: String,
    pub(crate) tool_params: Value,
    pub(crate) session_id: Option<ConversationId>,
    pub(crate) task_id: Option<TaskId>,
    /// The program that asked for the call, which has a layer of its own.
    pub(crate) requested_by: Option<TokenId>,
    pub(crate) digest: Option<CallDigest>,
    pub(crate) risk_level: Verdict,
    /// Everything that was known about the call when it was approved. Older servers do not tell.
    pub(crate) class: CallClass,
    /// For a call with a preview: checksum of what the preview was made from, or `None` if there
    /// was no file.
    pub(crate) base_checksum: Option<Option<String>>,
    /// Digest of the preview that a person approved.
    pub(crate) preview_digest: Option<PreviewDigest>,
    pub(crate) network: bool,
}

impl From<GatedCall> for DispatchedCall {
    fn from(call: GatedCall) -> Self {
        Self {
            preview_digest: call.shown(),
            tool_id: call.tool_id,
            attempt: call.attempt,
            tool_name: call.tool_name,
            tool_params: call.tool_params,
            session_id: call.session_id,
            task_id: call.task_id,
            requested_by: call.requested_by,
            digest: call.digest,
            risk_level: call.risk_level,
            class: call.class,
            base_checksum: call.preview.map(|preview| preview.base_checksum),
            network: call.network,
        }
    }
}

impl DispatchedCall {
    /// The call as the server has it, after `signal` announced it. Some tokens see no previews:
    /// then what was shown is taken from the signal, and this machine compares it with what it
    /// would show.
    pub(crate) fn stored(call: GatedCall, signal: &Self) -> Self {
        let hides_preview = call.preview.is_none();
        let mut stored = Self::from(call);
        if hides_preview {
            stored.base_checksum.clone_from(&signal.base_checksum);
            stored.preview_digest = signal.preview_digest;
        }
        stored
    }

    pub(crate) fn key(&self) -> Key {
        (self.tool_id, self.attempt)
    }

    pub(crate) fn approval(&self) -> Approval {
        let expect = match self.base_checksum.clone() {
            None => Expect::Anything,
            Some(None) => Expect::Absent,
            Some(Some(checksum)) => Expect::Checksum(checksum),
        };
        Approval { up_to: self.risk_level, class: self.class.clone(), expect }
    }

    /// Where the call comes from.
    pub(crate) fn origin(&self, client: ClientId) -> Origin {
        let Self { tool_id, session_id, task_id, requested_by, .. } = *self;
        origin(client, tool_id, session_id, task_id, requested_by)
    }

    /// Judges the call again on this machine, where links in paths can be resolved.
    pub(crate) fn check(
        &self,
        local: &LocalWorkspace,
        origin: &Origin,
        up_to: Verdict,
    ) -> Result<ToolCall, ToolOutcome> {
        let call = local.parse(&self.tool_name, self.tool_params.clone())?;
        let digest = CallDigest::asked_by(&call, self.requested_by);
        if self.digest != Some(digest) {
            return Err(ToolOutcome::failed(
                FailureCode::DigestMismatch,
                "the call is not the one that was approved",
            ));
        }
        let judgement = local.tools_for(origin).judge(&call);
        if judgement.verdict == Verdict::Deny || judgement.verdict > self.risk_level {
            return Err(local.refused(&call, judgement));
        }
        check_risk_limit(up_to, judgement.verdict)?;
        // The user is asked again, now with what this machine found beyond what was approved.
        if !self.approval().allows(&judgement) {
            let more = judgement.class.findings.difference(&self.class.findings);
            let more: Vec<&str> = more
                .chain(judgement.class.destinations.difference(&self.class.destinations))
                .map(String::as_str)
                .collect();
            let reason = format!(
                "This machine found more about the call than was approved: {}. {}",
                more.join(", "),
                judgement.reason
            );
            return Err(ToolOutcome::refused(&Judgement { reason, ..judgement }));
        }
        // The user is asked again, now with the information that the call needs the network.
        if judgement.network && judgement.verdict > Verdict::Low && !self.network {
            let reason =
                "The call needs network access, which the approval did not mention.".to_owned();
            return Err(ToolOutcome::refused(&Judgement { reason, ..judgement }));
        }
        self.check_preview(&local.tools_for(origin), &call, digest)?;
        Ok(call)
    }

    /// Compares what was shown with what this machine would show. They differ if the files have
    /// changed, or if somebody showed something else than the call would do.
    fn check_preview(
        &self,
        tools: &Tools<'_>,
        call: &ToolCall,
        digest: CallDigest,
    ) -> Result<(), ToolOutcome> {
        let Some(seen) = self.preview_digest else { return Ok(()) };
        match shown::is_shown(tools, call, digest, seen) {
            true => Ok(()),
            false => Err(ToolOutcome::failed(
                FailureCode::Stale,
                "what this call would change is not what was shown, so it needs approval again",
            )),
        }
    }
}

/// The origin of a call of a project. Calls outside a conversation share the layer of this machine's
/// connection. A program has a layer of its own beside that of the conversation or the connection:
/// what it puts there lands only if somebody approves its own landing.
pub(crate) fn origin(
    client: ClientId,
    tool_id: CallId,
    session_id: Option<ConversationId>,
    task_id: Option<TaskId>,
    requested_by: Option<TokenId>,
) -> Origin {
    let shared = session_id.map_or_else(|| client.to_string(), |session| session.to_string());
    let layer = match requested_by {
        Some(program) => format!("{shared}/{program}"),
        None => shared,
    };
    Origin { layer, tool_id: Some(tool_id), task_id, session_id }
}

/// Checks the highest risk that the owner of this machine allows.
pub(crate) fn check_risk_limit(up_to: Verdict, verdict: Verdict) -> Result<(), ToolOutcome> {
    match verdict > up_to {
        true => Err(ToolOutcome::failed(
            FailureCode::LowOnly,
            format!(
                "this machine runs only calls rated up to {up_to}; this one is rated {verdict}"
            ),
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use uuid::Uuid;

    /// TL-06.1: calls that a genuine server never dispatches.
    #[test]
    fn compromised_server_cannot_run_unapproved_calls() {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalWorkspace::open(folder.path()).unwrap();
        let signal = |tool: &str, params: Value, risk_level| DispatchedCall {
            digest: local.parse(tool, params.clone()).ok().map(|call| CallDigest::of(&call)),
            tool_id: CallId(Uuid::from_u128(1)),
            attempt: 1,
            tool_name: tool.to_owned(),
            tool_params: params,
            session_id: None,
            task_id: None,
            requested_by: None,
            risk_level,
            class: CallClass::default(),
            base_checksum: None,
            preview_digest: None,
            network: true,
        };
        let code = |signal: &DispatchedCall, up_to| {
            let refusal = signal.check(&local, Origin::local(), up_to).err()?;
            refusal.failure.and_then(|failure| failure.code.known())
        };
        let run = |command: &str, args: &[&str]| json!({"command": command, "args": args});
        let write = signal("write_file", json!({"path": "a", "content": "x"}), Verdict::Medium);
        assert_eq!(code(&write, Verdict::High), None);
        assert_eq!(code(&write, Verdict::Low), Some("low_only"));
        let swapped =
            DispatchedCall { tool_params: json!({"path": "a", "content": "y"}), ..write.clone() };
        assert_eq!(code(&swapped, Verdict::High), Some("digest_mismatch"));
        assert_eq!(
            code(&DispatchedCall { digest: None, ..write.clone() }, Verdict::High),
            Some("digest_mismatch")
        );
        let unasked = DispatchedCall { risk_level: Verdict::Low, ..write };
        assert_eq!(code(&unasked, Verdict::High), Some("approval_required"));
        let rm = signal("execute_command", run("rm", &["-rf", "/"]), Verdict::High);
        assert_eq!(code(&rm, Verdict::High), Some("command_not_allowed"));
        let outside = signal("read_file", json!({"path": "/etc/passwd"}), Verdict::High);
        assert_eq!(code(&outside, Verdict::High), Some("path_outside_workspace"));
        // No verdict is above DENY, whatever a server says was approved.
        let denied = signal("execute_command", run("sudo", &["id"]), Verdict::Deny);
        assert_eq!(code(&denied, Verdict::High), Some("command_not_allowed"));
        let install =
            signal("execute_command", run("npm", &["install", "express"]), Verdict::Medium);
        assert_eq!(code(&install, Verdict::High), None);
        // A program has a layer of its own, so its call is another one than the owner's.
        let shell = signal("shell", json!({"script": "true"}), Verdict::Medium);
        assert_ne!(code(&shell, Verdict::High), Some("digest_mismatch"));
        let program = DispatchedCall { requested_by: Some(TokenId(Uuid::from_u128(2))), ..shell };
        assert_eq!(code(&program, Verdict::High), Some("digest_mismatch"));
        let hidden = DispatchedCall { network: false, ..install };
        assert_eq!(code(&hidden, Verdict::High), Some("approval_required"));
    }
}
