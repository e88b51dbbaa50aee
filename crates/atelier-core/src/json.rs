//! Functions for `deserialize_with`. They accept exactly what the JSON Schema says, where serde by
//! itself would accept more or less.

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{fmt, marker::PhantomData};

/// Reads a struct from an object only. serde would also accept an array of its fields.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(entries))
        }
    }

    deserializer.deserialize_map(Object(PhantomData))
}

/// Reads a field that is present, possibly as null. serde alone would not tell null from a missing
/// field.
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads a whole number. JSON has only one kind of number, so `2048.0` is accepted like `2048`.
pub fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    as_whole(f64::deserialize(deserializer)?)
}

/// Reads a whole number as [`whole`] does, or null.
pub fn whole_or_null<'de, D: Deserializer<'de>, T: TryFrom<i64>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<f64>::deserialize(deserializer)?.map(as_whole).transpose()
}

fn as_whole<T: TryFrom<i64>, E: serde::de::Error>(number: f64) -> Result<T, E> {
    /// The largest number up to which an `f64` holds every whole number exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = number.fract() == 0.0 && number.abs() <= EXACT;
    let fitting = if whole { T::try_from(number as i64).ok() } else { None };
    fitting.ok_or_else(|| {
        E::custom(format_args!("expected a whole number in its range, not {number}"))
    })
}
