//! The outcome that a machine reports about a call that it ran or refused.

use super::CallRating;
use crate::{
    failure::FailureCode,
    policy::{
        class::CallClass,
        verdict::{Judgement, Verdict},
    },
    text_encoding::TextEncoding,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// The outcome of a tool call. On the wire it is one flat object: `success`, the tool's own fields
/// and, if the call failed, `error` and `code`, with `verdict`, `rule`, `class` and `network` if a
/// policy refused it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    /// The tool's own fields, such as `content` or `stdout`.
    pub fields: Map<String, Value>,
    /// `None` if the call succeeded.
    pub failure: Option<OutcomeFailure>,
}

/// How `content` holds the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ContentEncoding {
    /// Text. The file has it in this encoding.
    Text(TextEncoding),
    NotText(BinaryEncoding),
}

/// How `content` holds bytes that are not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BinaryEncoding {
    /// For pictures and documents.
    #[serde(rename = "base64")]
    Base64,
}

/// Why a call did not do what it was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeFailure {
    pub code: FailureCode,
    /// The reason, for people and models.
    pub detail: String,
    /// How the policy rates the call; set only if the policy refused it, so that nothing was tried.
    pub refusal: Option<Box<PolicyRefusal>>,
}

/// How the machine's policy rates a call that it refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRefusal {
    pub verdict: Verdict,
    pub rule: String,
    /// Everything that was found, as in [`CallRating`].
    pub class: CallClass,
    pub network: bool,
}

impl ToolOutcome {
    pub fn succeeded(fields: Map<String, Value>) -> Self {
        Self { fields, failure: None }
    }

    pub fn failed(code: FailureCode, detail: impl Into<String>) -> Self {
        let failure = OutcomeFailure { code, detail: detail.into(), refusal: None };
        Self { fields: Map::new(), failure: Some(failure) }
    }

    /// The outcome of a call that the policy denies, or that needs an approval and has none.
    pub fn refused(judgement: &Judgement) -> Self {
        let code = judgement.code.clone().unwrap_or(match judgement.verdict {
            Verdict::Deny => FailureCode::Denied,
            _ => FailureCode::ApprovalRequired,
        });
        let refusal = Box::new(PolicyRefusal {
            verdict: judgement.verdict,
            rule: judgement.rule.clone(),
            class: judgement.class.clone(),
            network: judgement.network,
        });
        let failure =
            OutcomeFailure { code, detail: judgement.reason.clone(), refusal: Some(refusal) };
        Self { fields: Map::new(), failure: Some(failure) }
    }

    pub fn success(&self) -> bool {
        self.failure.is_none()
    }

    /// Whether the call was not run because the file has changed since the preview.
    pub fn is_stale(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| failure.code == FailureCode::Stale)
    }

    /// The content of the file that the call read, in whatever encoding.
    pub fn content(&self) -> Option<&str> {
        self.fields.get("content")?.as_str()
    }

    /// The content of the text file that the call read; `None` if it read none, or only bytes.
    pub fn text(&self) -> Option<&str> {
        self.text_encoding().and_then(|_| self.content())
    }

    /// The encoding of the text file that the call read or wrote.
    pub fn text_encoding(&self) -> Option<TextEncoding> {
        match ContentEncoding::deserialize(self.fields.get("encoding")?).ok()? {
            ContentEncoding::Text(encoding) => Some(encoding),
            ContentEncoding::NotText(_) => None,
        }
    }

    /// Checksum of the whole file that the call has read or written.
    pub fn checksum(&self) -> Option<&str> {
        self.fields.get("checksum")?.as_str()
    }

    /// Whether the outcome holds the output of a command, which is useful even if the command
    /// failed.
    pub fn has_command_output(&self) -> bool {
        self.fields.contains_key("stdout")
    }

    /// The rating of a machine that did not run the call because it rates it higher than what was
    /// approved.
    pub fn higher_rating(&self) -> Option<CallRating> {
        let failure = self.failure.as_ref()?;
        let refusal = failure.refusal.as_ref()?;
        (failure.code == FailureCode::ApprovalRequired).then(|| CallRating {
            verdict: refusal.verdict,
            rule: refusal.rule.clone(),
            reason: failure.detail.clone(),
            class: refusal.class.clone(),
            network: refusal.network,
        })
    }

    /// The outcome as JSON, for models.
    pub fn to_json(&self) -> String {
        self.to_value().to_string()
    }

    pub fn to_value(&self) -> Value {
        Value::Object(self.clone().into_map())
    }

    /// The flat object that is sent. It does not copy the fields.
    pub fn into_map(self) -> Map<String, Value> {
        let mut map = self.fields;
        map.insert("success".into(), self.failure.is_none().into());
        if let Some(OutcomeFailure { code, detail, refusal }) = self.failure {
            map.insert("error".into(), detail.into());
            map.insert("code".into(), code.as_str().into());
            if let Some(refusal) = refusal {
                let PolicyRefusal { verdict, rule, class, network } = *refusal;
                map.insert("verdict".into(), verdict.as_str().into());
                map.insert("rule".into(), rule.into());
                if class != CallClass::default() {
                    map.insert("class".into(), json!(class));
                }
                if network {
                    map.insert("network".into(), true.into());
                }
            }
        }
        map
    }
}

impl From<Map<String, Value>> for ToolOutcome {
    /// Every object is an outcome. An object without `success: true` is a failure, so that nothing
    /// unclear counts as done.
    fn from(mut fields: Map<String, Value>) -> Self {
        if fields.remove("success") == Some(Value::Bool(true)) {
            return Self::succeeded(fields);
        }
        let mut text = |key: &str| match fields.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let code = text("code").map_or(FailureCode::Failed, |code| code.as_str().into());
        let detail = text("error").unwrap_or_else(|| "the tool failed".to_owned());
        let refusal = refusal(&mut fields).map(Box::new);
        Self { fields, failure: Some(OutcomeFailure { code, detail, refusal }) }
    }
}

/// Takes the rating of a policy out of the fields. Without a rating, `network` stays: it is then a
/// field of a command that ran.
fn refusal(fields: &mut Map<String, Value>) -> Option<PolicyRefusal> {
    let verdict = Verdict::deserialize(fields.get("verdict")?).ok()?;
    let rule = fields.get("rule")?.as_str()?.to_owned();
    let network = fields.get("network") == Some(&Value::Bool(true));
    let class =
        fields.get("class").map(CallClass::deserialize).transpose().ok()?.unwrap_or_default();
    for key in ["verdict", "rule", "class", "network"] {
        fields.remove(key);
    }
    Some(PolicyRefusal { verdict, rule, class, network })
}

impl Serialize for ToolOutcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clone().into_map().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolOutcome {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Map::deserialize(deserializer)?.into())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ToolOutcome {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::{
            ToSchema,
            openapi::{ObjectBuilder, Ref, schema::AdditionalProperties, schema::Type},
        };
        let text =
            |about: &str| ObjectBuilder::new().schema_type(Type::String).description(Some(about));
        let flag =
            |about: &str| ObjectBuilder::new().schema_type(Type::Boolean).description(Some(about));
        ObjectBuilder::new()
            .description(Some(
                "The outcome of a tool call: `success`, the tool's own fields such as `content` or \
                 `stdout` and, if the call failed, why.",
            ))
            .property("success", flag("Whether the call did what it was asked to do."))
            .required("success")
            .property("error", text("Why the call failed, for people and models."))
            .property("code", Ref::from_schema_name(FailureCode::name()))
            .property("verdict", Ref::from_schema_name(Verdict::name()))
            .property("rule", text("The rule of the policy that refused the call."))
            .property("network", flag("Whether a command uses the network."))
            .additional_properties(Some(AdditionalProperties::FreeForm(true)))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ToolOutcome {
    fn schemas(
        schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>,
    ) {
        use utoipa::PartialSchema;
        schemas.push((FailureCode::name().into_owned(), FailureCode::schema()));
        schemas.push((Verdict::name().into_owned(), Verdict::schema()));
    }
}

#[cfg(test)]
mod tests {
    use super::{OutcomeFailure, PolicyRefusal, ToolOutcome};
    use crate::{
        failure::FailureCode,
        gate::CallRating,
        policy::{
            class::CallClass,
            verdict::{Judgement, Verdict},
        },
    };
    use serde_json::{Value, json};

    fn read(body: Value) -> ToolOutcome {
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn outcomes_survive_the_wire_as_they_are() {
        for body in [
            json!({"success": true}),
            json!({"success": true, "code": "its own", "error": null, "content": "x"}),
            json!({"success": false, "code": "stale", "error": "It changed."}),
            json!({"success": false, "code": "command_failed", "error": "1", "network": true}),
            json!({"success": false, "code": "new_code", "error": "x", "stdout": "y"}),
            json!({"success": false, "code": "approval_required", "error": "why", "verdict": "HIGH",
                   "rule": "git.push", "network": true}),
            json!({"success": false, "code": "approval_required", "error": "why", "verdict": "HIGH",
                   "rule": "tar", "class": {"findings": ["tar", "tar file.secret"],
                   "destinations": [], "local_git": false}}),
            json!({"success": false, "code": "denied", "error": "why", "verdict": "DENY", "rule": "r"}),
        ] {
            assert_eq!(json!(read(body.clone())), body);
            assert_eq!(Value::Object(read(body.clone()).into_map()), body);
        }
    }

    #[test]
    fn what_does_not_say_success_has_failed() {
        let failed = ToolOutcome::failed(FailureCode::Failed, "the tool failed");
        for body in [
            json!({}),
            json!({"success": false}),
            json!({"success": "true"}),
            json!({"success": 1, "error": 7, "code": {}}),
        ] {
            assert_eq!(read(body.clone()), failed, "{body}");
        }
        assert!(!failed.success() && read(json!({"success": true})).success());
        assert!(serde_json::from_value::<ToolOutcome>(json!([true])).is_err());
    }

    #[test]
    fn a_refusal_carries_the_rating() {
        let judgement =
            Judgement { network: true, ..Judgement::new(Verdict::High, "git.push", "It sends.") };
        let outcome = ToolOutcome::refused(&judgement);
        let rating = CallRating {
            verdict: Verdict::High,
            rule: "git.push".into(),
            reason: "It sends.".into(),
            class: CallClass::of("git.push"),
            network: true,
        };
        assert_eq!(outcome.higher_rating(), Some(rating));
        assert_eq!(read(json!(outcome)), outcome);
        let denied = ToolOutcome::refused(&Judgement::new(Verdict::Deny, "r", "No."));
        let refusal = PolicyRefusal {
            verdict: Verdict::Deny,
            rule: "r".into(),
            class: CallClass::default(),
            network: false,
        };
        let failure = OutcomeFailure {
            code: FailureCode::Denied,
            detail: "No.".into(),
            refusal: Some(Box::new(refusal)),
        };
        assert_eq!(denied.failure, Some(failure));
        assert_eq!(denied.higher_rating(), None);
        let coded = Judgement::denied(FailureCode::PathProtected, "r", "No.");
        let code = ToolOutcome::refused(&coded).failure.unwrap().code;
        assert_eq!(code, FailureCode::PathProtected);
        // Without a whole rating there is nothing to ask about.
        for incomplete in [
            json!({"code": "approval_required", "error": "why"}),
            json!({"code": "approval_required", "error": "why", "verdict": "HIGH"}),
            json!({"code": "approval_required", "error": "why", "rule": "r"}),
            json!({"code": "approval_required", "error": "why", "rule": "r", "verdict": "?"}),
            json!({"code": "command_failed", "error": "why", "rule": "r", "verdict": "HIGH"}),
        ] {
            assert_eq!(read(incomplete.clone()).higher_rating(), None, "{incomplete}");
        }
    }

    #[test]
    fn only_text_is_text() {
        let read_file = |encoding: Value| {
            read(json!({"success": true, "content": "x", "encoding": encoding, "checksum": "1"}))
        };
        for encoding in ["utf-8", "utf-16le", "windows-1251"] {
            assert_eq!(read_file(json!(encoding)).text(), Some("x"));
        }
        for encoding in [json!("base64"), json!("a new one"), json!(null), json!(1)] {
            assert_eq!(read_file(encoding.clone()).text(), None, "{encoding}");
        }
        assert_eq!(read(json!({"success": true, "content": "x"})).text(), None);
        assert_eq!(read_file(json!("base64")).checksum(), Some("1"));
        assert_eq!(read(json!({"success": true, "checksum": 1})).checksum(), None);
        assert!(read(json!({"success": false, "stdout": ""})).has_command_output());
        assert!(!read_file(json!("utf-8")).has_command_output());
    }

    #[test]
    fn only_a_stale_failure_is_stale() {
        assert!(read(json!({"success": false, "code": "stale"})).is_stale());
        assert!(!read(json!({"success": true, "code": "stale"})).is_stale());
        assert!(!read(json!({"success": false, "code": "conflict"})).is_stale());
    }
}
