//! What the server tells the client to run, and the last check before it does.

use crate::{calls::Client, journal::Key, local::failed};
use atelier_core::{
    CallId,
    digest::CallDigest,
    gate::GatedCall,
    policy::{call::ToolCall, verdict::Verdict},
};
use atelier_executor::{Approval, Expect, ToolResult};
use serde_json::Value;

/// A call that was signed off, and what was approved.
#[derive(Debug, Clone)]
pub(crate) struct Signal {
    pub(crate) tool_id: CallId,
    pub(crate) attempt: u32,
    pub(crate) tool_name: String,
    pub(crate) tool_params: Value,
    pub(crate) digest: Option<CallDigest>,
    pub(crate) risk_level: Verdict,
    /// For a write that was shown: the file it was shown against, or that there was none.
    pub(crate) base_checksum: Option<Option<String>>,
    pub(crate) network: bool,
}

impl From<GatedCall> for Signal {
    fn from(call: GatedCall) -> Self {
        Self {
            tool_id: call.tool_id,
            attempt: call.attempt,
            tool_name: call.tool_name,
            tool_params: call.tool_params,
            digest: call.digest,
            risk_level: call.risk_level,
            base_checksum: call.preview.map(|preview| preview.base_checksum),
            network: call.network,
        }
    }
}

impl Signal {
    pub(crate) fn key(&self) -> Key {
        (self.tool_id, self.attempt)
    }

    pub(crate) fn approval(&self) -> Approval {
        let expect = match self.base_checksum.clone() {
            None => Expect::Anything,
            Some(None) => Expect::Absent,
            Some(Some(checksum)) => Expect::Checksum(checksum),
        };
        Approval { up_to: self.risk_level, expect }
    }
}

impl Client {
    /// What the server let through is judged again, here, where it is known where paths lead.
    pub(crate) fn check(&self, signal: &Signal) -> Result<ToolCall, ToolResult> {
        let call = self.local.parse(&signal.tool_name, signal.tool_params.clone())?;
        if signal.digest != Some(CallDigest::of(&call)) {
            return Err(failed("digest_mismatch", "this is not the call that was approved"));
        }
        let judgement = self.local.tools().judge(&call);
        if judgement.verdict == Verdict::Deny || judgement.verdict > signal.risk_level {
            return Err(ToolResult::refused(&judgement));
        }
        self.within_limits(judgement.verdict)?;
        if judgement.network && judgement.verdict > Verdict::Low && !signal.network {
            return Err(failed("network_not_approved", "it needs the network, which nobody was shown"));
        }
        Ok(call)
    }

    pub(crate) fn within_limits(&self, verdict: Verdict) -> Result<(), ToolResult> {
        match self.low_only && verdict > Verdict::Low {
            true => Err(failed("low_only", format!("this machine runs only what is LOW; this is {verdict}"))),
            false => Ok(()),
        }
    }
}
