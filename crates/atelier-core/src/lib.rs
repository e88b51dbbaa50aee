//! What every other crate agrees on: ids, domain values and, with the gate, the policy.
//!
//! Pure by rule: no async, no I/O, no clock. CI proves it with `cargo tree`.

pub mod digest;
pub mod ids;
pub mod path;
pub mod policy;
