//! Names of projects and agents. They are checked when they are parsed.

use crate::Invalid;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The JSON Schema pattern of a name: no control characters, and not only white space.
pub const NAME_PATTERN: &str =
    r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$";

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub const MAX: usize = $max;

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;
            fn try_from(name: String) -> Result<Self, Invalid> {
                check(&name, $max)?;
                Ok(Self(name))
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Invalid;
            fn try_from(name: &str) -> Result<Self, Invalid> {
                name.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .min_length(Some(1))
                    .max_length(Some($max))
                    .pattern(Some(NAME_PATTERN))
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

name!(
    /// A project's name, unique among its owner's projects.
    ProjectName, 255
);
name!(
    /// An agent's name, unique in its project.
    AgentName, 100
);

fn check(name: &str, max: usize) -> Result<(), Invalid> {
    let length = name.chars().count();
    if length == 0 || length > max {
        return Err(Invalid::new("name", format!("must have 1 to {max} characters, has {length}")));
    }
    if name.chars().any(char::is_control) {
        return Err(Invalid::new("name", "must not hold control characters"));
    }
    if name.chars().all(char::is_whitespace) {
        return Err(Invalid::new("name", "must not be blank"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_counts_characters_not_bytes() {
        assert!(AgentName::try_from("я".repeat(100)).is_ok());
        assert_eq!(
            AgentName::try_from("я".repeat(101)),
            Err(Invalid::new("name", "must have 1 to 100 characters, has 101"))
        );
    }

    #[test]
    fn blank_and_control_characters_are_refused() {
        for bad in ["", " ", "\u{3000}", "a\0b", "a\nb", "\u{85}"] {
            assert!(ProjectName::try_from(bad).is_err(), "{bad:?}");
        }
        for good in ["shop", "мой проект", "  x  ", "a/b", "🦀"] {
            assert!(ProjectName::try_from(good).is_ok(), "{good:?}");
        }
    }
}
