//! `atelier files`, as people use it.

use super::{ConversationSetup, Objects::Disk};
use atelier_testkit::Backend::Sqlite;
use serde_json::{Value, json};

impl ConversationSetup {
    /// Standard output of the command, or standard error if it failed.
    fn cli(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.cli_output(arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn cli_output(&self, arguments: &[&str]) -> std::process::Output {
        let fixed = ["--server", &self.server.url, "--token", &self.ann.token];
        let (action, rest) = arguments.split_first().unwrap();
        let conversation = ["--conversation", self.conversation()];
        let all: Vec<&str> = ["files", *action]
            .iter()
            .copied()
            .chain(fixed)
            .chain(conversation)
            .chain(rest.iter().copied())
            .collect();
        self.server.command(&all)
    }

    /// The path, version and source of each file.
    async fn versions(&self) -> Vec<Value> {
        let files = self.info().await["files"].clone();
        let shown = |file: &Value| json!([file["file_path"], file["version"], file["source"]]);
        files.as_array().unwrap().iter().map(shown).collect()
    }
}

/// FS-03
#[tokio::test(flavor = "multi_thread")]
async fn files_can_be_managed_from_the_command_line() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    let folder = tempfile::tempdir().unwrap();
    let (small, large) = (folder.path().join("notes.txt"), folder.path().join("large.bin"));
    std::fs::write(&small, "one").unwrap();
    // Large enough to be sent in parts.
    let content: Vec<u8> = (0..70_000_000u32).map(|n| (n % 249) as u8).collect();
    std::fs::write(&large, &content).unwrap();
    let (small, large) = (small.to_str().unwrap(), large.to_str().unwrap());

    // A file that cannot be sent does not stop the others, and is named.
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let complaint = setup.cli(&["put", pipe.to_str().unwrap(), small, "--to", "in/"]).unwrap_err();
    assert!(
        complaint.contains("is not a regular file") && complaint.contains("1 of 2 files"),
        "{complaint}"
    );
    assert_eq!(setup.cli(&["rm", "in/notes.txt"]).unwrap(), "deleted in/notes.txt\n");

    let put = setup.cli(&["put", small, large, "--to", "in/"]).unwrap();
    assert_eq!(put, "uploaded in/notes.txt as version 1\nuploaded in/large.bin as version 1\n");
    std::fs::write(small, "two").unwrap();
    assert_eq!(
        setup.cli(&["put", small, "--to", "in/notes.txt"]).unwrap(),
        "uploaded in/notes.txt as version 2\n"
    );
    let listed = setup.cli(&["ls"]).unwrap();
    assert_eq!(listed.lines().count(), 2);
    assert!(listed.lines().nth(1).unwrap().ends_with("user_upload  in/notes.txt"), "{listed}");
    assert_eq!(setup.cli(&["get", "in/notes.txt", "-o", "-"]).unwrap(), "two");
    assert_eq!(setup.cli(&["get", "in/notes.txt", "--at", "1", "-o", "-"]).unwrap(), "one");
    assert_eq!(setup.cli(&["get", "in/notes.txt", "--version", "1", "-o", "-"]).unwrap(), "one");
    setup.cli(&["restore", "in/notes.txt", "--version", "1"]).unwrap_err();
    let copy = folder.path().join("copy.bin");
    setup.cli(&["get", "in/large.bin", "-o", copy.to_str().unwrap()]).unwrap();
    assert!(std::fs::read(copy).unwrap() == content);
    assert_eq!(setup.cli(&["history", "in/notes.txt"]).unwrap().lines().count(), 2);
    let restored = setup.cli(&["restore", "in/notes.txt", "1"]).unwrap();
    assert_eq!(restored, "restored version 1 of in/notes.txt as version 3\n");
    std::fs::remove_dir_all(setup.folder()).unwrap();
    let report: Value = serde_json::from_str(&setup.cli(&["sync"]).unwrap()).unwrap();
    assert_eq!(report["fetched"], 2);
    assert_eq!(setup.cli(&["rm", "in/notes.txt"]).unwrap(), "deleted in/notes.txt\n");
    let gone = setup.cli(&["get", "in/notes.txt"]).unwrap_err();
    assert!(gone.contains("has no file in/notes.txt"), "{gone}");
    let refused = setup.cli(&["put", small, "--to", "../x"]).unwrap_err();
    assert!(refused.contains("PathTraversalError"), "{refused}");
}

/// FS-03 FS-05 FS-18: a command works in the folder with tools of its own. What it changes becomes
/// versions, even if it fails, and so does what somebody changed in the folder before.
#[tokio::test(flavor = "multi_thread")]
async fn command_works_in_the_folder_of_a_conversation() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    for name in ["a.txt", "both.txt", "gone.txt"] {
        setup.upload(name, "one").await;
    }
    setup.cli(&["sync"]).unwrap();
    std::fs::write(setup.folder().join("outside.txt"), "made outside a run").unwrap();
    std::fs::write(setup.folder().join("both.txt"), "changed outside a run").unwrap();
    setup.upload("both.txt", "uploaded").await;
    let script = "cat a.txt both.txt; printf two > a.txt; mkdir new; printf made > new/b.txt; \
        rm gone.txt";
    let said = setup.cli(&["run", "--", "sh", "-c", script]).unwrap();
    let (printed, report) = said.split_at(said.find('{').unwrap());
    assert_eq!(printed, "oneuploaded");
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(
        json!([report["created"], report["modified"], report["deleted"]]),
        json!([["new/b.txt"], ["a.txt"], ["gone.txt"]])
    );
    let files = [
        json!(["a.txt", 2, "ai_modified"]),
        json!(["both.agent-copy.txt", 1, "ai_created"]),
        json!(["both.txt", 2, "user_upload"]),
        json!(["new/b.txt", 1, "ai_created"]),
        json!(["outside.txt", 1, "ai_created"]),
    ];
    assert_eq!(setup.versions().await, files);
    let get = |path: &str| setup.cli(&["get", path, "-o", "-"]).unwrap();
    assert_eq!(get("both.agent-copy.txt"), "changed outside a run");

    let failed = setup.cli_output(&["run", "--", "sh", "-c", "printf three > a.txt; exit 3"]);
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    assert_eq!(
        (get("a.txt").as_str(), &setup.versions().await[0]),
        ("three", &json!(["a.txt", 3, "ai_modified"]))
    );
    let absent = setup.cli(&["run", "--", "no-such-program"]).unwrap_err();
    assert!(absent.contains("cannot run no-such-program"), "{absent}");
    setup.cli(&["run", "--", "true"]).unwrap();
}
