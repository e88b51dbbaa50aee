//! How dangerous a tool call is, decided from its text alone.

pub mod call;
pub mod limits;
pub mod pattern;
pub mod verdict;
