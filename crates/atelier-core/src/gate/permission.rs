//! Standing permissions: what they cover, and how an approval makes one.

use super::{AskedBy, DecisionContext, GatedCall};
use crate::{
    AgentId, GrantId, ProjectId, UserId,
    policy::{class::CallClass, verdict::Verdict},
    tools::Effect,
};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// How far an approval reaches. "This session" is the conversation of the call or, for a call
/// outside a conversation, the connection of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GrantScope {
    /// This call only.
    #[default]
    Once,
    /// Calls of the same class, in this session: everything that was found about them was found
    /// about this call, and they connect nowhere else.
    Class,
    /// All MEDIUM git commands that stay in the working tree and the local history, in this
    /// session. Only for an approval of such a command.
    LocalGit,
    /// Everything that this agent asks for in this session, up to MEDIUM, or up to HIGH if the
    /// person says so.
    Agent,
}

/// A standing permission, for one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    pub id: GrantId,
    pub project_id: ProjectId,
    pub scope: GrantScope,
    /// The conversation that the permission holds for or, for calls outside a conversation, the
    /// machine's connection.
    pub session: Uuid,
    /// For a class: the rule that decided about the call it was given for, such as `git.commit`.
    pub rule: Option<String>,
    /// For a class: everything that the permission covers. Permissions of older versions have only
    /// their rule.
    #[serde(default)]
    pub class: CallClass,
    /// For all calls of one agent: that agent.
    pub agent_id: Option<AgentId>,
    /// Whether the permission covers HIGH calls. For an agent, the person said so. For a class, the
    /// call that the person approved was HIGH.
    pub include_high: bool,
    /// The calls that the permission allows, described for people.
    pub words: String,
    pub created_by: UserId,
    pub created_at: DateTime<Utc>,
    pub withdrawn_at: Option<DateTime<Utc>>,
}

impl Grant {
    /// Whether the permission covers the call. `session` is the session of the call.
    pub fn covers(&self, call: &GatedCall, session: Option<Uuid>) -> bool {
        let risk = match call.risk_level {
            Verdict::Low | Verdict::Deny => false,
            Verdict::Medium => true,
            Verdict::High => self.include_high && !lands(call),
        };
        risk && self.concerns(call)
            && self.withdrawn_at.is_none()
            && self.project_id == call.project_id
            && Some(self.session) == session
    }

    /// Whether the call is one of those that the permission is for, whatever its risk and session.
    /// Saves a decision about each of the others.
    pub fn concerns(&self, call: &GatedCall) -> bool {
        match self.scope {
            GrantScope::Once => false,
            GrantScope::Class => match &self.rule {
                Some(rule) if self.class.findings.is_empty() => {
                    CallClass::of(rule).covers(&call.class())
                }
                _ => self.class.covers(&call.class()),
            },
            GrantScope::LocalGit => call.is_local_git(),
            GrantScope::Agent => self.agent_id.is_some() && self.agent_id == call.agent_id,
        }
    }

    /// The permission that an approval of this call makes. `None` if the approval is for this
    /// call only, or if there is no session or agent that the permission could hold for.
    pub fn from_approval(
        id: GrantId,
        call: &GatedCall,
        scope: GrantScope,
        include_high: bool,
        by: UserId,
        context: &DecisionContext,
    ) -> Option<Self> {
        let session = session(call, context)?;
        let (rule, agent_id, include_high, words) = match scope {
            GrantScope::Once => return None,
            GrantScope::Class if call.risk_level == Verdict::High && lands(call) => return None,
            GrantScope::Class => {
                let include_high = call.risk_level == Verdict::High;
                (Some(call.rule.clone()), None, include_high, call.class_in_words())
            }
            GrantScope::LocalGit if call.is_local_git() => {
                (None, None, false, LOCAL_GIT.to_owned())
            }
            GrantScope::LocalGit => return None,
            GrantScope::Agent => {
                let highest = if include_high { Verdict::High } else { Verdict::Medium };
                let words =
                    format!("everything this agent asks for in this session, up to {highest}");
                (None, Some(call.agent_id?), include_high, words)
            }
        };
        Some(Self {
            id,
            project_id: call.project_id,
            scope,
            session,
            rule,
            class: if scope == GrantScope::Class {
                call.class().into_owned()
            } else {
                CallClass::default()
            },
            agent_id,
            include_high,
            words,
            created_by: by,
            created_at: context.now,
            withdrawn_at: None,
        })
    }
}

/// Whether the call puts changes of a layer into the workspace. Nobody knows beforehand which
/// files the next landing changes, so a HIGH landing is always asked about.
fn lands(call: &GatedCall) -> bool {
    call.tool().is_some_and(|tool| tool.effect == Effect::Lands)
}

/// The calls that a permission for all local git commands allows, described for people.
pub const LOCAL_GIT: &str = "all local git commands in this session: working tree and local \
                             history; never push, never a new remote, never HIGH";

/// The session of a call, which permissions hold for: its conversation or, outside a conversation,
/// the connection of the machine that runs calls.
fn session(call: &GatedCall, context: &DecisionContext) -> Option<Uuid> {
    let conversation = call.session_id.map(|conversation| conversation.0);
    conversation.or_else(|| context.machine().map(|client| client.id.0))
}

/// The standing permission that covers the call, if there is one. A permission for an agent does
/// not cover the calls of programs, because a program only claims to be that agent. A
/// conversation's permissions do not cover calls of tokens that only name the conversation. No
/// permission covers landings from a program's own layer.
pub fn covering_grant(
    call: &GatedCall,
    asked_by: AskedBy,
    context: &DecisionContext,
) -> Option<GrantId> {
    if call.requested_by.is_some() && (call.session_id.is_some() || lands(call)) {
        return None;
    }
    let session = session(call, context);
    let covers = |grant: &&Grant| {
        grant.covers(call, session)
            && (asked_by == AskedBy::Owner || grant.scope != GrantScope::Agent)
    };
    context.grants.iter().find(covers).map(|grant| grant.id)
}
