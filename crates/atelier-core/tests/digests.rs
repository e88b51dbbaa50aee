//! Digests are a contract between versions of the server and of the machines. These were made when
//! the contract was first written down. If one of them changes, a machine refuses what a server of
//! another version has approved.

use atelier_core::{
    digest::CallDigest,
    path::Roots,
    policy::{call::ToolCall, limits::Limits},
};

#[test]
fn digests_stay_as_they_are() {
    let pinned = [
        (
            "read_file",
            r#"{"path": "src/a.rs"}"#,
            "1479c22b11d25e138f7c115d682efad5bf173d0d8a6251aab95aee8435a6d213",
        ),
        (
            "read_file",
            r#"{"path": "./src//a.rs", "head": 0, "tail": 7}"#,
            "e6d13a71a3611596036bac1c9b7a0a16c653ba7a3185cca09b329e91553c7ceb",
        ),
        (
            "write_file",
            r#"{"path": "a.txt", "content": "hé\n"}"#,
            "e04992dda314a156b2cb1ab89b554ec90106803c052eb22010975b7ba21e5e18",
        ),
        (
            "write_file",
            r#"{"path": "a/b.txt", "content": "", "mode": "append", "create_dirs": true, "if_checksum": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
            "707839f55a9a72965f6613fe46a70d6b92cf85a06601948e8fc9d05e5f9a3e01",
        ),
        (
            "edit_file",
            r#"{"path": "a.txt", "edits": [{"old_text": "a", "new_text": "b"}, {"old_string": "c", "new_string": "", "replace_all": true}]}"#,
            "eab614ef2c0ea2806420e57d7692847339c0826d858dd25f84ba116f40b0ad31",
        ),
        (
            "edit_file",
            r#"{"path": "a.txt", "old_text": "a", "new_text": "b", "if_checksum": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
            "ae05c35e927f2c6e608bcbb83fe4e1c00198b38465ebf4b89e2284300fcf7801",
        ),
        (
            "list_directory",
            r#"{}"#,
            "daac8a3637e417b22d44db82af16d84c63dc538f76e0d17b7727b9d4f5ba0905",
        ),
        (
            "list_directory",
            r#"{"path": "src/", "recursive": true, "pattern": "*.rs"}"#,
            "4035857b0063f59c7e872b9f1ad92bd2ba2261ea5a4b4d5daf4ce2f23d4215b0",
        ),
        (
            "search_files",
            r#"{"pattern": "**/*.rs"}"#,
            "4334aecee727669e7487db8afc4168ff574a4803e4a0be8bd6e54b49d79c881e",
        ),
        (
            "search_files",
            r#"{"path": "src", "pattern": "*", "max_results": 5}"#,
            "09d7788824ce443c9ed58149087c676121093f34eea6d1f4ecbd59dfedb7bcd3",
        ),
        (
            "grep",
            r#"{"pattern": "TODO"}"#,
            "2baccc5d4da137d421805bfc99f690e936655bd396853fd4b5d05d931ef31004",
        ),
        (
            "grep",
            r#"{"pattern": "a.", "path": "src", "include": "*.rs", "ignore_case": true, "literal": true, "context": 500, "max_results": 9}"#,
            "08183202a112323119b2fbe4e2648e31bfc268bbd82f8ace6f6ff2a566d83b9f",
        ),
        (
            "create_directory",
            r#"{"path": "new/dir/"}"#,
            "28f6c99d1d8b9f41cd5f57de4077f244d12748f9b5837ca4ab1f32df51a74682",
        ),
        (
            "get_file_info",
            r#"{"path": "a.txt"}"#,
            "7ca62ac44378dbe0d27b1c74909a76e5e7bc732fbb2aae47edc318a966ef9df9",
        ),
        (
            "get_file_info",
            r#"{"path": "."}"#,
            "54f0b794bfdc641e98ca88c0fe5a6dfad53633a6e800d95f62c98ad89393d547",
        ),
        (
            "move_file",
            r#"{"source": "a/", "destination": "b/c/"}"#,
            "b6167c5251f6a4fa25f1fc12ec960aed98bd3ab372678b6cec423101b2dd32fa",
        ),
        (
            "move_file",
            r#"{"from": "a", "to": "b"}"#,
            "7a9b95524ffb04844ffcd37b6ceacc33d7925203fa9c2de525692b315ac93f59",
        ),
        (
            "delete_file",
            r#"{"path": "old.txt"}"#,
            "2054f937a44fdc8db2d5f819fbdad5d505255f6f121486fbf9dc73ac7127fbc8",
        ),
        (
            "execute_command",
            r#"{"command": "git", "args": ["add", "a b"]}"#,
            "bbba65b7c985e657e780849ad0bbd9d7541973daa3683b260b61bf6e7f4399fe",
        ),
        (
            "execute_command",
            r#"{"command": "ls", "cwd": "src", "timeout": 9}"#,
            "e542c04105f948f443b15e1f738a7c81b8045efd50f015816a792726bed86618",
        ),
    ];
    for (tool, params, digest) in pinned {
        let parsed = serde_json::from_str(params).unwrap();
        let call =
            ToolCall::parse(tool, parsed, &Roots::relative_only(), &Limits::default()).unwrap();
        assert_eq!(CallDigest::of(&call).to_string(), digest, "{tool} {params}");
    }
}
