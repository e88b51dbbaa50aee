//! Makes the preview that a person sees before they decide about a call that writes, deletes or
//! moves.
//!
//! The machine that runs the call makes the preview again and compares. It must get the same text,
//! so there are two forms, each of which depends on the call and the file alone: line by line, and
//! as one block if that takes too long.

use crate::{Described, Kind, Preview, Tools};
use atelier_core::{
    digest::{CallDigest, PreviewDigest},
    gate::CallPreview,
    policy::{Access, call::ToolCall},
};
use similar::TextDiff;
use std::time::{Duration, Instant};

/// Larger files are not compared line by line.
const MAX_COMPARED: usize = 8 << 20;
/// How long a person waits for a comparison line by line.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many unchanged lines are shown around a change.
const CONTEXT: usize = 3;

/// How finely two texts are compared.
#[derive(Clone, Copy)]
enum Form {
    /// Line by line, or as a block if that takes longer.
    Lines(Duration),
    /// Everything between the first and the last changed line is replaced.
    Block,
}

/// The change that a call would make on this machine, and whether it would change anything; `None`
/// for tools without a preview.
pub fn preview(tools: &Tools<'_>, call: &ToolCall) -> crate::Result<Option<(CallPreview, bool)>> {
    let preview = tools.preview(call)?;
    Ok(preview.map(|preview| {
        let unchanged = preview.is_unchanged();
        (shown(call, preview, Form::Lines(PATIENCE)), unchanged)
    }))
}

/// Whether this machine's own preview is the one that was shown, in either form. Both forms show
/// the whole change.
pub fn is_shown(
    tools: &Tools<'_>,
    call: &ToolCall,
    digest: CallDigest,
    seen: PreviewDigest,
) -> bool {
    let Ok(Some(preview)) = tools.preview(call) else { return false };
    // Nobody waits for this comparison, so it may take longer on a busy machine.
    [Form::Lines(5 * PATIENCE), Form::Block]
        .into_iter()
        .any(|form| PreviewDigest::of(digest, &shown(call, preview.clone(), form)) == seen)
}

fn shown(call: &ToolCall, preview: Preview, form: Form) -> CallPreview {
    let base_checksum = preview.base_checksum().map(str::to_owned);
    let (removed, written) = (call.path_used_to(Access::Remove), call.path_used_to(Access::Write));
    let diff = match (&preview, removed, written) {
        (Preview::Entry(there), Some(path), None) => deleted(path.as_str(), there),
        (Preview::Entry(there), Some(source), Some(destination)) => {
            moved(source.as_str(), destination.as_str(), there)
        }
        (Preview::Entry(there), None, Some(path)) => {
            let described = described(there);
            format!(
                "Changes {}: {described}\nThe change does not fit the file, so it will fail.\n",
                path.as_str()
            )
        }
        (Preview::Landing { diff, .. }, ..) => diff.clone(),
        (Preview::Write { .. }, _, Some(path)) => unified(path.as_str(), &preview, form),
        _ => String::new(),
    };
    CallPreview { base_checksum, diff }
}

/// How many lines of a deleted file, or names in a folder, are shown.
const MOST_SHOWN: usize = 200;

fn deleted(path: &str, there: &Described) -> String {
    let mut text = format!("Deletes {path}: {}\n", described(there));
    let Some(content) = there.text.as_deref().filter(|content| !content.is_empty()) else {
        return text;
    };
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    let shown = lines.len().min(MOST_SHOWN);
    text += &format!("--- a/{path}\n+++ /dev/null\n@@ -1,{shown} +0,0 @@\n");
    for line in &lines[..shown] {
        text += &format!("-{}\n", line.strip_suffix('\n').unwrap_or(line));
    }
    if lines.len() > shown {
        text += &format!("\\ {} more lines are deleted as well\n", lines.len() - shown);
    }
    text
}

fn moved(source: &str, destination: &str, there: &Described) -> String {
    let mut text = format!("Moves {source}: {}\n", described(there));
    text += &format!("to {destination}. Nothing is there, so nothing is overwritten.\n");
    for entry in there.entries.iter().take(MOST_SHOWN) {
        text += &format!("with {}\n", entry.escape_debug());
    }
    if there.entries.len() > MOST_SHOWN {
        text += &format!("and {} more entries\n", there.entries.len() - MOST_SHOWN);
    }
    text
}

/// Describes an entry in a few words.
fn described(there: &Described) -> String {
    let bytes = |size: u64| if size == 1 { "1 byte".to_owned() } else { format!("{size} bytes") };
    match there.kind {
        Kind::File => match &there.text {
            Some(text) => {
                format!("a text file of {}, {} lines", bytes(there.size), text.lines().count())
            }
            None => format!("a file of {} whose content is not shown", bytes(there.size)),
        },
        Kind::Directory if there.size == 0 => "an empty folder".to_owned(),
        Kind::Directory => format!("a folder with {} entries", there.size),
        Kind::Symlink => {
            format!(
                "a link to {}",
                there.target.as_deref().unwrap_or("an unknown place").escape_debug()
            )
        }
        Kind::Other => "neither a file nor a folder".to_owned(),
    }
}

/// A complete unified diff against the file on this machine: people must be able to see all that
/// they approve.
fn unified(path: &str, preview: &Preview, form: Form) -> String {
    let Preview::Write { base_checksum, before, after, .. } = preview else { return String::new() };
    match (base_checksum, before) {
        (Some(checksum), None) => {
            let mut text =
                format!("The file {path} is not text (checksum {checksum}). It would become:\n");
            added(&mut text, after);
            text
        }
        (_, before) => {
            let before = before.as_deref().unwrap_or_default();
            compared(path, base_checksum.is_some(), before, after, form)
        }
    }
}

fn compared(path: &str, exists: bool, before: &str, after: &str, form: Form) -> String {
    if exists && before == after {
        return format!("No change: {path} has this content already.\n");
    }
    let old = if exists { format!("a/{path}") } else { "/dev/null".to_owned() };
    if before.len() + after.len() > MAX_COMPARED {
        let mut text = format!(
            "--- {old}\n+++ b/{path}\n\
             Too large to compare: {} bytes now, {} bytes after the call. It would become:\n",
            before.len(),
            after.len()
        );
        added(&mut text, after);
        return text;
    }
    if !exists && after.is_empty() {
        return format!("--- {old}\n+++ b/{path}\nA new, empty file.\n");
    }
    // Only \n ends a line: a lone \r within a line must not look like the start of another line.
    let (old_lines, new_lines): (Vec<&str>, Vec<&str>) =
        (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
    let header = format!("--- {old}\n+++ b/{path}\n");
    if let Form::Lines(patience) = form {
        let begun = Instant::now();
        let diff = TextDiff::configure()
            .timeout(patience)
            .newline_terminated(true)
            .diff_slices(&old_lines, &new_lines);
        if begun.elapsed() < patience {
            return header + &diff.unified_diff().context_radius(CONTEXT).to_string();
        }
    }
    header + &replaced(&old_lines, &new_lines)
}

/// One hunk that replaces everything from the first to the last changed line.
fn replaced(old: &[&str], new: &[&str]) -> String {
    let same = |(old, new): &(&&str, &&str)| old == new;
    let start = old.iter().zip(new).take_while(same).count();
    let ends = old[start..].iter().rev().zip(new[start..].iter().rev());
    let end = ends.take_while(same).count();
    let (from, behind) = (start - start.min(CONTEXT), end - end.min(CONTEXT));
    let (old_end, new_end) = (old.len() - behind, new.len() - behind);
    let mut text =
        format!("@@ -{},{} +{},{} @@\n", from + 1, old_end - from, from + 1, new_end - from);
    let mut lines = |sign: char, lines: &[&str]| {
        for line in lines {
            text.push(sign);
            text.push_str(line);
            if !line.ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
    };
    lines(' ', &old[from..start]);
    lines('-', &old[start..old.len() - end]);
    lines('+', &new[start..new.len() - end]);
    lines(' ', &old[old.len() - end..old_end]);
    text
}

fn added(text: &mut String, content: &str) {
    for line in content.split_terminator('\n') {
        text.push_str(&format!("+{line}\n"));
    }
    if !content.is_empty() && !content.ends_with('\n') {
        text.push_str("\\ No newline at end of file\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unified(path: &str, preview: &Preview) -> String {
        super::unified(path, preview, Form::Lines(Duration::from_secs(60)))
    }

    fn preview(before: Option<&str>, after: &str) -> Preview {
        Preview::Write {
            base_checksum: before.map(|_| "c".to_owned()),
            before: before.map(str::to_owned),
            after: after.to_owned(),
            unchanged: before == Some(after),
        }
    }

    #[test]
    fn changed_and_new_files() {
        assert_eq!(
            unified("x.txt", &preview(Some("a\nb\n"), "a\nc\n")),
            "--- a/x.txt\n+++ b/x.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
        );
        assert_eq!(
            unified("x", &preview(None, "n\n")),
            "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+n\n"
        );
        assert!(unified("x", &preview(None, "")).contains("empty file"));
        assert!(unified("x", &preview(Some("n\n"), "n\n")).starts_with("No change"));
    }

    #[test]
    fn carriage_return_does_not_end_a_line() {
        assert_eq!(
            unified("x", &preview(Some("a\rb=1\rc\nd\r\n"), "a\rb=2\rc\nd\r\n")),
            "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\rb=1\rc\n+a\rb=2\rc\n d\r\n"
        );
        assert_eq!(
            unified("x", &preview(Some("a"), "b")),
            "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline \
             at end of file\n"
        );
    }

    /// A comparison that takes too long is replaced by a form that does not depend on time.
    #[test]
    fn block_shows_everything_between_the_first_and_the_last_change() {
        let lines = |word: &str| (0..500).map(|n| format!("{word} {n}\n")).collect::<String>();
        let text = |word: &str| format!("a\nb\nc\nd\n{}z\n", lines(word));
        let preview = preview(Some(&text("x")), &text("y"));
        let diff = super::unified("f", &preview, Form::Lines(Duration::ZERO));
        assert_eq!(diff, super::unified("f", &preview, Form::Block));
        assert!(
            diff.starts_with("--- a/f\n+++ b/f\n@@ -2,504 +2,504 @@\n b\n c\n d\n-x 0\n"),
            "{diff}"
        );
        assert!(diff.ends_with("+y 499\n z\n"), "{diff}");
        let count = |sign: &str| diff.lines().skip(3).filter(|line| line.starts_with(sign)).count();
        assert_eq!((count("-"), count("+"), count(" ")), (500, 500, 4));
    }

    #[test]
    fn binary_file_is_described() {
        let preview = |after: &str| Preview::Write {
            base_checksum: Some("c0ffee".into()),
            before: None,
            after: after.to_owned(),
            unchanged: false,
        };
        assert_eq!(
            unified("x.png", &preview("new\n")),
            "The file x.png is not text (checksum c0ffee). It would become:\n+new\n"
        );
        let shown = unified("x.png", &preview("new\r\nend"));
        assert!(shown.ends_with("+new\r\n+end\n\\ No newline at end of file\n"), "{shown:?}");
    }

    #[test]
    fn deleting_and_moving_say_what_is_there() {
        let there = |kind, size, text: Option<&str>| Described {
            kind,
            size,
            text: text.map(str::to_owned),
            entries: Vec::new(),
            target: None,
            checksum: "c".into(),
        };
        assert_eq!(
            deleted("a.txt", &there(Kind::File, 5, Some("x\ny\nz"))),
            "Deletes a.txt: a text file of 5 bytes, 3 lines\n--- a/a.txt\n+++ /dev/null\n\
             @@ -1,3 +0,0 @@\n-x\n-y\n-z\n"
        );
        assert_eq!(
            deleted(".env", &there(Kind::File, 1, None)),
            "Deletes .env: a file of 1 byte whose content is not shown\n"
        );
        let long = deleted("a", &there(Kind::File, 600, Some(&"x\n".repeat(300))));
        assert!(long.ends_with("-x\n\\ 100 more lines are deleted as well\n"), "{long}");
        let folder =
            Described { entries: vec!["b/".into(), "c".into()], ..there(Kind::Directory, 2, None) };
        assert_eq!(
            moved("src/a", "src/d", &folder),
            "Moves src/a: a folder with 2 entries\nto src/d. Nothing is there, so nothing is overwritten.\n\
             with b/\nwith c\n"
        );
        let link = Described { target: Some("../x".into()), ..there(Kind::Symlink, 4, None) };
        assert_eq!(deleted("l", &link), "Deletes l: a link to ../x\n");
    }

    #[test]
    fn long_diff_is_complete() {
        for size in [1 << 19, 9 << 20] {
            let after = "ä\n".repeat(size / 3);
            let diff = unified("x", &preview(Some("a\n"), &after));
            assert_eq!(diff.lines().filter(|line| *line == "+ä").count(), size / 3);
        }
    }
}
