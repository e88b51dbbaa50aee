//! Calls on conversations' own files that a person is asked about. The gate decides about them as
//! about all calls; the server itself is the machine that previews and runs them.

use super::{FoundConversation, OwnFiles, OwnFolder};
use crate::{Error, Result};
use atelier_core::{
    CallId, ClientId, FailureCode,
    digest::CallDigest,
    gate::{CallFailure, CallStatus, GateInput, GatedCall, Previewed, ToolOutcome},
    policy::{call::ToolCall, class::CallClass, verdict::Verdict},
};
use atelier_executor::{Approval, Expect, Tools, shown};
use atelier_store::{Error as StoreError, Owned};
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::{Map, Value};
use std::{collections::HashSet, time::Duration};
use tokio_util::sync::CancellationToken;

/// How often to look for calls that another node has let through.
const LOOK: Duration = Duration::from_millis(500);
/// How many calls one node handles at the same time.
const MOST: i64 = 64;

impl OwnFiles {
    /// Previews and runs the calls that the gate has sent to the server. Runs until dropped.
    pub async fn run_background(&self) {
        let mut handled: HashSet<(CallId, u32, bool)> = HashSet::new();
        let mut work = FuturesUnordered::new();
        loop {
            match self.gate.store().own_file_calls(MOST).await {
                Ok(calls) => {
                    for (owned, call) in calls {
                        let previews = call.status == CallStatus::Previewing;
                        let key = (call.tool_id, call.attempt, previews);
                        // A claimed call is run by whoever has claimed it.
                        if (previews || !call.claimed) && handled.insert(key) {
                            work.push(async move {
                                self.handle(&owned, &call).await;
                                key
                            });
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot look for calls on conversations' files");
                }
            }
            tokio::select! {
                Some(key) = work.next() => { handled.remove(&key); }
                () = self.gate.own_call_may_be_due() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn handle(&self, owned: &Owned, call: &GatedCall) {
        let handled = match call.status {
            CallStatus::Previewing => self.preview(owned, call).await,
            _ => self.run(owned, call).await,
        };
        match handled {
            // Somebody else was faster, or the call was cancelled.
            Ok(()) | Err(Error::Refused(_) | Error::Store(StoreError::NotFound)) => {}
            Err(error) => {
                tracing::warn!(%error, call = %call.tool_id, "a call on a conversation's files \
                    could not be handled; will try again");
            }
        }
    }

    async fn conversation_of(&self, owned: &Owned, call: &GatedCall) -> Result<FoundConversation> {
        let session = call.session_id.ok_or(StoreError::NotFound)?;
        Ok(self.find(owned, session).await?)
    }

    async fn preview(&self, owned: &Owned, call: &GatedCall) -> Result<()> {
        let client = server(call);
        let found = self.conversation_of(owned, call).await?;
        let (name, params) = (call.tool_name.clone(), call.tool_params.clone());
        let (never, whole) = (CancellationToken::new(), Map::new());
        let shown = self.read(
            &found.project,
            &found.owned,
            &found.conversation,
            &whole,
            &never,
            move |own: &OwnFolder| preview(own, &name, params),
        );
        let input = match shown.await.map_err(failure).and_then(|shown| shown) {
            Ok(shown) => GateInput::Preview { client, shown },
            Err(failure) => GateInput::PreviewFailed { client, failure },
        };
        self.gate.decide(owned, call.tool_id, input).await?;
        Ok(())
    }

    async fn run(&self, owned: &Owned, call: &GatedCall) -> Result<()> {
        let (client, attempt) = (server(call), call.attempt);
        let claim = GateInput::Claim { client, attempt };
        self.gate.decide(owned, call.tool_id, claim).await?;
        let found = self.conversation_of(owned, call).await?;
        let outcome = self.outcome(found, call).await.unwrap_or_else(|failed| failed);
        self.gate.take_outcome(owned, call.tool_id, (client, attempt), outcome).await?;
        Ok(())
    }

    async fn outcome(
        &self,
        FoundConversation { project, owned, conversation }: FoundConversation,
        call: &GatedCall,
    ) -> Result<ToolOutcome, ToolOutcome> {
        let never = CancellationToken::new();
        let run = self.begin(&project, &owned, &conversation, &never).await?;
        let call = call.clone();
        let outcome = run.act(&never, move |own| execute(own, call)).await;
        let remarks = run.end().await?;
        let mut outcome = outcome?;
        if !remarks.is_empty() {
            outcome.fields.insert("remark".to_owned(), remarks.trim_start().into());
        }
        Ok(outcome)
    }
}

/// The id of the server in the role of the machine.
fn server(call: &GatedCall) -> ClientId {
    ClientId(call.session_id.map(|session| session.0).unwrap_or_default())
}

fn failure(outcome: ToolOutcome) -> CallFailure {
    match outcome.failure {
        Some(failure) => CallFailure::new(failure.code, failure.detail),
        None => CallFailure::new(FailureCode::Internal, "refused without a reason"),
    }
}

fn parsed(
    own: &OwnFolder,
    tools: &Tools<'_>,
    name: &str,
    params: Value,
) -> Result<ToolCall, ToolOutcome> {
    let (call, judgement) = own.policy.judge_request(name, params, tools.roots);
    call.map_err(|_| ToolOutcome::refused(&judgement))
}

fn preview(own: &OwnFolder, name: &str, params: Value) -> Result<Previewed, CallFailure> {
    let shown = own.with_tools(|tools| {
        let call = parsed(own, tools, name, params).map_err(failure)?;
        // Nobody should be asked about a call that will be refused.
        let judgement = tools.judge(&call);
        if judgement.verdict == Verdict::Deny {
            return Err(failure(ToolOutcome::refused(&judgement)));
        }
        let (preview, unchanged) = shown::preview(tools, &call)
            .map_err(|error| CallFailure::new(error.code(), error.to_string()))?
            .ok_or_else(|| CallFailure::new(FailureCode::Internal, "this tool has no preview"))?;
        Ok(Previewed { preview, rating: None, unchanged })
    });
    shown.unwrap_or_else(|error| Err(failure(ToolOutcome::from(&error))))
}

fn execute(own: &OwnFolder, gated: GatedCall) -> ToolOutcome {
    let seen = gated.shown();
    let base = gated.preview.as_ref().map(|preview| preview.base_checksum.clone());
    let expect = match base {
        None => Expect::Anything,
        Some(None) => Expect::Absent,
        Some(Some(checksum)) => Expect::Checksum(checksum),
    };
    let approval = Approval { up_to: gated.risk_level, class: CallClass::default(), expect };
    let outcome = own.with_tools(|tools| {
        let call = match parsed(own, tools, &gated.tool_name, gated.tool_params) {
            Ok(call) => call,
            Err(refused) => return refused,
        };
        let digest = CallDigest::of(&call);
        if gated.digest != Some(digest) {
            let detail = "the call is not the one that was approved";
            return ToolOutcome::failed(FailureCode::DigestMismatch, detail);
        }
        if seen.is_some_and(|seen| !shown::is_shown(tools, &call, digest, seen)) {
            let detail = "what this call would change is not what was shown, so it needs approval \
                          again";
            return ToolOutcome::failed(FailureCode::Stale, detail);
        }
        tools.execute(&call, &approval, &own.cancel)
    });
    let mut outcome = outcome.unwrap_or_else(|error| ToolOutcome::from(&error));
    // A refusal is final: the server has rated the call with all that it can see.
    if let Some(failure) = &mut outcome.failure {
        failure.refusal = None;
    }
    outcome
}
