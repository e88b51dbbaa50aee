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

/// What a call answers, which must have succeeded.
fn call(f: &Fixture, tool: &str, params: Value) -> Value {
    let answer = f.call(tool, params).to_value();
    assert_eq!(answer["success"], json!(true), "{tool}: {answer:#}");
    answer
}

/// LY-62: one odd name is one entry with a reason, and the rest of the layer goes on.
#[test]
fn one_odd_name_does_not_stop_a_layer() {
    for make in [
        r"printf x > $'a\xff.txt'",
        r"mkdir $'d\xff' && touch $'d\xff'/x",
        "for i in $(seq 60); do mkdir $(printf 'd%.0s' $(seq 80)) && cd ddd*; done; touch x",
        "for i in $(seq 3000); do mkdir d && cd d; done; touch x",
    ] {
        let f = Fixture::new();
        let made = shell(&f, &format!("echo good > b.txt; {make}"));
        assert_eq!(made["success"], json!(true), "{make}: {made:#}");
        let changes = call(&f, "changes", json!({}));
        let files = changes["files"].as_array().unwrap();
        let odd: Vec<&Value> = files.iter().filter(|file| file["reason"].is_string()).collect();
        assert_eq!((odd.len(), files.len()), (1, 2), "{make}: {changes:#}");
        call(&f, "diff", json!({ "paths": ["b.txt"] }));
        assert_eq!(shell(&f, "echo fine")["stdout"], json!("fine\n"), "{make}");
        call(&f, "land", json!({ "paths": ["b.txt"] }));
        // What cannot land says so, without a word of where layers are kept.
        let refused = f.call("land", json!({})).to_value();
        assert_eq!(refused["code"], json!("path_protected"), "{make}: {refused:#}");
        assert!(!refused.to_string().contains("layers/"), "{refused:#}");
        call(&f, "discard", json!({}));
        assert_eq!(call(&f, "changes", json!({}))["files"], json!([]), "{make}");
    }
}

/// LY-62: a folder is discarded by its name, whatever is in it and whatever its permissions are.
#[test]
fn a_folder_is_discarded_whatever_is_in_it() {
    let f = Fixture::new();
    let script = "mkdir -p top/$(printf 'x%.0s' $(seq 200)); cd top; \
        for i in $(seq 500); do mkdir deeper_than_a_path && cd deeper*; done; touch x; \
        cd /; echo b > b.txt; mkdir shut; touch shut/x; chmod 0 shut";
    let script =
        script.replace("cd /;", "cd \"$OLD\";").replace("mkdir -p top", "OLD=$PWD; mkdir -p top");
    assert_eq!(shell(&f, &script)["success"], json!(true));
    call(&f, "discard", json!({ "paths": ["top", "shut"] }));
    let changes = call(&f, "changes", json!({}));
    assert_eq!(changes["files"].as_array().unwrap().len(), 1, "{changes:#}");
    assert_eq!(changes["files"][0]["path"], json!("b.txt"));
}

/// LY-62: a layer with too many files can be looked at, and emptied.
#[test]
fn a_layer_with_too_many_files_can_be_emptied() {
    let f = bounded(LayerOptions { max_files: 50, ..LayerOptions::default() });
    let made =
        shell(&f, "mkdir many few; touch few/x; for i in $(seq 100); do touch many/$i; done");
    assert!(made["note"].as_str().unwrap().contains("The layer is full"), "{made:#}");
    let changes = call(&f, "changes", json!({}));
    assert_eq!(changes["limited"], json!(true));
    for (tool, params) in [("shell", json!({ "script": "true" })), ("land", json!({}))] {
        let refused = f.call(tool, params).to_value();
        assert_eq!(refused["code"], json!("file_size_exceeded"), "{refused:#}");
    }
    call(&f, "discard", json!({ "paths": ["many"] }));
    assert_eq!(shell(&f, "ls few")["stdout"], json!("x\n"));
    shell(&f, "for i in $(seq 100); do touch $i; done");
    call(&f, "discard", json!({}));
    assert_eq!(shell(&f, "echo fine")["stdout"], json!("fine\n"));
}

/// LY-64: holes cost a script nothing, so what reads them unasked has a bound, and can be cancelled.
#[test]
fn sparse_files_cost_those_who_look_nothing() {
    let f = Fixture::new();
    let script = "rm app.js; printf '%015d' 0 > same; echo new > new.txt; \
        for i in $(seq 500); do truncate -s 4294967295 s$i; done";
    let made = shell(&f, script);
    assert!(made["note"].as_str().unwrap().contains("The layer is full"), "{made:#}");
    // Two terabytes would take hours to read.
    let diff = call(&f, "diff", json!({}));
    assert_eq!((&diff["files"], &diff["truncated"]), (&json!(503), &json!(true)));
    let text = diff["diff"].as_str().unwrap();
    assert!(text.contains("+new\n") && text.contains("b/s500\nNot shown: it is too long\n"));
    assert_eq!(call(&f, "changes", json!({}))["files"].as_array().unwrap().len(), 503);
    let refused = f.call("land", json!({})).to_value();
    assert_eq!(refused["code"], json!("file_size_exceeded"), "{refused:#}");
    call(&f, "land", json!({ "paths": ["new.txt"] }));
    // A call that was cancelled looks at nothing.
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    for tool in ["diff", "changes"] {
        let parsed = common::parse(&f, tool, json!({}));
        let answer = f.tools().execute(&parsed, &Approval::full(), &cancel).to_value();
        assert_eq!(answer["code"], json!("cancelled"), "{tool}: {answer:#}");
    }
    call(&f, "discard", json!({}));
}
