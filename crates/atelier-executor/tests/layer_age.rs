//! Layers that nobody uses: somebody is told before they are dropped.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that fails says so")]

mod common;

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use common::Fixture;
use serde_json::{Value, json};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn layer(f: &Fixture) -> Option<PathBuf> {
    let mut listed = fs::read_dir(f.base().join("state/layers")).unwrap();
    listed.next().map(|entry| entry.unwrap().path())
}

/// Makes a file of the layer as old as if so many days had passed.
fn age(f: &Fixture, name: &str, days: u32) {
    let file = File::options().write(true).open(layer(f).unwrap().join(name)).unwrap();
    file.set_modified(SystemTime::now() - DAY * days).unwrap();
}

fn shell(f: &Fixture, params: Value) -> Value {
    let answer = f.call("shell", params).to_value();
    assert_eq!(answer["success"], json!(true), "{answer:#}");
    answer
}

/// What a review says: the key of a layer, and whether it was dropped.
fn review(f: &Fixture) -> Vec<(Option<String>, bool)> {
    let told = f.layers.review().unwrap();
    told.into_iter().map(|layer| (layer.key, layer.until.is_none())).collect()
}

/// LY-48
#[test]
fn somebody_is_told_before_a_layer_is_dropped() {
    let f = Fixture::new();
    let local = || Some("local".to_owned());
    shell(&f, json!({ "script": "echo x > x" }));
    assert_eq!(review(&f), []);
    age(&f, "clock", 22);
    assert_eq!(review(&f), [], "it is dropped in more than a week");
    // However old it is, nobody was told yet.
    age(&f, "clock", 100);
    assert_eq!(review(&f), [(local(), false)]);
    age(&f, "told", 6);
    assert_eq!(review(&f), [(local(), false)]);
    // Looking at it uses it.
    let listed = f.call("changes", json!({})).to_value();
    assert!(listed["kept_until"].is_string(), "{listed}");
    assert_eq!(review(&f), []);
    // So what was told before does not count.
    age(&f, "clock", 31);
    age(&f, "told", 40);
    assert_eq!(review(&f), [(local(), false)]);
    age(&f, "told", 8);
    assert_eq!(review(&f), [(local(), true)]);
    assert_eq!(layer(&f), None);
    let listed = f.call("changes", json!({})).to_value();
    assert_eq!(listed["files"], json!([]));
}

/// LY-48: a layer in which a job runs is in use, whatever its age. One without changes goes
/// silently.
#[test]
fn a_layer_with_a_job_is_not_dropped() {
    let f = Fixture::new();
    let job = shell(&f, json!({ "script": "echo x > x; sleep 300", "background": true }));
    age(&f, "clock", 100);
    File::create(layer(&f).unwrap().join("told")).unwrap();
    age(&f, "told", 50);
    assert_eq!(review(&f), []);
    assert!(layer(&f).unwrap().join("upper").exists());
    let stopped = f.call("job_stop", json!({ "job_id": job["job_id"] })).to_value();
    assert_eq!(stopped["running"], json!(false), "{stopped}");
    let discarded = f.call("discard", json!({})).to_value();
    assert_eq!(discarded["success"], json!(true), "{discarded}");
    age(&f, "clock", 100);
    assert_eq!(review(&f), []);
    assert_eq!(layer(&f), None);
}
