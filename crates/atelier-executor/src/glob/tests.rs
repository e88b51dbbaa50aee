use super::Glob;

fn matches(pattern: &str, path: &str) -> bool {
    Glob::parse(pattern).unwrap().matches(path)
}

#[test]
fn patterns_match_what_their_reader_expects() {
    for (pattern, path) in [
        ("*.rs", "main.rs"),
        ("**/*.rs", "main.rs"),
        ("**/*.rs", "a/b/main.rs"),
        ("src/**", "src/a"),
        ("src/**", "src/a/b"),
        ("src/**/x", "src/x"),
        ("src/**/x", "src/a/b/x"),
        ("a?c", "abc"),
        ("a?c", "aяc"),
        ("[a-c]x", "bx"),
        ("[!a-c]x", "zx"),
        ("[]]", "]"),
        ("*.{js,ts}", "app.ts"),
        ("{src,lib}/**/*.{c,h}", "lib/x/y.h"),
        ("{a,{b,c}}d", "cd"),
        ("*a*b*c*", "xxaxxbxxcxx"),
        (".env", ".env"),
        (".*", ".hidden"),
        ("**/.git/*", "x/.git/config"),
        ("foo..", "foo.."),
        ("..foo", "..foo"),
        ("a{b", "a{b"),
        ("a[b", "a[b"),
        (r"\*\?.txt", "*?.txt"),
        ("./src//*", "src/a"),
        ("файл*", "файл.txt"),
    ] {
        assert!(matches(pattern, path), "{pattern} should match {path}");
    }
}

#[test]
fn patterns_do_not_match_more() {
    for (pattern, path) in [
        ("*.rs", "a/main.rs"),
        ("*", "a/b"),
        ("*", ".hidden"),
        ("**/*", ".git/config"),
        ("**", ".git/config"),
        ("?hidden", ".hidden"),
        ("[.]hidden", ".hidden"),
        ("src/**", "src"),
        ("src/**", "lib/a"),
        ("[!a]", "a"),
        ("a?c", "ac"),
        ("*a*b", "ba"),
        ("{a,b}", "c"),
        ("NOTES.TXT", "notes.txt"),
    ] {
        assert!(!matches(pattern, path), "{pattern} should not match {path}");
    }
}

#[test]
fn climbing_absolute_and_exploding_patterns_are_refused() {
    let bomb = "{a,b}".repeat(24);
    let nested = format!("{}x{}", "{".repeat(2000), "}".repeat(2000));
    for pattern in [
        "../*",
        "**/../../out/*",
        "{..,src}/*",
        "/**/passwd",
        "{/etc/passwd,notes.txt}",
        "a/{b,../..}/c",
        "",
        &bomb,
    ] {
        assert_eq!(
            Glob::parse(pattern).unwrap_err().code().as_str(),
            "pattern_not_allowed",
            "{pattern}"
        );
    }
    // Deep nesting is a single alternative, so it is allowed.
    assert!(Glob::parse(&nested).unwrap().matches("x"));
}

#[test]
fn a_nasty_pattern_stays_fast() {
    let pattern = format!("{}b", "*a".repeat(100));
    let name = "a".repeat(250);
    assert!(!matches(&pattern, &name));
}

#[test]
fn hidden_names_match_when_asked_for_all() {
    let glob = Glob::parse("**/*").unwrap().with_hidden();
    assert!(glob.matches(".git/config"));
}
