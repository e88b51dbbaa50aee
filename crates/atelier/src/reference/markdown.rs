//! Tables in Markdown.

use std::fmt::Write;

/// A table with a header. Cells may hold Markdown; line breaks and bars in them are made harmless.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut text = format!("| {} |\n|{}\n", header.join(" | "), " --- |".repeat(N));
    for row in rows {
        let cells = row.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        writeln!(text, "| {} |", cells.join(" | ")).expect("a string takes everything");
    }
    text
}

/// Text as inline code, whatever it holds.
pub(super) fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}
