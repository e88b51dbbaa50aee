//! Unusual file names, and names that lead out of the workspace.

use super::{ConversationSetup, Objects::Disk};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    file,
};
use reqwest::multipart::Form;
use rstest::rstest;
use serde_json::{Value, json};

const ATTACKS: &str = include_str!("../../../../atelier-core/tests/data/path_attacks.json");

#[rstest]
#[tokio::test]
async fn ordinary_names_stay_as_they_are(#[values(Sqlite, Postgres)] backend: Backend) {
    let setup = ConversationSetup::new(backend, Disk).await;
    let long = "n".repeat(255);
    for name in [
        "отчёт.txt",
        "報告書.txt",
        "😀.txt",
        "a b.txt",
        "a..b.txt",
        "CON",
        "aux.txt",
        "q\"uote.txt",
        &long,
    ] {
        let form =
            Form::new().part("file", file("x", name.to_owned())).text("path", name.to_owned());
        let saved = setup.ann.send_form(&setup.path, form).await.expect(201)["files"][0].clone();
        assert_eq!(saved["file_path"], name);
        assert_eq!(setup.get(&saved).await, name.as_bytes());
        let (_, headers, _) = setup.ann.download(&setup.file(&saved)).await;
        let disposition = headers["content-disposition"].to_str().unwrap();
        let encoded = disposition.split_once("filename*=UTF-8''").unwrap().1;
        assert_eq!(percent_decoded(encoded), name);
    }
    let too_long = Form::new().part("file", file("x", "")).text("path", "n".repeat(256));
    assert_eq!(setup.ann.send_form(&setup.path, too_long).await.problem(), (422, "invalid_path"));
}

/// FS-12: on upload, on rename and in multipart uploads; nothing is ever written.
#[tokio::test]
async fn escaping_paths_of_the_corpus_are_refused() {
    let setup = ConversationSetup::new(Sqlite, Disk).await;
    let kept = setup.upload("kept.txt", "kept").await;
    // A lone surrogate cannot be in a Rust string.
    let attacks: Value = serde_json::from_str(&ATTACKS.replace("\\ud800", "\\u202e")).unwrap();
    let mut tried = 0;
    for path in leaving(&attacks) {
        let form = Form::new().part("file", file("x", "evil")).text("path", path.clone());
        let uploaded = setup.ann.send_form(&setup.path, form).await;
        assert!([403, 422].contains(&uploaded.problem().0), "{path}");
        let renamed = setup.ann.patch(&setup.file(&kept), json!({"file_path": path})).await;
        assert_eq!(renamed.problem(), uploaded.problem(), "{path}");
        let new = json!({"path": path, "size": 1});
        let begun = setup.ann.post(&format!("{}/uploads", setup.path), new).await;
        assert_eq!(begun.problem(), uploaded.problem(), "{path}");
        if path.split('/').any(|name| name == "..") || path.starts_with('/') {
            let (status, code) = uploaded.problem();
            // A control character is refused before the path is examined.
            assert!(
                (status, code) == (403, "path_outside_workspace")
                    || path.chars().any(char::is_control),
                "{path}"
            );
        }
        tried += 1;
    }
    assert!(tried >= 20, "{tried} paths of the corpus");
    let info = setup.info().await;
    assert_eq!((&info["file_count"], &info["files"][0]), (&json!(1), &kept));
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

/// These names are valid for a file of a conversation. The corpus refuses them because of existing
/// files, or on Windows.
const FINE: [&str; 4] = ["notes.txt", "notes.txt/x", "C:secret.txt", ""];

/// The paths of the corpus that are refused by their text alone.
fn leaving(attacks: &Value) -> Vec<String> {
    let by_text = |case: &&Value| {
        case["expect"] == "deny" && case["class"] == "attack" && case["setup"] == json!([])
    };
    let paths =
        attacks.as_array().unwrap().iter().filter(by_text).filter_map(|case| case["path"].as_str());
    // A name that is too long for a form field is refused for that reason, with another code.
    let paths = paths.filter(|path| !FINE.contains(path) && path.len() <= 8192);
    paths
        .map(|path| path.replace("$OUT", "/somewhere/out").replace("$WS", "/somewhere/ws"))
        .collect()
}
