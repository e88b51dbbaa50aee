//! Markdown in the terminal, rendered while it arrives. Only what makes a text easier to read is
//! rendered: headings, lists, quotes, code, and strong text.

/// Renders a stream of Markdown. Each piece of the result can be printed at once.
#[derive(Debug, Default)]
pub(crate) struct Markdown {
    /// The beginning of a line, until its kind is known, or a mark that may grow.
    waiting: String,
    in_line: bool,
    fenced: bool,
    strong: bool,
    code: bool,
    heading: bool,
}

const RESET: &str = "\x1b[0m";
const STRONG: &str = "\x1b[1m";
const CODE: &str = "\x1b[36m";
const FAINT: &str = "\x1b[2m";

/// A longer beginning of a line is ordinary text.
const LONGEST_MARK: usize = 12;

impl Markdown {
    /// The rendered text, as far as it is known. The caller has escaped control characters.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => self.end_line(&mut out),
                _ if !self.in_line => self.begin_line(c, &mut out),
                _ => self.inside(c, &mut out),
            }
        }
        out
    }

    /// Ends the text: what waited is printed as it is, and all styles end. Empty between two lines.
    pub(crate) fn finish(&mut self) -> String {
        let Self { waiting, in_line, .. } = std::mem::take(self);
        if waiting.trim_start().starts_with("```") {
            // The end of the text ends its last block of code.
            return format!("{FAINT}──{RESET}");
        }
        if in_line || !waiting.is_empty() { format!("{waiting}{RESET}") } else { String::new() }
    }

    fn end_line(&mut self, out: &mut String) {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.trim_start().starts_with("```") {
            self.fenced = !self.fenced;
            let language = waiting.trim_start().trim_start_matches('`').trim();
            out.push_str(&format!("{FAINT}── {language}{RESET}\n"));
        } else {
            out.push_str(&waiting);
            if self.in_line && (self.strong || self.code || self.heading || self.fenced) {
                out.push_str(RESET);
            }
            out.push('\n');
        }
        (self.in_line, self.strong, self.code, self.heading) = (false, false, false, false);
    }

    /// Collects the beginning of a line until its kind is known.
    fn begin_line(&mut self, c: char, out: &mut String) {
        self.waiting.push(c);
        let mark = self.waiting.trim_start();
        if mark.starts_with("```") || (!mark.is_empty() && "```".starts_with(mark)) {
            return;
        }
        if self.fenced {
            out.push_str(CODE);
            return self.in_text(out);
        }
        let indent = self.waiting.len() - mark.len();
        let hashes = mark.bytes().take_while(|&byte| byte == b'#').count();
        match mark {
            "" if self.waiting.len() < LONGEST_MARK => {}
            "-" | "*" | "+" | ">" => {}
            "- " | "* " | "+ " => {
                out.push_str(&format!("{}• ", " ".repeat(indent)));
                self.start_text();
            }
            "> " => {
                out.push_str(&format!("{FAINT}│{RESET} "));
                self.start_text();
            }
            _ if (1..=6).contains(&hashes) && mark.len() == hashes => {}
            _ if (1..=6).contains(&hashes) && mark[hashes..].starts_with(' ') => {
                self.heading = true;
                out.push_str(STRONG);
                self.start_text();
            }
            _ => self.in_text(out),
        }
    }

    fn start_text(&mut self) {
        self.waiting.clear();
        self.in_line = true;
    }

    /// The line is ordinary text: what was collected of it is part of the text.
    fn in_text(&mut self, out: &mut String) {
        let waiting = std::mem::take(&mut self.waiting);
        self.in_line = true;
        waiting.chars().for_each(|c| self.inside(c, out));
    }

    fn inside(&mut self, c: char, out: &mut String) {
        if self.fenced {
            return out.push(c);
        }
        // One star may be followed by another one.
        if std::mem::take(&mut self.waiting) == "*" {
            if c == '*' {
                self.strong = !self.strong;
                return out.push_str(if self.strong { STRONG } else { self.base() });
            }
            out.push('*');
        }
        match c {
            '*' if !self.code => self.waiting.push('*'),
            '`' => {
                self.code = !self.code;
                out.push_str(if self.code { CODE } else { self.base() });
            }
            _ => out.push(c),
        }
    }

    /// The style after code or strong text has ended.
    fn base(&self) -> &'static str {
        if self.heading || self.strong { "\x1b[0;1m" } else { RESET }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(pieces: &[&str]) -> String {
        let mut markdown = Markdown::default();
        let mut text: String = pieces.iter().map(|piece| markdown.push(piece)).collect();
        text.push_str(&markdown.finish());
        text
    }

    #[test]
    fn marks_become_styles_however_the_text_is_cut() {
        let text = "# Plan\nDo **this** and `that`.\n- one\n  - two\n> quoted\n```rust\nlet x = \"**\";\n```\n2 * 3 = 6\n";
        let expected = "\x1b[1m Plan\x1b[0m\nDo \x1b[1mthis\x1b[0m and \x1b[36mthat\x1b[0m.\n• one\n  \
                        • two\n\x1b[2m│\x1b[0m quoted\n\x1b[2m── rust\x1b[0m\n\x1b[36mlet x = \
                        \"**\";\x1b[0m\n\x1b[2m── \x1b[0m\n2 * 3 = 6\n";
        let expected = expected.replacen("\x1b[1m Plan", "\x1b[1mPlan", 1);
        assert_eq!(rendered(&[text]), expected);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(rendered(&letters), expected);
    }

    #[test]
    fn unfinished_text_is_printed_as_it_is() {
        assert_eq!(rendered(&["a *"]), "a *\x1b[0m");
        assert_eq!(
            rendered(&["```\nx\n```"]),
            "\x1b[2m── \x1b[0m\n\x1b[36mx\x1b[0m\n\x1b[2m──\x1b[0m"
        );
        assert_eq!(rendered(&["##"]), "##\x1b[0m");
        assert_eq!(rendered(&["", "done\n"]), "done\n");
    }
}
