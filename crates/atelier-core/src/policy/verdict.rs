//! What the policy answers: how dangerous a call is, by which rule, and why.

use crate::{failure::FailureCode, path::PathError};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How dangerous a call is. The order is the meaning: of several verdicts the strictest stands, by `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Looks only; runs without asking.
    #[serde(alias = "low")]
    Low,
    /// Changes the project; a person is asked.
    #[serde(alias = "medium")]
    Medium,
    /// Could do harm that is hard to see or to undo; a person is asked, with more time.
    #[serde(alias = "high")]
    High,
    /// Not done, whoever asks.
    #[serde(alias = "deny")]
    Deny,
}

impl Verdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "LOW",
            Self::Medium => "MEDIUM",
            Self::High => "HIGH",
            Self::Deny => "DENY",
        }
    }

    pub const fn needs_approval(self) -> bool {
        matches!(self, Self::Medium | Self::High)
    }

    /// How long a person has to decide. Nobody is asked about Low, and nobody can allow Deny.
    pub const fn approval_seconds(self) -> u32 {
        match self {
            Self::Low | Self::Deny => 0,
            Self::Medium => 300,
            Self::High => 600,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no verdict: low, medium, high or deny")]
pub struct NoVerdict(String);

impl FromStr for Verdict {
    type Err = NoVerdict;
    fn from_str(text: &str) -> Result<Self, NoVerdict> {
        [Self::Low, Self::Medium, Self::High, Self::Deny]
            .into_iter()
            .find(|verdict| verdict.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| NoVerdict(text.to_owned()))
    }
}

/// The policy's answer to one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judgement {
    pub verdict: Verdict,
    /// The rule that decided, e.g. `git.push` or `git.push --force`. Stable: grants name classes by it.
    pub rule: String,
    /// One sentence for the person who decides, or wonders.
    pub reason: String,
    /// The stable code of a refusal; none unless the verdict is Deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<FailureCode>,
    /// The command needs the network, and gets it once approved.
    pub network: bool,
    /// How long the command may run, in seconds; none for what is no command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

impl Judgement {
    pub fn new(verdict: Verdict, rule: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { verdict, rule: rule.into(), reason: reason.into(), code: None, network: false, timeout: None }
    }

    pub fn denied(code: FailureCode, rule: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(Verdict::Deny, rule, reason) }
    }

    pub fn outside(error: &PathError) -> Self {
        Self::denied(error.code(), "path", error.to_string())
    }

    /// The stricter of two judgements of the same call; needs add up.
    pub fn stricter(self, other: Judgement) -> Judgement {
        let network = self.network || other.network;
        let timeout = self.timeout.or(other.timeout);
        let strict = if other.verdict > self.verdict { other } else { self };
        Judgement { network, timeout, ..strict }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Judgement,
        Verdict::{Deny, High, Low, Medium},
    };

    #[test]
    fn people_are_asked_about_what_they_can_allow() {
        let asked = [Low, Medium, High, Deny].map(|it| (it.needs_approval(), it.approval_seconds()));
        assert_eq!(asked, [(false, 0), (true, 300), (true, 600), (false, 0)]);
    }

    #[test]
    fn the_stricter_one_wins_and_needs_add_up() {
        let needy = Judgement { network: true, timeout: Some(5), ..Judgement::new(Medium, "a", "a") };
        let high = Judgement::new(High, "b", "b");
        let both = Judgement { network: true, timeout: Some(5), ..high.clone() };
        assert_eq!(needy.clone().stricter(high.clone()), both);
        assert_eq!(high.stricter(needy.clone()), both);
        // Of two that are as strict, the first.
        assert_eq!(needy.clone().stricter(Judgement::new(Medium, "c", "c")), needy);
    }
}
