//! Verdicts and judgements: how dangerous a call is, by which rule, and why.

use super::class::CallClass;
use crate::{failure::FailureCode, path::PathError};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How dangerous a call is. Verdicts are ordered by strictness: of several verdicts, the maximum
/// wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// The call only reads, so it runs without a question.
    #[serde(alias = "low")]
    Low,
    /// The call changes the project, so a person is asked.
    #[serde(alias = "medium")]
    Medium,
    /// The call could do harm that is hard to see or to undo, so a person is asked and has more
    /// time.
    #[serde(alias = "high")]
    High,
    /// The call is not allowed, whoever asks, so it does not run and nobody is asked.
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

    /// How long a person has to decide by default. It is zero for Low and Deny, about which nobody
    /// is asked.
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

/// Why a text is not a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a verdict: low, medium, high or deny")]
pub struct InvalidVerdict(String);

impl FromStr for Verdict {
    type Err = InvalidVerdict;
    fn from_str(text: &str) -> Result<Self, InvalidVerdict> {
        [Self::Low, Self::Medium, Self::High, Self::Deny]
            .into_iter()
            .find(|verdict| verdict.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| InvalidVerdict(text.to_owned()))
    }
}

/// What the policy says about one call: the verdict, the rule that gave it, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judgement {
    pub verdict: Verdict,
    /// The rule that decided, such as `git.push` or `git.push --force`.
    pub rule: String,
    /// One sentence that explains the verdict to a person.
    pub reason: String,
    /// The code of a denial; `None` unless the verdict is Deny.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<FailureCode>,
    /// Everything that a person is asked about, if anybody is. A permission covers all of it or
    /// nothing.
    pub class: CallClass,
    /// Whether the command needs the network. It gets the network once it is approved.
    pub network: bool,
    /// How long the command may run, in seconds; `None` for other tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

impl Judgement {
    pub fn new(verdict: Verdict, rule: impl Into<String>, reason: impl Into<String>) -> Self {
        let (rule, reason) = (rule.into(), reason.into());
        // Nobody gives permission for what runs without a question, or never runs.
        let class =
            if verdict.needs_approval() { CallClass::of(&*rule) } else { CallClass::default() };
        Self { verdict, rule, reason, code: None, class, network: false, timeout: None }
    }

    pub fn denied(code: FailureCode, rule: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(Verdict::Deny, rule, reason) }
    }

    /// The judgement of a call with a path that is not allowed.
    pub fn outside(error: &PathError) -> Self {
        Self::denied(error.code(), "path", error.to_string())
    }

    /// The judgement as a part of the judgement of a tool or command: `file.secret` becomes
    /// `read_file file.secret`.
    #[must_use]
    pub fn about(self, what: &str) -> Self {
        let named = |rule: &String| format!("{what} {rule}");
        let findings = self.class.findings.iter().map(named).collect();
        Self { rule: named(&self.rule), class: CallClass { findings, ..self.class }, ..self }
    }

    /// The tool or command that was judged, without what was found about it.
    pub fn subject(&self) -> &str {
        self.rule.split(' ').next().unwrap_or_default()
    }

    /// The stricter of two judgements of the same call. Needs and destinations add up, and so does
    /// what was found at the same verdict.
    pub fn stricter(self, other: Judgement) -> Judgement {
        let network = self.network || other.network;
        let timeout = self.timeout.or(other.timeout);
        let (mut strict, loose) =
            if other.verdict > self.verdict { (other, self) } else { (self, other) };
        if strict.verdict == loose.verdict {
            strict.class.add(loose.class);
        } else if strict.verdict.needs_approval() {
            strict.class.destinations.extend(loose.class.destinations);
            if strict.class.findings.is_empty() {
                strict.class.findings.insert(strict.rule.clone());
            }
        }
        Judgement { network, timeout, ..strict }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CallClass, Judgement,
        Verdict::{Deny, High, Low, Medium},
    };

    #[test]
    fn people_are_asked_about_what_they_can_allow() {
        let asked =
            [Low, Medium, High, Deny].map(|it| (it.needs_approval(), it.approval_seconds()));
        assert_eq!(asked, [(false, 0), (true, 300), (true, 600), (false, 0)]);
    }

    #[test]
    fn the_stricter_one_wins_and_keeps_network_and_timeout() {
        let networked =
            Judgement { network: true, timeout: Some(5), ..Judgement::new(Medium, "a", "a") };
        let high = Judgement::new(High, "b", "b");
        let both = Judgement { network: true, timeout: Some(5), ..high.clone() };
        assert_eq!(networked.clone().stricter(high.clone()), both);
        assert_eq!(high.stricter(networked.clone()), both);
    }

    #[test]
    fn everything_found_at_the_deciding_verdict_is_kept() {
        let low = Judgement::new(Low, "l", "l");
        let first = Judgement::new(Medium, "a", "a");
        let both = first.clone().stricter(Judgement::new(Medium, "b", "b")).stricter(low);
        // If two judgements are equally strict, the first one gives the reason.
        let class = CallClass { findings: ["a".into(), "b".into()].into(), ..CallClass::default() };
        assert_eq!(both, Judgement { class, ..first });
        assert_eq!(both.stricter(Judgement::new(High, "c", "c")).class, CallClass::of("c"));
        assert_eq!(
            Judgement::new(High, "file.secret", "s").about("tar").class,
            CallClass::of("tar file.secret")
        );
    }
}
