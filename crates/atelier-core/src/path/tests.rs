use super::*;

fn parse(raw: &str) -> Result<String, &'static str> {
    let roots = Roots::announced("/base/ws").also("/workspace");
    WorkspacePath::parse(raw, &roots).map(|p| p.to_string()).map_err(|e| e.code().known().unwrap())
}

const OUTSIDE: Result<String, &str> = Err("path_outside_workspace");

#[test]
fn shortest_form() {
    for (raw, want) in [
        ("notes.txt", "notes.txt"),
        ("./src//a.py", "src/a.py"),
        ("src/../notes.txt", "notes.txt"),
        ("src/..", "."),
        (".", "."),
        ("./", "."),
        ("/base/ws", "."),
        ("/base//./ws/notes.txt", "notes.txt"),
        ("/workspace/a", "a"),
        ("..foo", "..foo"),
        ("foo..", "foo.."),
        ("a:b.txt", "a:b.txt"),
        ("~backup.txt", "~backup.txt"),
        ("$HOME_literal.txt", "$HOME_literal.txt"),
        ("100%.txt", "100%.txt"),
        ("https%3A%2F%2Fexample.org", "https%3A%2F%2Fexample.org"),
        ("back\\slash.txt", "back\\slash.txt"),
        ("файл/../한글 문서.txt", "한글 문서.txt"),
        ("👨‍👩‍👧.txt", "👨‍👩‍👧.txt"),
    ] {
        assert_eq!(parse(raw), Ok(want.to_owned()), "{raw:?}");
    }
}

#[test]
fn leaving_is_refused_also_when_it_comes_back() {
    for raw in [
        "..",
        "../",
        "../ws/notes.txt",
        "src/../../ws/notes.txt",
        "notes.txt/../../out/secret.txt",
        "/",
        "/etc/passwd",
        "/base/ws-evil/x",
        "/base/ws/../ws/notes.txt",
        "/base/out/../ws/notes.txt",
        "/base",
        "~",
        "./~/x",
        "src/../~",
        "~/x",
        "~root/.bashrc",
        "$HOME/x",
        "${HOME}/x",
        "%USERPROFILE%/x",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "https://example.org/x",
        "..\\out",
        "src\\..\\..\\out",
        "C:\\x",
        "C:/x.txt",
        "c:/Users/x.txt",
        "\\\\server\\share",
        "%2e%2e/out",
        "%2E%2e%2fout",
        "%252e%252e/out",
        "..%c0%af..%c0%afetc",
        "..%2fout",
        "\u{2025}/out",
        "\u{ff0e}\u{ff0e}/out",
        "..\u{2215}out",
        ".\u{200d}./out",
    ] {
        assert_eq!(parse(raw), OUTSIDE, "{raw:?}");
    }
}

#[test]
fn what_cannot_be_shown_truthfully_is_refused() {
    for raw in [
        "a\nb",
        "a\tb",
        "a\0b",
        "\u{202e}gnp.exe",
        ".\u{200b}./out",
        "x\u{feff}",
        "x\u{85}y",
        "a%00b",
    ] {
        assert_eq!(parse(raw), Err("path_unprintable"), "{raw:?}");
    }
    assert_eq!(parse(""), Err("path_empty"));
    assert_eq!(parse(&"a".repeat(255)), Ok("a".repeat(255)));
    assert_eq!(parse(&"a".repeat(256)), Err("path_too_long"));
    assert_eq!(parse(&"я".repeat(128)), Err("path_too_long"));
    assert_eq!(parse(&"d/".repeat(1000)), Err("path_too_deep"));
    assert_eq!(parse(&"d/".repeat(50_000)), Err("path_too_long"));
}

#[test]
fn relative_to_a_directory_of_the_workspace() {
    let roots = Roots::relative_only();
    let src = WorkspacePath::parse("src/deep/", &roots).unwrap();
    assert!(src.demands_directory());
    assert_eq!(src.join("../a.py").unwrap().as_str(), "src/a.py");
    assert_eq!(src.join("../../..").unwrap_err(), roots.outside());
    assert_eq!(src.parent().unwrap().as_str(), "src");
    assert!(src.join("x").unwrap().starts_with(&src) && !src.starts_with(&src.join("x").unwrap()));
    assert_eq!(
        roots.outside().to_string(),
        "Access denied. Path must be within /workspace",
        "models know this wording"
    );
}

#[test]
fn windows_reads_names_its_own_way() {
    let roots = Roots::announced("C:\\code\\shop").on(Platform::Windows);
    let parse = |raw: &str| {
        WorkspacePath::parse(raw, &roots)
            .map(|p| p.to_string())
            .map_err(|e| e.code().known().unwrap())
    };
    assert_eq!(parse("src\\main.rs"), Ok("src/main.rs".into()));
    assert_eq!(parse("c:/Code/shop/a.txt"), Ok("a.txt".into()));
    for raw in
        ["C:secret.txt", "C:\\Windows\\win.ini", "\\\\?\\C:\\x", "\\Windows", "..\\out", "/etc"]
    {
        assert_eq!(parse(raw), OUTSIDE, "{raw:?}");
    }
    for raw in ["nul", "COM1.txt", "a.txt::$DATA", "a.txt.", "dir /x", "a?b"] {
        assert_eq!(parse(raw), Err("path_reserved"), "{raw:?}");
    }
}

#[test]
fn the_longest_path_is_a_path() {
    let names = |count: usize, size: usize| vec!["n".repeat(size); count].join("/");
    // Sixteen names of 255 with their slashes are 4095 bytes.
    let longest = names(16, MAX_NAME_BYTES);
    assert_eq!(longest.len(), MAX_PATH_BYTES);
    assert_eq!(parse(&longest), Ok(longest.clone()));
    assert!(
        parse(&format!("./{longest}")).is_err() && parse(&names(1, MAX_NAME_BYTES + 1)).is_err()
    );
    assert!(parse(&names(MAX_DEPTH, 1)).is_ok() && parse(&names(MAX_DEPTH + 1, 1)).is_err());
    assert_eq!(WorkspacePath::parse("a/b/c", &Roots::relative_only()).unwrap().depth(), 3);
}

#[test]
fn errors_show_the_root_by_the_name_it_was_given() {
    let roots = Roots::announced("/base/ws").shown_as("/workspace");
    assert_eq!(
        (Roots::announced("/base/ws").display(), roots.display()),
        ("/base/ws", "/workspace")
    );
    let error = WorkspacePath::parse("../x", &roots).unwrap_err().to_string();
    assert!(error.contains("/workspace") && !error.contains("/base"), "{error}");
}
