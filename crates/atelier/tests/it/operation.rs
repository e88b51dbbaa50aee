//! Operation: health, full disks, lost nodes and engines, requests that are sent again, backups.

mod backup;
mod cluster;
mod disk;
mod health;
mod keys;
mod retries;

use atelier_testkit::Server;
use serde_json::Value;

/// The answer of `/ready`, whatever its status is.
pub(crate) async fn ready(server: &Server) -> (u16, Value) {
    let answer = server.http.get(format!("{}/ready", server.url)).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// One part of a health report.
pub(crate) fn part<'v>(health: &'v Value, name: &str) -> &'v Value {
    let parts = health["parts"].as_array().unwrap();
    parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("{name}: {health}"))
}
