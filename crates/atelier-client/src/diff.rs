//! The diff that a person sees before they decide about a write.

use atelier_executor::Preview;
use similar::TextDiff;
use std::time::Duration;

/// Larger files are not compared line by line.
const MAX_COMPARED: usize = 8 << 20;

/// A complete unified diff against the file on this machine: people must be able to see all that
/// they approve.
pub(crate) fn unified(path: &str, preview: &Preview) -> String {
    let Preview { base_checksum, before, after } = preview;
    match (base_checksum, before) {
        (Some(checksum), None) => {
            let mut text = format!(
                "The file {path} is not UTF-8 text (checksum {checksum}). It would become:\n"
            );
            added(&mut text, after);
            text
        }
        (_, before) => {
            let before = before.as_deref().unwrap_or_default();
            compared(path, base_checksum.is_some(), before, after)
        }
    }
}

fn compared(path: &str, exists: bool, before: &str, after: &str) -> String {
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
    // The timeout protects against files that are slow to compare. The diff is then coarser, but
    // still correct. Only \n ends a line: a lone \r within a line must not look like the start of
    // another line.
    let (old_lines, new_lines): (Vec<&str>, Vec<&str>) =
        (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
    let diff = TextDiff::configure()
        .timeout(Duration::from_secs(2))
        .newline_terminated(true)
        .diff_slices(&old_lines, &new_lines);
    diff.unified_diff().context_radius(3).header(&old, &format!("b/{path}")).to_string()
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

    fn preview(before: Option<&str>, after: &str) -> Preview {
        Preview {
            base_checksum: before.map(|_| "c".to_owned()),
            before: before.map(str::to_owned),
            after: after.to_owned(),
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

    #[test]
    fn binary_file_is_described() {
        let preview =
            Preview { base_checksum: Some("c0ffee".into()), before: None, after: "new\n".into() };
        assert_eq!(
            unified("x.png", &preview),
            "The file x.png is not UTF-8 text (checksum c0ffee). It would become:\n+new\n"
        );
        let preview = Preview { after: "new\r\nend".into(), ..preview };
        let shown = unified("x.png", &preview);
        assert!(shown.ends_with("+new\r\n+end\n\\ No newline at end of file\n"), "{shown:?}");
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
