//! Memory as a file, over HTTP and with `atelier memory`.

use super::{Engine, Engine::*, open, texts, week};
use atelier_testkit::Backend::{self, Postgres, Sqlite};
use rstest::rstest;
use serde_json::{Value, json};

/// CX-05.1 CX-05.2 CX-05.3 CX-05.4
#[rstest]
#[tokio::test]
async fn export_contains_what_was_requested(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    let mut entries = week();
    entries[0]["metadata"] = json!({"branch": "main", "nested": {"deep": [1, null]}});
    memory.import(entries).await;
    let export = async |query: &str| {
        memory.ann.get(&format!("{}/export{query}", memory.context)).await.expect(200)
    };
    let plain = export("").await;
    let mut fields: Vec<&str> = plain.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["agent_id", "export_date", "interactions", "total_interactions"]);
    let agent = memory.ann.get(&format!("{}/agents/coder", memory.project)).await.expect(200);
    assert_eq!((&plain["agent_id"], &plain["total_interactions"]), (&agent["id"], &json!(8)));
    let interactions = plain["interactions"].as_array().unwrap();
    assert_eq!(texts(interactions), texts(week().as_array().unwrap()));
    assert_eq!(interactions[0]["metadata"]["nested"]["deep"], json!([1, null]));
    assert!(interactions.iter().all(|interaction| interaction.get("embedding").is_none()));

    let whole = export("?include_embeddings=true").await;
    for interaction in whole["interactions"].as_array().unwrap() {
        assert_eq!(interaction["embedding"].as_array().unwrap().len(), 1536);
    }
    for (query, count) in [
        ("?types=tool_call,user_message", 2),
        ("?success=false", 2),
        ("?from=2026-01-05T00:00:00Z", 4),
        ("?from=2026-01-02T00:00:00Z&to=2026-01-03T23:00:00Z&types=tool_call", 1),
    ] {
        let part = export(query).await;
        assert_eq!(part["total_interactions"], count, "{query}");
        assert_eq!(part["interactions"].as_array().unwrap().len(), count, "{query}");
    }
}

#[rstest]
#[tokio::test]
async fn imported_embedding_of_length_zero_is_replaced(#[values(Edge, Qdrant)] engine: Engine) {
    let memory = open(Sqlite, engine).await;
    let mut entries = week();
    for (number, value) in [(0, 0.0), (1, 1e30)] {
        entries[number]["embedding"] = json!(vec![value; 1536]);
        entries[number]["embedder"] = json!("builtin-1");
    }
    memory.import(entries.clone()).await;
    for entry in entries.as_array().unwrap().iter().take(2) {
        let found = memory.search(json!({"query": entry["text"], "mode": "dense", "k": 1})).await;
        assert_eq!(texts(&found), [entry["text"].as_str().unwrap()]);
    }
}

#[rstest]
#[tokio::test]
async fn export_can_be_imported_twice_and_elsewhere(
    #[values(Sqlite, Postgres)] backend: Backend,
    #[values(Edge, Qdrant)] engine: Engine,
) {
    let memory = open(backend, engine).await;
    memory.import(week()).await;
    for query in ["", "?include_embeddings=true"] {
        let file = memory.ann.get(&format!("{}/export{query}", memory.context)).await.expect(200);
        let again =
            memory.ann.post(&format!("{}/import", memory.context), file.clone()).await.expect(200);
        assert_eq!(again, json!({"imported": 0, "skipped": 8, "indexed": true}));
        assert_eq!(memory.stats().await["total_vectors"], 8);

        let name = format!("heir{}", query.len());
        memory
            .ann
            .post(&format!("{}/agents", memory.project), json!({"name": name}))
            .await
            .expect(201);
        let heir = format!("{}/agents/{name}/context", memory.project);
        let taken = memory.ann.post(&format!("{heir}/import"), file.clone()).await.expect(200);
        assert_eq!(taken, json!({"imported": 8, "skipped": 0, "indexed": true}));
        let copy = memory.ann.get(&format!("{heir}/export{query}")).await.expect(200);
        assert_eq!(copy["interactions"], file["interactions"]);
        let found =
            super::search(&memory.ann, &heir, json!({"query": "tabs", "mode": "dense", "k": 1}))
                .await;
        assert_eq!(texts(&found), ["The user prefers tabs over spaces"]);
    }
}

#[rstest]
#[tokio::test]
async fn invalid_entry_is_named_and_nothing_is_imported(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let memory = open(backend, Edge).await;
    let good = week()[0].clone();
    for (field, value) in [
        ("text", json!(" ")),
        ("interaction_type", json!("dream")),
        ("timestamp", json!("soon")),
        ("id", json!("no-id")),
        ("embedding", json!([])),
        ("surprise", json!(1)),
        ("task_id", json!("a\u{0}b")),
        ("session_id", json!("a\u{0}b")),
        ("error_details", json!("x".repeat(20_000))),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let answer = memory
            .ann
            .post(&format!("{}/import", memory.context), json!({"interactions": [good, bad]}))
            .await;
        assert_eq!(answer.problem(), (422, "invalid_request"), "{field}");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains("interactions[1]") && detail.contains(field), "{detail}");
    }
    assert_eq!(memory.stats().await["total_vectors"], 0);
    // Few fields are enough, because the others have defaults. A NUL in a text does no harm.
    let little = json!([{"text": "a\u{0}b", "interaction_type": "tool_call"}]);
    assert_eq!(memory.import(little).await["imported"], 1);
    assert_eq!(memory.search(json!({"query": "b", "mode": "dense"})).await[0]["success"], true);
}

#[rstest]
#[tokio::test]
async fn memory_can_be_managed_from_the_command_line(#[values(Sqlite, Postgres)] backend: Backend) {
    let memory = open(backend, Edge).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memory.json");
    std::fs::write(&file, json!({"interactions": week()}).to_string()).unwrap();
    let run = |agent: &str, arguments: &[&str]| {
        let place = ["--server", &memory.server.url, "--project", "shop", "--agent", agent];
        let token = ["--token", &memory.ann.token];
        let output = memory.server.command(&[&["memory"], arguments, &place, &token].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let file = file.to_str().unwrap();
    assert_eq!(run("coder", &["import", file]), "8 imported, 0 already there\n");
    assert_eq!(run("coder", &["prune", "--max-vectors", "7"]), "1 deleted, 7 left\n");
    assert!(run("coder", &["search", "tabs or spaces", "-k", "1"]).contains("prefers tabs"));
    let stats: Value = serde_json::from_str(&run("coder", &["stats", "--bucket", "week"])).unwrap();
    assert_eq!(stats["total_vectors"], 7);
    let out = folder.path().join("out.json");
    run("coder", &["export", out.to_str().unwrap()]);
    assert_eq!(run("writer", &["import", out.to_str().unwrap()]), "7 imported, 0 already there\n");
    assert_eq!(run("writer", &["import", out.to_str().unwrap()]), "0 imported, 7 already there\n");
    assert!(run("writer", &["reindex"]).starts_with("7 interactions are indexed"));
    let found = super::search(
        &memory.ann,
        &memory.context.replace("coder", "writer"),
        json!({"query": "tabs", "k": 1}),
    )
    .await;
    assert_eq!(texts(&found), ["The user prefers tabs over spaces"]);
    assert_eq!(
        run("writer", &["prune", "--success", "false", "--dry-run"]),
        "2 would be deleted, 5 left\n"
    );
    for (arguments, reported) in [
        (&["prune"][..], "say what to delete"),
        (&["stats", "--from", "yesterday"], "use the form 2026-01-31T12:00:00Z or 2026-01-31"),
    ] {
        let place = ["--server", &memory.server.url, "--project", "shop", "--agent", "writer"];
        let token = ["--token", &memory.ann.token];
        let output = memory.server.command(&[&["memory"], arguments, &place, &token].concat());
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && printed.contains(reported), "{arguments:?}: {printed}");
    }

    // Exports a part, by time, type and outcome.
    let late = ["--from", "2026-01-05", "--to", "2026-01-07T23:00:00Z"];
    let stats: Value =
        serde_json::from_str(&run("writer", &[&["stats"], &late[..]].concat())).unwrap();
    assert_eq!(stats["total_vectors"], 3);
    let part =
        [&["export", "-", "--type", "task_execution", "--success", "true"], &late[..]].concat();
    let part: Value = serde_json::from_str(&run("writer", &part)).unwrap();
    assert_eq!(part["total_interactions"], 2);
    assert_eq!(run("writer", &[&["search", "tabs", "--mode", "lexical"], &late[..]].concat()), "");
    assert_eq!(run("writer", &["clear", "--yes"]), "7 deleted, 0 left\n");
}

#[tokio::test]
async fn export_command_overwrites_nothing_and_escapes_control_characters() {
    let memory = open(Sqlite, Edge).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let place = ["--server", &memory.server.url, "--project", "shop", "--agent", "coder"];
        let token = ["--token", &memory.ann.token];
        let output = memory.server.command(&[&["memory"], arguments, &place, &token].concat());
        (
            output.status.success(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    memory.import(week()).await;
    // A file beside the target stays, other users cannot read the export, and a target that is not
    // a regular file is not replaced.
    std::fs::write(path("out.part"), "mine").unwrap();
    assert!(run(&["export", &path("out.json")]).0);
    assert_eq!(std::fs::read_to_string(path("out.part")).unwrap(), "mine");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(path("out.json")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    std::os::unix::fs::symlink("target.json", path("link.json")).unwrap();
    assert!(run(&["export", &path("link.json")]).0);
    assert!(std::fs::symlink_metadata(path("link.json")).unwrap().is_symlink());
    let whole: Value =
        serde_json::from_slice(&std::fs::read(path("target.json")).unwrap()).unwrap();
    assert_eq!(whole["total_interactions"], 8);
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["link.json", "out.json", "out.part", "target.json"]);

    // The error names a refused entry by its place in the file, and says how many were imported
    // before.
    let mut entries: Vec<Value> = (0..300)
        .map(|n| json!({"text": format!("number {n}"), "interaction_type": "tool_call"}))
        .collect();
    entries[250]["text"] = json!(" ");
    std::fs::write(path("bad.json"), json!({"interactions": entries}).to_string()).unwrap();
    let (done, _, problem) = run(&["import", &path("bad.json")]);
    assert!(
        !done
            && problem.contains("interactions[250].text")
            && problem.contains("200 were imported"),
        "{problem}"
    );

    let evil =
        json!([{"text": "quokka \u{1b}]0;owned\u{7} \u{9b}31m", "interaction_type": "tool_call"}]);
    memory.import(evil).await;
    let (_, shown, _) = run(&["search", "quokka", "-k", "1"]);
    assert!(
        shown.contains("quokka") && !shown.chars().any(|c| c.is_control() && c != '\n'),
        "{shown:?}"
    );
    let (done, shown, note) = run(&["search", "wallaby", "--mode", "lexical"]);
    assert_eq!((done, shown.as_str(), note.trim()), (true, "", "nothing found"));
    let (done, _, note) = run(&["clear"]);
    assert!(!done && note.contains("--yes"), "{note}");
    assert_ne!(memory.stats().await["total_vectors"], 0);
}
