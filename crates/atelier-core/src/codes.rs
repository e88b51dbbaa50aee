//! Stable codes for programs. A code of another version is kept as it is, so that records and
//! reports of older and newer versions stay readable.

/// Defines an enum of codes. On the wire and in stored records a code is its snake-case name.
macro_rules! codes {
    (
        $(#[$about:meta])*
        $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
            /// A code that this version does not know: another version wrote it.
            Other(Box<str>),
        }

        impl $name {
            /// Every code that this version knows.
            pub const KNOWN: &[$name] = &[$($name::$variant),+];

            /// The code as a static string; `None` for a code that this version does not know.
            pub const fn known(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($code),)+
                    Self::Other(_) => None,
                }
            }

            pub fn as_str(&self) -> &str {
                match self {
                    Self::Other(code) => code,
                    known => known.known().unwrap_or_default(),
                }
            }
        }

        impl From<&str> for $name {
            fn from(code: &str) -> Self {
                match code {
                    $($code => Self::$variant,)+
                    other => Self::Other(other.into()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Ok(<String as serde::Deserialize>::deserialize(from)?.as_str().into())
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let known = utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .enum_values(Some(Self::KNOWN.iter().map(Self::as_str)));
                crate::codes::open(known.into(), utoipa::openapi::schema::Type::String.into())
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}
pub(crate) use codes;

/// The schema of values that are usually one of the `known` ones, but can be others of a type.
#[cfg(feature = "openapi")]
pub(crate) fn open(
    known: utoipa::openapi::RefOr<utoipa::openapi::Schema>,
    others: utoipa::openapi::schema::SchemaType,
) -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    let others = utoipa::openapi::ObjectBuilder::new()
        .schema_type(others)
        .description(Some("Another version of Atelier may use other values."));
    utoipa::openapi::schema::AnyOfBuilder::new().item(known).item(others).into()
}

#[cfg(test)]
mod tests {
    use crate::{FailureCode, task::TaskFailureCode};
    use serde_json::json;
    use std::collections::BTreeSet;

    macro_rules! every_code_survives_the_wire {
        ($name:ident) => {
            for code in $name::KNOWN {
                assert_eq!($name::from(code.as_str()), *code);
                assert_eq!(serde_json::from_value::<$name>(json!(code)).unwrap(), *code);
            }
            let names: BTreeSet<&str> = $name::KNOWN.iter().map($name::as_str).collect();
            assert_eq!(names.len(), $name::KNOWN.len(), "each code has a name of its own");
            let snake = |name: &&str| name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
            assert!(names.iter().all(snake), "{names:?}");
        };
    }

    #[test]
    fn every_code_survives_the_wire() {
        every_code_survives_the_wire!(FailureCode);
        every_code_survives_the_wire!(TaskFailureCode);
    }

    #[test]
    fn a_code_of_another_version_is_kept_as_it_is() {
        let code = serde_json::from_value::<FailureCode>(json!("from_the_future")).unwrap();
        assert_eq!(code, FailureCode::Other("from_the_future".into()));
        assert_eq!((code.known(), json!(code)), (None, json!("from_the_future")));
        assert_eq!(format!("{code:>17}"), "  from_the_future");
        let code = serde_json::from_value::<TaskFailureCode>(json!("of_an_older_version")).unwrap();
        assert_eq!(json!(code), json!("of_an_older_version"));
    }
}
