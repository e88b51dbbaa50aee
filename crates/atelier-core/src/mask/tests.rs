use super::{data, masked, masked_excerpt, masked_json};
use proptest::prelude::*;
use serde_json::json;

fn example(text: &str) -> String {
    text.replace('·', "")
}

#[test]
fn shapes_and_names_mask_what_their_examples_say() {
    let file = data().expect("the data can be read");
    let shapes = file.shape.iter().map(|shape| (&shape.kind, &shape.matching, &shape.other));
    let names = "a name".to_owned();
    let all = shapes.chain([(&names, &file.names.matching, &file.names.other)]);
    let mut wrong = Vec::new();
    for (kind, matching, other) in all {
        assert!(!matching.is_empty() && !other.is_empty(), "{kind} has examples of both");
        for text in matching.iter().map(|text| example(text)) {
            let result = masked(&text);
            if !result.contains("[masked: ") {
                wrong.push(format!("{kind}: not masked: {text}"));
            }
            if masked(&result) != result {
                wrong
                    .push(format!("{kind}: masked twice: {text} → {result} → {}", masked(&result)));
            }
        }
        for text in other.iter().map(|text| example(text)) {
            if masked(&text) != text {
                wrong.push(format!("{kind}: masked: {text} → {}", masked(&text)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_of_the_value_is_left_and_nothing_else_is_taken() {
    for (text, expected) in [
        ("DB_PASSWORD=hunter2\nPORT=5432", "DB_PASSWORD=[masked: password]\nPORT=5432"),
        (
            "{\"content\":\"A_TOKEN=x1y2z3\\nB=1\"}",
            "{\"content\":\"A_TOKEN=[masked: token]\\nB=1\"}",
        ),
        ("postgres://app:hunter2@db/app", "postgres://app:[masked: password]@db/app"),
        ("password: \"correct horse\", user: ann", "password: \"[masked: password]\", user: ann"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer [masked: credentials]"),
        ("The password is `hunter2`, use it.", "The password is `[masked: password]`, use it."),
        ("passwd=p@ss,w0rd next", "passwd=[masked: password] next"),
        ("<password>hunter2</password>", "<password>[masked: password]</password>"),
        ("?token=abc123def&page=2", "?token=[masked: token]&page=2"),
    ] {
        assert_eq!(masked(text), expected);
    }
}

#[test]
fn ordinary_texts_stay_as_they_are() {
    for text in [
        "commit 3f786850e387550fdab836ed7e6dc881de23001b\nAuthor: Ann <ann@example.com>",
        "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "\"integrity\": \"sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs\"",
        "id 550e8400-e29b-41d4-a716-446655440000, task 01890a5d-ac96-774b-bcce-b302099a8057",
        "![](data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR==)",
        "The parser reads a token, compares it with the key of the table and moves on.",
        "We agreed to keep the secret of the surprise party: nobody tells Ann before Friday.",
        "Парсер читает токен, сравнивает его с ключом таблицы. Секрет успеха: терпение.",
        "パーサーはトークンを読み、テーブルのキーと比較して次に進みます。パスワードは別のページで変更できます。",
        "fn parse(token: &str, key: u32) -> Result<Token, Error> { let secret = load(path)?; }",
        "const password = document.getElementById('password').value;",
        "for (const [key, value] of Object.entries(tokens)) { total += value; }",
        "max_tokens = 4096, temperature = 0.2, tokens used: 1234",
        "GET /my/projects/01890a5d-ac96-774b-bcce-b302099a8057/agents 200 in 12 ms",
        "https://example.com/docs?page=2#password-rules",
        "checksum = \"9b34d609dfbaf33d6889b2b7106d3ca345eacad44200913df5ba02bfd31d2ba9\"",
        "The meeting is at 10:30, key points: budget, staffing, roadmap.",
        "2026-11-17T20:01:02Z INFO serving url=http://127.0.0.1:7420",
    ] {
        assert_eq!(masked(text), text);
    }
}

#[test]
fn json_is_masked_by_its_keys_and_arguments() {
    let value = json!({
        "command": "mysql", "args": ["--password", "hunter2", "--host", "db"], "count": 3,
        "env": {"dbPassword": "correct horse", "user": "ann"}, "content": "API_TOKEN=a1b2c3d4\n",
    });
    let expected = json!({
        "command": "mysql", "args": ["--password", "[masked: password]", "--host", "db"],
        "count": 3,
        "env": {"dbPassword": "[masked: password]", "user": "ann"},
        "content": "API_TOKEN=[masked: token]\n",
    });
    assert_eq!(masked_json(&value, 1000), expected);
}

#[test]
fn key_at_the_cut_of_a_long_text_is_masked_whole() {
    let secret = "hunter2".repeat(20);
    for place in [10, 600, 660, 667, 10_000, 50_000, 99_300, 99_660, 99_900] {
        let filler = "lorem ipsum ".repeat(10_000);
        let (begin, end) = (&filler[..place], &filler[place..100_000]);
        let text = format!("{begin}\nDB_PASSWORD={secret}\n{end}");
        let kept = masked_excerpt(&text, 1000);
        assert!(!kept.contains("hunter2"), "at {place}: {kept}");
        assert!(kept.chars().count() < 1100, "at {place}");
    }
    let pem = format!("-----BEGIN RSA {}-----\n{}", "PRIVATE KEY", "QUJD\n".repeat(30_000));
    assert!(masked_excerpt(&pem, 1000).starts_with("[masked: private key]"));
}

/// A quadratic scan of these would take longer than any test may run.
#[test]
fn hostile_texts_are_masked_in_one_pass() {
    for piece in [
        "token=",
        "password: ",
        "key",
        "://a:b@",
        "eyJ.",
        "-----BEGIN PRIVATE KEY",
        "secret|",
        "--token ",
        "aaaa",
        "password is ",
        "\\\"",
        "=",
        "bearer ",
        "Cookie: ",
        "пароль ",
        "{\"key\":",
        "password=x.",
    ] {
        let text = piece.repeat(200_000 / piece.len());
        assert!(masked(&text).len() < 20 * text.len(), "{piece:?}");
    }
}

proptest! {
    #[test]
    fn any_text_can_be_masked(text in "(\\PC|[ =:\"'\\\\\n]|password|TOKEN|key|://|@|--){0,60}") {
        prop_assert!(masked(&text).len() <= 30 * text.len());
    }

    #[test]
    fn value_of_a_password_variable_never_survives(value in "[A-Za-z0-9!#%+,./:;=?^_~-]{8,40}") {
        let text = format!("X_PASSWORD={value}\n");
        let kept = masked(&text).into_owned();
        prop_assume!(value.chars().any(|c| c.is_ascii_alphanumeric() && c != 'x' && c != 'X'));
        prop_assert!(!kept.contains(&value), "{}", kept);
    }
}
