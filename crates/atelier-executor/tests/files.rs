//! File operations as a caller sees them, on a real directory.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that fails says so")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use atelier_core::path::{Roots, WorkspacePath};
use atelier_executor::{
    Cancel, Edit, Error, Expect, Glob, Kind, Listing, MissingParents, Options, Part, Workspace,
    checksum,
};
use tempfile::TempDir;

struct Space {
    dir: TempDir,
    ws: Workspace,
}

fn space() -> Space {
    space_with(Options::default())
}

fn space_with(options: Options) -> Space {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("ws")).unwrap();
    fs::create_dir(dir.path().join("out")).unwrap();
    fs::write(dir.path().join("out/secret.txt"), "SECRET-42").unwrap();
    let ws = Workspace::open(dir.path().join("ws"), options).unwrap();
    Space { dir, ws }
}

impl Space {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("ws").join(name)
    }
    fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fn text(&self, name: &str, part: Part) -> String {
        String::from_utf8(self.ws.read(&p(name), part).unwrap().bytes).unwrap()
    }
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path(""))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn p(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text, &Roots::relative_only()).unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> &'static str {
    result.unwrap_err().code().known().unwrap()
}

fn write(s: &Space, name: &str, text: &str) -> Result<atelier_executor::Written, Error> {
    s.ws.write(&p(name), text.as_bytes(), &Expect::Anything, MissingParents::Refuse)
}

#[test]
fn reads_the_part_that_is_asked_for() {
    let s = space();
    s.put("f", "one\ntwo\nthree\nfour");
    s.put("g", "one\ntwo\n");
    s.put("empty", "");
    assert_eq!(s.text("f", Part::Whole), "one\ntwo\nthree\nfour");
    assert_eq!(s.text("f", Part::Head(2)), "one\ntwo\n");
    assert_eq!(s.text("f", Part::Head(u64::MAX)), "one\ntwo\nthree\nfour");
    assert_eq!(s.text("f", Part::Tail(2)), "three\nfour");
    assert_eq!(s.text("g", Part::Tail(1)), "two\n");
    assert_eq!(s.text("g", Part::Tail(u64::MAX)), "one\ntwo\n");
    assert_eq!(s.text("empty", Part::Tail(3)), "");
    assert_eq!(s.text("f", Part::Range { offset: 4, length: 3 }), "two");
    assert_eq!(s.text("f", Part::Range { offset: u64::MAX, length: u64::MAX }), "");
    let whole = s.ws.read(&p("f"), Part::Whole).unwrap();
    assert_eq!((whole.checksum, whole.size), (checksum(b"one\ntwo\nthree\nfour"), 18));
}

#[test]
fn head_and_tail_cross_chunks() {
    let s = space();
    let line = format!("{}\n", "x".repeat(99));
    let text = line.repeat(5000);
    s.put("f", &text);
    for n in [1, 655, 656, 1311, 4999, 5000, 5001] {
        let want = line.repeat(usize::try_from(n).unwrap().min(5000));
        assert_eq!(s.text("f", Part::Head(n)), want, "head {n}");
        assert_eq!(s.text("f", Part::Tail(n)), want, "tail {n}");
    }
}

#[test]
fn only_regular_files_within_the_limit_are_read() {
    let s = space();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        s.path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(s.path("sock")).unwrap();
    fs::File::create(s.path("big")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(code(s.ws.read(&p("pipe"), Part::Whole)), "not_a_file");
    assert_eq!(code(s.ws.read(&p("sock"), Part::Whole)), "not_a_file");
    assert_eq!(code(s.ws.read(&p("."), Part::Whole)), "not_a_file");
    assert_eq!(code(s.ws.read(&p("big"), Part::Whole)), "file_size_exceeded");
    assert_eq!(code(s.ws.read(&p("big"), Part::Tail(1))), "file_size_exceeded");
    assert_eq!(
        s.ws.read(&p("big"), Part::Range { offset: 1 << 39, length: 4 }).unwrap().bytes,
        [0; 4]
    );
    assert_eq!(s.ws.info(&p("pipe")).unwrap().kind, Kind::Other);
}

#[test]
fn links_are_followed_inside_and_nowhere_else() {
    let s = space();
    s.put("a/notes", "hello");
    symlink("a/notes", s.path("rel")).unwrap();
    symlink(s.path("a"), s.path("abs")).unwrap();
    symlink("../out/secret.txt", s.path("leak")).unwrap();
    symlink("a/../../out", s.path("climb")).unwrap();
    symlink("loop", s.path("loop")).unwrap();
    assert_eq!(s.text("rel", Part::Whole), "hello");
    assert_eq!(s.text("abs/notes", Part::Whole), "hello");
    assert_eq!(s.ws.resolve(&p("abs/notes")).unwrap(), p("a/notes"));
    assert_eq!(code(s.ws.read(&p("leak"), Part::Whole)), "path_outside_workspace");
    assert_eq!(code(s.ws.read(&p("climb/secret.txt"), Part::Whole)), "path_outside_workspace");
    assert_eq!(code(s.ws.info(&p("leak"))), "path_outside_workspace");
    assert_eq!(code(s.ws.read(&p("loop"), Part::Whole)), "too_many_links");
    assert_eq!(code(write(&s, "rel", "x")), "link_refused");
    assert_eq!(code(write(&s, "abs/new", "x")), "link_refused");
    assert_eq!(code(s.ws.create_directory(&p("climb/d"))), "link_refused");
    assert_eq!(fs::read_to_string(s.dir.path().join("out/secret.txt")).unwrap(), "SECRET-42");
}

#[test]
fn writes_replace_whole_files_and_keep_their_mode() {
    let s = space();
    let written = write(&s, "new", "hello").unwrap();
    assert_eq!((written.size, written.checksum, written.created), (5, checksum(b"hello"), true));
    assert_eq!(fs::metadata(s.path("new")).unwrap().permissions().mode() & 0o7777, 0o644);
    s.put("script", "old");
    fs::set_permissions(s.path("script"), fs::Permissions::from_mode(0o750)).unwrap();
    assert!(!write(&s, "script", "new").unwrap().created);
    assert_eq!(fs::metadata(s.path("script")).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(s.names(), ["new", "script"], "no temporary file stays");
    assert_eq!(code(write(&s, "no/dir", "x")), "not_found");
    s.ws.write(&p("a/b/c"), b"x", &Expect::Anything, MissingParents::Create).unwrap();
    assert_eq!(fs::metadata(s.path("a/b")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(code(write(&s, "a", "x")), "not_a_file");
    assert_eq!(code(write(&s, "a/b/c/d", "x")), "not_a_directory");
    assert_eq!(code(write(&s, ".", "x")), "path_protected");
    assert_eq!(code(write(&s, "new/", "x")), "not_a_file");
}

#[test]
fn a_hard_link_is_replaced_and_its_other_name_untouched() {
    let s = space();
    fs::hard_link(s.dir.path().join("out/secret.txt"), s.path("hl")).unwrap();
    write(&s, "hl", "mine").unwrap();
    s.ws.append(&p("hl"), b"!", &Expect::Anything, MissingParents::Refuse).unwrap();
    assert_eq!(s.text("hl", Part::Whole), "mine!");
    assert_eq!(fs::read_to_string(s.dir.path().join("out/secret.txt")).unwrap(), "SECRET-42");
    assert_eq!(fs::metadata(s.path("hl")).unwrap().nlink(), 1);
}

#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let s = space_with(Options { max_write: 4, ..Options::default() });
    s.put("f", "old");
    assert_eq!(code(write(&s, "f", "12345")), "file_size_exceeded");
    assert_eq!(
        code(s.ws.append(&p("f"), b"12", &Expect::Anything, MissingParents::Refuse)),
        "file_size_exceeded"
    );
    assert_eq!(code(s.ws.write(&p("f"), b"x", &Expect::Absent, MissingParents::Refuse)), "stale");
    assert_eq!((s.text("f", Part::Whole).as_str(), s.names()), ("old", vec!["f".to_owned()]));
}

#[test]
fn what_changed_since_it_was_approved_is_stale() {
    let s = space();
    s.put("f", "one");
    let approved = Expect::Checksum(checksum(b"one"));
    let written = s.ws.write(&p("f"), b"two", &approved, MissingParents::Refuse).unwrap();
    assert_eq!(written.replaced, Some(checksum(b"one")));
    assert_eq!(code(s.ws.write(&p("f"), b"three", &approved, MissingParents::Refuse)), "stale");
    assert_eq!(code(s.ws.append(&p("f"), b"!", &approved, MissingParents::Refuse)), "stale");
    assert_eq!(code(s.ws.write(&p("gone"), b"x", &approved, MissingParents::Refuse)), "stale");
    assert_eq!(s.text("f", Part::Whole), "two");
    s.ws.write(&p("g"), b"x", &Expect::Absent, MissingParents::Refuse).unwrap();
}

/// Two servers on one directory, with several callers each: every acknowledged write is there.
#[test]
fn nobodys_work_is_lost_to_somebody_elses() {
    const CALLERS: usize = 4;
    const EACH: usize = 40;
    let s = space();
    let other = Workspace::open(s.path(""), Options::default()).unwrap();
    s.put("edited", &(0..CALLERS * EACH).map(|n| format!("<{n}>\n")).collect::<String>());
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let ws = if caller % 2 == 0 { &s.ws } else { &other };
            scope.spawn(move || {
                for n in (0..EACH).map(|n| caller * EACH + n) {
                    let line = format!("{n}\n");
                    ws.append(
                        &p("log"),
                        line.as_bytes(),
                        &Expect::Anything,
                        MissingParents::Refuse,
                    )
                    .unwrap();
                    let edit =
                        Edit { old: format!("<{n}>"), new: format!("[{n}]"), count: Some(1) };
                    ws.edit(&p("edited"), &[edit], &Expect::Anything).unwrap();
                }
            });
        }
    });
    let mut lines: Vec<usize> =
        s.text("log", Part::Whole).lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..CALLERS * EACH).collect::<Vec<_>>());
    assert!(!s.text("edited", Part::Whole).contains('<'));
    assert_eq!(s.names(), ["edited", "log"]);
}

#[test]
fn edits_happen_all_or_not_at_all() {
    let s = space();
    s.put("f", "a b a c");
    let edit =
        |old: &str, new: &str, count| Edit { old: old.into(), new: new.into(), count: Some(count) };
    assert_eq!(code(s.ws.edit(&p("f"), &[edit("a", "x", 1)], &Expect::Anything)), "edit_mismatch");
    assert_eq!(
        code(s.ws.edit(&p("f"), &[edit("b", "x", 1), edit("q", "x", 1)], &Expect::Anything)),
        "edit_mismatch"
    );
    assert_eq!(code(s.ws.edit(&p("f"), &[edit("", "x", 1)], &Expect::Anything)), "edit_empty");
    assert_eq!(s.text("f", Part::Whole), "a b a c");
    s.ws.edit(&p("f"), &[edit("a", "x", 2), edit("x b", "y", 1)], &Expect::Anything).unwrap();
    assert_eq!(s.text("f", Part::Whole), "y x c");
}

#[test]
fn ignored_names_do_not_exist_for_agents() {
    let s = space();
    s.put("private/key", "k");
    s.put("a/x.secret", "k");
    s.put("a/y", "k");
    symlink("private/key", s.path("alias")).unwrap();
    s.put(".atelierignore", "/private/\n*.secret\n");
    for hidden in ["private/key", "private", "a/x.secret", "alias"] {
        assert_eq!(code(s.ws.info(&p(hidden))), "not_found", "{hidden}");
    }
    assert_eq!(code(s.ws.read(&p("alias"), Part::Whole)), "not_found");
    assert_eq!(code(write(&s, "private/key", "x")), "permission_denied");
    assert_eq!(code(s.ws.delete(&p("a/x.secret"), false)), "permission_denied");
    let found =
        s.ws.search(&p("."), &Glob::parse("**/*").unwrap(), 10, &Cancel::new().unwrap()).unwrap();
    let paths: Vec<_> = found.hits.iter().map(|hit| hit.path.to_str().unwrap()).collect();
    assert_eq!(paths, ["a", "a/y", "alias"]);
    // The rules are read again when they change.
    s.put(".atelierignore", "");
    assert_eq!(s.text("private/key", Part::Whole), "k");
    // Rules that cannot be read hide everything.
    fs::remove_file(s.path(".atelierignore")).unwrap();
    fs::create_dir(s.path(".atelierignore")).unwrap();
    assert_eq!(code(s.ws.read(&p("a/y"), Part::Whole)), "not_a_file");
}

#[test]
fn search_is_sorted_cut_and_hides_dotfiles() {
    let s = space();
    for name in ["b/2.rs", "b/1.rs", "a.rs", "c.rs", ".hidden/x.rs", ".x.rs"] {
        s.put(name, "");
    }
    let find = |pattern: &str, limit| {
        let found =
            s.ws.search(&p("."), &Glob::parse(pattern).unwrap(), limit, &Cancel::new().unwrap())
                .unwrap();
        (
            found
                .hits
                .into_iter()
                .map(|hit| hit.path.to_str().unwrap().to_owned())
                .collect::<Vec<_>>(),
            found.cut,
        )
    };
    assert_eq!(
        find("**/*.rs", 10),
        (vec!["a.rs".into(), "b/1.rs".into(), "b/2.rs".into(), "c.rs".into()], false)
    );
    assert!(!find("**/*.rs", 4).1);
    assert_eq!(find("**/*.rs", 2), (vec!["a.rs".into(), "b/1.rs".into()], true));
    assert_eq!(find(".*", 10), (vec![".hidden".into(), ".x.rs".into()], false));
    assert_eq!(find("b/*", 10), (vec!["b/1.rs".into(), "b/2.rs".into()], false));
}

#[test]
fn listings_count_everything_and_describe_the_first() {
    let s = space();
    for n in 0..30 {
        s.put(&format!("d/{n:02}"), "xy");
    }
    s.put("top", "");
    let list = |path: &str, pattern: &str, recursive, limit| {
        let glob = Glob::parse_for_names(pattern, recursive).unwrap();
        s.ws.list(&p(path), &Listing { glob, limit }, &Cancel::new().unwrap()).unwrap()
    };
    let listed = list(".", "*", true, 5);
    assert_eq!((listed.total, listed.entries.len(), listed.cut), (32, 5, false));
    let paths: Vec<_> = listed.entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["d", "d/00", "d/01", "d/02", "d/03"]);
    assert_eq!(
        (listed.entries[1].kind, listed.entries[1].size, listed.entries[1].lossy),
        (Kind::File, 2, false)
    );
    assert_eq!(list("d", "1?", false, 100).total, 10);
    assert_eq!(list(".", "*", false, 100).total, 2);
}

#[test]
fn names_that_are_no_utf8_are_shown_marked() {
    use std::os::unix::ffi::OsStrExt;
    let s = space();
    fs::write(s.path("").join(std::ffi::OsStr::from_bytes(b"bad\xff.txt")), "x").unwrap();
    let glob = Glob::parse("*.txt").unwrap();
    let listed = s.ws.list(&p("."), &Listing { glob, limit: 10 }, &Cancel::new().unwrap()).unwrap();
    assert_eq!(
        (listed.entries[0].name.as_str(), listed.entries[0].lossy),
        ("bad\u{fffd}.txt", true)
    );
}

#[test]
fn trees_deeper_than_any_path_are_walked_and_deleted_without_handles() {
    let s = space();
    s.put("top/x/f", "");
    // 3000 levels are more than a path can name, so the directories are created one by one.
    let mut here =
        rustix::fs::open(s.path("top/x"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&here, "d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, "d", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
    }
    let found =
        s.ws.search(&p("."), &Glob::parse("**/f").unwrap(), 10, &Cancel::new().unwrap()).unwrap();
    assert_eq!((found.hits.len(), found.cut), (1, true));
    assert_eq!(code(s.ws.delete(&p("top/x"), true)), "name_too_long");
}

#[test]
fn directories_are_made_moved_and_deleted_within_the_rules() {
    let s = space();
    assert!(s.ws.create_directory(&p("a/b/c")).unwrap());
    assert!(!s.ws.create_directory(&p("a/b/c")).unwrap());
    assert!(!s.ws.create_directory(&p(".")).unwrap());
    s.put("f", "x");
    s.put("g", "y");
    assert_eq!(code(s.ws.create_directory(&p("f"))), "not_a_directory");
    assert_eq!(code(s.ws.move_entry(&p("f"), &p("g"), false)), "already_exists");
    s.ws.move_entry(&p("f"), &p("g"), true).unwrap();
    s.ws.move_entry(&p("g"), &p("a/g"), false).unwrap();
    s.ws.move_entry(&p("a/b"), &p("a/z"), false).unwrap();
    assert_eq!(code(s.ws.move_entry(&p("a"), &p("q"), false)), "path_protected");
    assert_eq!(code(s.ws.delete(&p("a"), true)), "path_protected");
    assert_eq!(code(s.ws.delete(&p("."), true)), "path_protected");
    assert_eq!(code(s.ws.delete(&p("a/z"), false)), "directory_not_empty");
    assert_eq!(s.ws.delete(&p("a/z"), true).unwrap(), 2);
    assert_eq!(s.ws.delete(&p("a/g"), false).unwrap(), 1);
    s.put("a/repo/.git/config", "");
    assert_eq!(code(s.ws.delete(&p("a/repo"), true)), "path_protected");
}

#[test]
fn deleting_a_link_leaves_its_target() {
    let s = space();
    s.put("d/f", "x");
    symlink("../out", s.path("lnk")).unwrap();
    symlink("../../out", s.path("d/lnk")).unwrap();
    s.ws.delete(&p("lnk"), false).unwrap();
    s.put("d/e/f", "x");
    symlink("../../../out", s.path("d/e/lnk")).unwrap();
    assert_eq!(s.ws.delete(&p("d/e"), true).unwrap(), 3);
    assert!(s.dir.path().join("out/secret.txt").exists());
}

#[test]
fn info_tells_kind_mode_and_birth() {
    let s = space();
    s.put("d/f", "hello");
    let info = s.ws.info(&p("d/f")).unwrap();
    assert_eq!((info.kind, info.size, info.entries), (Kind::File, 5, None));
    assert!(info.created.is_none_or(|born| born <= info.modified));
    assert_eq!(s.ws.info(&p("d")).unwrap().entries, Some(1));
    assert_eq!(code(s.ws.info(&p("d/f/"))), "not_a_directory");
    assert_eq!(code(s.ws.info(&p("nope"))), "not_found");
}

#[test]
fn grep_searches_files_and_follows_no_link() {
    use atelier_executor::{GrepSpec, Line};
    let s = space();
    s.put("a/one.rs", "fn main() {}\n// TODO: x\nend\n");
    s.put("a/two.txt", "todo\nTODO\n");
    s.put("a/bin", "TODO\0");
    s.put(".hidden", "TODO");
    s.put("skip.pem", "TODO");
    symlink("../out", s.path("lnk")).unwrap();
    symlink("../out/secret.txt", s.path("leak")).unwrap();
    let spec = GrepSpec {
        pattern: "TODO".into(),
        literal: false,
        ignore_case: false,
        glob: None,
        context: 0,
        limit: 100,
    };
    let grep = |start: &str, spec: &GrepSpec| {
        s.ws.grep(
            &p(start),
            spec,
            |path| path.extension().is_some_and(|e| e == "pem"),
            &Cancel::new().unwrap(),
        )
    };
    let line = |path: &str, line, text: &str, matched| Line {
        path: path.into(),
        line,
        text: text.into(),
        matched,
    };
    let found = grep(".", &spec).unwrap();
    assert_eq!(
        found.lines,
        [line("a/one.rs", 2, "// TODO: x", true), line("a/two.txt", 2, "TODO", true)]
    );
    let secret = grep(".", &GrepSpec { pattern: "SECRET".into(), ..spec.clone() }).unwrap();
    assert_eq!((secret.matches, secret.cut), (0, false));
    assert_eq!(code(grep("leak", &spec)), "path_outside_workspace");
    assert_eq!(
        code(grep(".", &GrepSpec { pattern: "(".into(), ..spec.clone() })),
        "pattern_not_allowed"
    );
    let literal = GrepSpec { pattern: "main()".into(), literal: true, context: 1, ..spec.clone() };
    assert_eq!(
        grep("a/one.rs", &literal).unwrap().lines,
        [line("a/one.rs", 1, "fn main() {}", true), line("a/one.rs", 2, "// TODO: x", false)]
    );
    let loose = GrepSpec {
        ignore_case: true,
        glob: Some(Glob::parse("**/*.txt").unwrap()),
        limit: 1,
        ..spec
    };
    let found = grep(".", &loose).unwrap();
    assert_eq!((found.lines, found.cut), (vec![line("a/two.txt", 1, "todo", true)], true));
}

/// A log of any size, and a caller that cancels.
#[test]
fn grep_of_a_named_file_has_the_limits_of_reading() {
    use atelier_executor::GrepSpec;
    let s = space();
    s.put("small.log", "TODO\n");
    fs::File::create(s.path("large.log")).unwrap().set_len((100 << 20) + 1).unwrap();
    let spec = GrepSpec {
        pattern: "TODO".into(),
        literal: true,
        ignore_case: false,
        glob: None,
        context: 0,
        limit: 100,
    };
    let cancel = Cancel::new().unwrap();
    let grep = |name: &str| s.ws.grep(&p(name), &spec, |_| false, &cancel);
    assert_eq!(grep("small.log").unwrap().matches, 1);
    assert_eq!(code(grep("large.log")), "file_size_exceeded");
    cancel.cancel();
    assert_eq!(code(grep("small.log")), "cancelled");
}
