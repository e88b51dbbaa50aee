//! `atelier connect`: the real client beside a real folder, talking to the real server.

pub(crate) mod client;
mod crash;
mod git;
mod layers;
mod limits;
mod live;
mod npm;
pub(crate) mod terminal;
mod walk;
