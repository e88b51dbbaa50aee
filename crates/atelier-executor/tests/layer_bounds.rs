//! What scripts leave behind, or start, does not make a layer or a machine unusable.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

mod common;

use atelier_core::gate::ToolOutcome;
use atelier_executor::{Approval, Cancel, LayerOptions, Layers, Origin, Tools};
use common::Fixture;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

fn shell(f: &Fixture, script: &str) -> Value {
    f.call("shell", json!({ "script": script, "timeout": 60 })).to_value()
}

/// A workspace whose layers have other bounds.
fn bounded(options: LayerOptions) -> Fixture {
    let mut f = Fixture::new();
    f.layers = Layers::open(&f.base().join("state"), &f.ws, options).unwrap();
    f
}

/// LY-63
#[test]
fn the_number_of_jobs_is_limited() {
    let f = bounded(LayerOptions { max_jobs: 2, max_jobs_in_all: 3, ..LayerOptions::default() });
    let other = Origin { layer: "other".to_owned(), ..Origin::local().clone() };
    let job = |origin: &Origin| -> ToolOutcome {
        let params = json!({ "script": "sleep 300", "background": true });
        let call = common::parse(&f, "shell", params);
        let tools = Tools { origin, ..f.tools() };
        tools.execute(&call, &Approval::full(), &Cancel::new().unwrap())
    };
    let mut started: Vec<ToolOutcome> = (0..2).map(|_| job(Origin::local())).collect();
    let refused = job(Origin::local()).to_value();
    assert_eq!(refused["code"], json!("conflict"), "{refused:#}");
    started.push(job(&other));
    let refused = job(&other).to_value();
    assert_eq!(refused["code"], json!("conflict"), "{refused:#}");
    assert!(started.iter().all(ToolOutcome::success), "{started:#?}");
    // Scripts that are waited for still run, and a job that ends makes room.
    assert_eq!(shell(&f, "echo fine")["stdout"], json!("fine\n"));
    let first = started[0].to_value()["job_id"].clone();
    f.call("job_stop", json!({ "job_id": first }));
    assert!(job(Origin::local()).success());
    for key in ["local", "other"] {
        f.layers.end(key).unwrap();
    }
}

/// LY-63: what keeps a script needs no more handles than it has. It used to go on for ever, without
/// the script, if it could make no copies of them.
#[test]
fn scripts_run_and_end_where_handles_are_few() {
    let f = Fixture::new();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(150), ..limit }).unwrap();
    assert_eq!(shell(&f, "echo fine")["stdout"], json!("fine\n"));
    let job = f.call("shell", json!({ "script": "sleep 300", "background": true })).to_value();
    assert_eq!(job["success"], json!(true), "{job:#}");
    let stopped = f.call("job_stop", json!({ "job_id": job["job_id"] })).to_value();
    assert_eq!(stopped["running"], json!(false), "{stopped:#}");
    setrlimit(Resource::Nofile, limit).unwrap();
}
