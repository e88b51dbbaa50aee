//! Text files in other encodings than UTF-8: read as text, and changed in the encoding they have.

use crate::{
    BINARY,
    connect::client::{Machine, ProjectSetup},
    start,
};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    User,
};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

const RUSSIAN: &str = "Сообщение об ошибке\nФайл не найден\nПроверьте путь\n";

fn utf16(text: &str) -> Vec<u8> {
    [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
}

fn cp1251(text: &str) -> Vec<u8> {
    let byte = |letter: char| match letter {
        'А'..='я' => 0xc0 + u8::try_from(u32::from(letter) - u32::from('А')).unwrap(),
        ascii => u8::try_from(ascii).unwrap(),
    };
    text.chars().map(byte).collect()
}

type Encode = fn(&str) -> Vec<u8>;

/// The two encodings with their names, and how to make a file of each.
const ENCODINGS: [(&str, Encode); 2] = [("windows-1251", cp1251), ("utf-16le", utf16)];

/// TL-01.5: `atelier tool`.
#[rstest]
fn text_keeps_its_encoding_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    let tool = |name: &str, params: Value| {
        #[expect(clippy::disallowed_methods, reason = "starts the program under test")]
        let mut command = std::process::Command::new(BINARY);
        let root = folder.path().to_str().unwrap();
        let output = command.args(["tool", "--root", root, name, &params.to_string()]).output();
        serde_json::from_slice::<Value>(&output.unwrap().stdout).unwrap()
    };
    for (name, bytes) in ENCODINGS {
        std::fs::write(&file, bytes(RUSSIAN)).unwrap();
        for (part, content) in [
            (json!({}), RUSSIAN),
            (json!({"head": 1}), "Сообщение об ошибке\n"),
            (json!({"tail": 2}), "Файл не найден\nПроверьте путь\n"),
        ] {
            let mut params = part.clone();
            params["path"] = json!("notes.txt");
            let read = tool("read_file", params);
            assert_eq!(
                json!([read["content"], read["encoding"], read["size"]]),
                json!([content, name, bytes(RUSSIAN).len()]),
                "{part}"
            );
        }
        let edits = json!([{"old_text": "путь", "new_text": "права"}]);
        let edited = tool("edit_file", json!({"path": "notes.txt", "edits": edits}));
        assert_eq!(edited["encoding"], name, "{edited}");
        let mended = RUSSIAN.replace("путь", "права");
        assert_eq!(std::fs::read(&file).unwrap(), bytes(&mended));
        let more = json!({"path": "notes.txt", "content": "Конец\n", "mode": "append"});
        assert_eq!(tool("write_file", more)["encoding"], name);
        assert_eq!(std::fs::read(&file).unwrap(), bytes(&format!("{mended}Конец\n")));
        let new = json!({"path": "notes.txt", "content": "Другой текст об ошибке\n"});
        assert_eq!(tool("write_file", new)["success"], true);
        assert_eq!(std::fs::read(&file).unwrap(), bytes("Другой текст об ошибке\n"));
    }
}

/// TL-01.5: through the gate. The card shows the difference as text, and nobody is asked about a
/// character that the file cannot hold.
#[rstest]
#[tokio::test]
async fn card_shows_text_in_any_encoding(#[values(Sqlite, Postgres)] backend: Backend) {
    let machine = Machine::new();
    let file = machine.root().join("notes.txt");
    let server = start(backend).await;
    let setup = ProjectSetup::new(server.user("ann")).await;
    let _client = machine.connect(&setup, &server.url).await;
    for (name, bytes) in ENCODINGS {
        std::fs::write(&file, bytes(RUSSIAN)).unwrap();
        let read = setup.execute("read_file", json!({"path": "notes.txt"})).await;
        let read = setup.until(&read, "completed").await["result"].clone();
        assert_eq!(json!([read["content"], read["encoding"]]), json!([RUSSIAN, name]));
        let edits = json!([{"old_text": "путь", "new_text": "права"}]);
        let edit = json!({"path": "notes.txt", "edits": edits, "if_checksum": read["checksum"]});
        let call = setup.execute("edit_file", edit).await;
        let asked = setup.until(&call, "pending_approval").await;
        assert_eq!(
            asked["preview"]["diff"],
            "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,3 +1,3 @@\n Сообщение об ошибке\n \
             Файл не найден\n-Проверьте путь\n+Проверьте права\n"
        );
        setup.decide(&asked, "approve", json!({})).await;
        setup.until(&call, "completed").await;
        assert_eq!(std::fs::read(&file).unwrap(), bytes(&RUSSIAN.replace("путь", "права")));
        let delete = setup.execute("delete_file", json!({"path": "notes.txt"})).await;
        let asked = setup.until(&delete, "pending_approval").await;
        let shown = asked["preview"]["diff"].as_str().unwrap();
        assert!(shown.contains("-Проверьте права\n"), "{shown}");
        setup.decide(&asked, "reject", json!({"reason": "no"})).await;
    }
    std::fs::write(&file, cp1251(RUSSIAN)).unwrap();
    let call = json!({"path": "notes.txt", "content": "世界"});
    let failed = setup.until(&setup.execute("write_file", call).await, "failed").await;
    assert_eq!(failed["error"]["code"], "not_encodable");
    let detail = failed["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("windows-1251 has no character '世' (U+4E16)"), "{detail}");
    let pending = setup.user.get(&format!("{}/approvals", setup.project)).await.expect(200);
    assert_eq!(pending["approvals"], json!([]));
    assert_eq!(std::fs::read(&file).unwrap(), cp1251(RUSSIAN));
}

/// The result of a tool on a mount.
async fn on_mount(host: &User, mount: &str, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request =
        host.request(Method::POST, mount).header("accept", "application/json").json(&message);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    answer["result"].clone()
}

/// TL-01.5 MC-01 MC-02: MCP hosts on the files of a conversation, and the difference between two
/// versions.
#[rstest]
#[tokio::test]
async fn conversation_files_keep_their_encoding(#[values(Sqlite, Postgres)] backend: Backend) {
    let server = start(backend).await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    let conversation = workspace.rsplit('/').next().unwrap();
    let mount = format!("/mcp/conversations/{conversation}");
    for (name, bytes) in ENCODINGS {
        let file = format!("{name}.txt");
        let uploaded = ann.upload(&workspace, &file, bytes(RUSSIAN)).await.expect(201);
        let path =
            format!("{workspace}/files/{}", uploaded["files"][0]["file_id"].as_str().unwrap());
        let read = on_mount(&ann, &mount, "read_file", json!({"path": file, "tail": 1})).await;
        assert_eq!(read["content"][0]["text"], "Проверьте путь\n", "{read}");
        assert_eq!(read["_meta"]["atelier/encoding"], name, "{read}");
        let edits = json!([{"old_text": "путь", "new_text": "права"}]);
        let edited =
            on_mount(&ann, &mount, "edit_file", json!({"path": file, "edits": edits})).await;
        assert_eq!(edited["isError"], false, "{edited}");
        let mended = RUSSIAN.replace("путь", "права");
        assert_eq!(ann.download(&path).await.2.unwrap(), bytes(&mended));
        let diff = ann.download(&format!("{path}/diff")).await.2.unwrap();
        let diff = String::from_utf8(diff).unwrap();
        assert!(diff.contains("-Проверьте путь\n+Проверьте права\n"), "{diff}");
        let write = json!({"path": file, "content": mended.to_uppercase()});
        on_mount(&ann, &mount, "write_file", write).await;
        assert_eq!(ann.download(&path).await.2.unwrap(), bytes(&mended.to_uppercase()));
    }
    let unwritable = json!({"path": "windows-1251.txt", "content": "世界"});
    let refused = on_mount(&ann, &mount, "write_file", unwritable).await;
    let said = refused["content"][0]["text"].as_str().unwrap();
    assert!(said.starts_with("Error: Failed to write file") && said.contains("U+4E16"), "{said}");
}
