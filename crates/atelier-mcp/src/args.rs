//! The arguments of a call. Each is taken by name; missing, unknown and mistyped arguments are
//! errors.

use rmcp::model::JsonObject;
use serde_json::Value;

use crate::reply::Failure;

#[derive(Debug)]
pub(crate) struct Args {
    given: JsonObject,
    missing: Vec<&'static str>,
    wrong: Vec<String>,
}

impl Args {
    pub(crate) fn new(given: Option<JsonObject>) -> Self {
        Self { given: given.unwrap_or_default(), missing: Vec::new(), wrong: Vec::new() }
    }

    /// Many hosts send `null` for an argument that is not given.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.given.remove(name).filter(|value| !value.is_null())
    }

    fn need<T: Default>(&mut self, name: &'static str, value: Option<T>) -> T {
        value.unwrap_or_else(|| {
            self.missing.push(name);
            T::default()
        })
    }

    fn refuse<T: Default>(&mut self, name: &str, kind: &str) -> T {
        self.wrong.push(format!("Parameter '{name}' must be {kind}"));
        T::default()
    }

    pub(crate) fn text(&mut self, name: &'static str) -> String {
        let text = self.optional_text(name);
        self.need(name, text)
    }

    pub(crate) fn optional_text(&mut self, name: &'static str) -> Option<String> {
        self.take(name).map(|value| match value {
            Value::String(text) => text,
            _ => self.refuse(name, "a string"),
        })
    }

    /// A count. 0 means that no count is given. `10.0` is accepted as a whole number, and a number
    /// that is too large for 64 bits means "all".
    pub(crate) fn count(&mut self, name: &'static str) -> Option<u64> {
        let value = self.take(name)?;
        let count = match whole(&value) {
            Some(count) => count,
            None => self.refuse(name, "a whole number, 0 or more"),
        };
        (count > 0).then_some(count)
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> bool {
        match self.take(name) {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(_) => self.refuse(name, "true or false"),
        }
    }

    pub(crate) fn list(&mut self, name: &'static str) -> Vec<Value> {
        let list = self.take(name).map(|value| match value {
            Value::Array(list) => list,
            _ => self.refuse(name, "a list"),
        });
        self.need(name, list)
    }

    /// Fails if unknown arguments are left. Call this after all known arguments were taken.
    pub(crate) fn done(self) -> Result<(), Failure> {
        let unknown: Vec<&str> = self.given.keys().map(String::as_str).collect();
        let mut problems = self.wrong;
        if !self.missing.is_empty() {
            problems.insert(0, format!("Missing required parameters: {}", self.missing.join(", ")));
        }
        if !unknown.is_empty() {
            problems.push(format!("Unknown parameters: {}", unknown.join(", ")));
        }
        if problems.is_empty() { Ok(()) } else { Err(Failure::new(problems.join("; "))) }
    }
}

fn whole(value: &Value) -> Option<u64> {
    let number = value.as_number()?;
    if let Some(count) = number.as_u64() {
        return Some(count);
    }
    // The cast saturates, so that a number that is too large becomes the maximum.
    number.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0).map(|float| float as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn args(value: Value) -> Args {
        Args::new(value.as_object().cloned())
    }

    #[test]
    fn whole_numbers_may_be_written_as_floats_and_are_clamped() {
        for (given, count) in [
            (json!(10), Some(10)),
            (json!(10.0), Some(10)),
            (json!(0), None),
            (json!(0.0), None),
            (json!(1e18), Some(1_000_000_000_000_000_000)),
            (json!(1e300), Some(u64::MAX)),
            (json!(null), None),
        ] {
            let mut args = args(json!({ "head": given }));
            assert_eq!(args.count("head"), count, "{given}");
            assert_eq!(args.done(), Ok(()), "{given}");
        }
        for given in [json!(1.5), json!(-1), json!("10"), json!(true), json!([1])] {
            let mut args = args(json!({ "head": given }));
            assert_eq!(args.count("head"), None);
            let text = "Parameter 'head' must be a whole number, 0 or more";
            assert_eq!(args.done(), Err(Failure::new(text)), "{given}");
        }
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let mut args = args(json!({ "content": 5, "mode": "x" }));
        let (path, content) = (args.text("path"), args.text("content"));
        assert_eq!((path.as_str(), content.as_str()), ("", ""));
        let text = "Missing required parameters: path; Parameter 'content' must be a string; \
            Unknown parameters: mode";
        assert_eq!(args.done(), Err(Failure::new(text)));
    }
}
