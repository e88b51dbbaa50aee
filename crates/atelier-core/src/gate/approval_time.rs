//! How long a person has to decide about a call.

use super::GateTimeouts;
use crate::{Invalid, policy::verdict::Verdict};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::Value;

const SHORTEST: u32 = 10;
const LONGEST: u32 = 30 * 24 * 60 * 60;
const UNTIL_ANSWERED: &str = "until_answered";
const WHAT_IT_MAY_BE: &str = "a number of seconds between 10 and 2592000, or \"until_answered\"";

/// How long before an approval expires a person is reminded. An approval of less than twice this
/// time has its reminder halfway.
const WARNING: TimeDelta = TimeDelta::seconds(60);

/// An approval without an end is looked at this often, because a call without a deadline counts as
/// settled.
const LOOK_AGAIN: TimeDelta = TimeDelta::days(1);

/// How long a question waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalWait {
    Seconds(u32),
    UntilAnswered,
}

impl ApprovalWait {
    /// `None` if the question has no end.
    pub(super) fn time(self) -> Option<TimeDelta> {
        match self {
            Self::Seconds(seconds) => Some(TimeDelta::seconds(seconds.into())),
            Self::UntilAnswered => None,
        }
    }

    fn parse(value: &Value) -> Option<Self> {
        match value {
            Value::String(word) if word == UNTIL_ANSWERED => Some(Self::UntilAnswered),
            Value::Number(number) => {
                let seconds = u32::try_from(number.as_u64()?).ok()?;
                (SHORTEST..=LONGEST).contains(&seconds).then_some(Self::Seconds(seconds))
            }
            _ => None,
        }
    }
}

impl Serialize for ApprovalWait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Seconds(seconds) => serializer.serialize_u32(*seconds),
            Self::UntilAnswered => serializer.serialize_str(UNTIL_ANSWERED),
        }
    }
}

impl<'de> Deserialize<'de> for ApprovalWait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::parse(&value).ok_or_else(|| D::Error::custom(format!("must be {WHAT_IT_MAY_BE}")))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ApprovalWait {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{ObjectBuilder, OneOfBuilder, schema::Type};
        let seconds = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(SHORTEST))
            .maximum(Some(LONGEST));
        let word =
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some([UNTIL_ANSWERED]));
        OneOfBuilder::new()
            .description(Some("How long a question waits: seconds, or until it is answered."))
            .item(seconds)
            .item(word)
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ApprovalWait {}

/// The part of a project's settings that is about approvals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalSettings {
    /// How long a person has to decide. Without it, the server's times hold.
    pub wait: Option<ApprovalWait>,
}

impl ApprovalSettings {
    /// Reads the setting `approvals` of a project.
    pub fn from_setting(setting: Option<&Value>) -> Result<Self, Invalid> {
        let Some(setting) = setting else { return Ok(Self::default()) };
        serde_path_to_error::deserialize(setting)
            .map_err(|error| Invalid::new("settings.approvals", error.to_string()))
    }
}

impl GateTimeouts {
    /// The times of a project: its own time for people, if it has one.
    pub fn with(self, approvals: ApprovalSettings) -> Self {
        match approvals.wait {
            None => self,
            Some(wait) => Self { medium: wait.time(), high: wait.time(), ..self },
        }
    }

    /// How long a person has to decide about a call of this risk; `None` without an end.
    pub(super) fn approval(self, risk: Verdict) -> Option<TimeDelta> {
        if risk == Verdict::High { self.high } else { self.medium }
    }
}

/// When the gate has to look at an approval first that expires then.
pub(super) fn first_look(expires_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> DateTime<Utc> {
    match expires_at {
        Some(expires_at) => expires_at - WARNING.min((expires_at - now) / 2),
        None => now + LOOK_AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::{ApprovalSettings, ApprovalWait};
    use serde_json::{Value, json};

    #[test]
    fn a_wait_is_seconds_or_until_answered() {
        let cases: [(Value, Option<ApprovalWait>); 10] = [
            (json!(10), Some(ApprovalWait::Seconds(10))),
            (json!(2_592_000), Some(ApprovalWait::Seconds(2_592_000))),
            (json!("until_answered"), Some(ApprovalWait::UntilAnswered)),
            (json!(9), None),
            (json!(2_592_001), None),
            (json!(-1), None),
            (json!(60.5), None),
            (json!("60"), None),
            (json!("forever"), None),
            (json!([60]), None),
        ];
        for (value, wait) in cases {
            let read = ApprovalSettings::from_setting(Some(&json!({"wait": value})));
            assert_eq!(read.ok().and_then(|settings| settings.wait), wait, "{value}");
            if let Some(wait) = wait {
                assert_eq!(json!(wait), value);
            }
        }
        let none = ApprovalSettings::default();
        for setting in [None, Some(json!({})), Some(json!({"wait": null}))] {
            assert_eq!(ApprovalSettings::from_setting(setting.as_ref()), Ok(none));
        }
        let unknown = ApprovalSettings::from_setting(Some(&json!({"wiat": 60}))).unwrap_err();
        assert!(unknown.to_string().contains("unknown field `wiat`"), "{unknown}");
        let long = ApprovalSettings::from_setting(Some(&json!({"wait": 0}))).unwrap_err();
        assert!(long.to_string().contains("wait: must be a number of seconds"), "{long}");
    }
}
