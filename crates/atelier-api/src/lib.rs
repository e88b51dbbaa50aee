//! What the server and its clients exchange over HTTP: bodies of requests, bodies of answers, and
//! problems.
//!
//! A type is here if more than one program uses it. A type that only one handler uses is in the
//! module of that handler. Domain values that are sent unchanged (calls, tasks, events) are in
//! `atelier-core`.

pub mod account;
pub mod approvals;
pub mod chat;
pub mod clients;
pub mod events;
pub mod files;
pub mod memory;
pub mod models;
pub mod problem;
pub mod projects;
pub mod tools;
pub mod usage;
pub mod work;

pub use account::Me;
pub use approvals::Decision;
pub use problem::{Problem, ProblemCode};
