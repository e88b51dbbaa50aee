//! Finds what a sed script does besides editing: the commands `w`, `r` and `e`, and the flags of
//! `s` that do the same.

use super::value::Effect;

/// Reports each effect of a script. A script that does not parse is Unclear: either sed refuses it,
/// or sed knows a form that is not known here.
///
/// Versions of sed differ on whether a delimiter inside brackets closes a pattern, and on whether
/// `}` ends a label. The effects of every reading are reported. A reading that does not parse is
/// ignored if another one parses, because sed would refuse it.
pub(super) fn effects<'a>(script: &'a str, report: &mut dyn FnMut(Effect<'a>)) {
    let mut understood = false;
    let mut found: Vec<Effect<'a>> = Vec::new();
    for (brackets, braces) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut reader = Reader { rest: script, brackets, braces, differs: false };
        understood |= reader
            .script(&mut |effect| {
                if !found.contains(&effect) {
                    found.push(effect);
                }
            })
            .is_some();
        if !reader.differs {
            break;
        }
    }
    if !understood {
        found.push(Effect::Unclear);
    }
    found.into_iter().for_each(report);
}

struct Reader<'a> {
    rest: &'a str,
    /// Whether a delimiter inside brackets is part of the pattern.
    brackets: bool,
    /// Whether `}` ends a label.
    braces: bool,
    /// Whether another reading of this script gives a different result.
    differs: bool,
}

impl<'a> Reader<'a> {
    fn script(&mut self, report: &mut dyn FnMut(Effect<'a>)) -> Option<()> {
        loop {
            self.skip(|c| c.is_whitespace() || c == ';' || c == '}');
            if self.rest.is_empty() {
                return Some(());
            }
            self.addresses()?;
            let command = self.next()?;
            match command {
                '{' => {}
                '#' => {
                    self.line();
                }
                '=' | 'd' | 'D' | 'g' | 'G' | 'h' | 'H' | 'n' | 'N' | 'p' | 'P' | 'x' | 'z'
                | 'F' => {}
                'q' | 'Q' | 'l' | 'L' => self.skip(|c| c == ' ' || c.is_ascii_digit()),
                ':' | 'b' | 't' | 'T' | 'v' => {
                    // Another command may follow a label even without `;`.
                    self.skip(|c| c == ' ' || c == '\t');
                    let braces = self.braces;
                    let ends = |c: char| c == ';' || c.is_ascii_whitespace() || c == '\u{b}';
                    let label = self.until(|c| ends(c) || (c == '}' && braces));
                    self.differs |= label.contains('}') || self.rest.starts_with('}');
                    continue;
                }
                'a' | 'i' | 'c' => self.text(),
                'r' | 'R' => report(Effect::Reads(self.line().trim())),
                'w' | 'W' => report(Effect::Writes(self.line().trim())),
                'e' => {
                    report(Effect::Runs);
                    self.line();
                }
                // Neither a line break nor a backslash can be the delimiter. With a backslash, the
                // pattern never ends, so the script does not parse.
                's' => {
                    let delimiter = self.next().filter(|c| *c != '\n')?;
                    self.pattern(delimiter)?;
                    self.replacement(delimiter)?;
                    self.flags(report)?;
                }
                'y' => {
                    let delimiter = self.next().filter(|c| *c != '\n')?;
                    self.replacement(delimiter)?;
                    self.replacement(delimiter)?;
                }
                _ => return None,
            }
            self.skip(|c| c == ' ' || c == '\t');
            if !(self.rest.is_empty()
                || self.rest.starts_with([';', '\n', '}', '#', '{'])
                || command == '{')
            {
                // A command can end only with one of these signs.
                return None;
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn skip(&mut self, which: impl FnMut(char) -> bool) {
        self.rest = self.rest.trim_start_matches(which);
    }

    fn until(&mut self, which: impl FnMut(char) -> bool) -> &'a str {
        let (taken, rest) = self.rest.split_at(self.rest.find(which).unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn line(&mut self) -> &'a str {
        self.until(|c| c == '\n')
    }

    /// Skips addresses: `1`, `$`, `/re/I`, `\cREc`, `1~2`, `1,+3`, and `!`.
    fn addresses(&mut self) -> Option<()> {
        loop {
            self.skip(|c| c.is_whitespace());
            match self.rest.chars().next()? {
                '0'..='9' | '$' | '~' | '+' | ',' | '!' => {
                    self.next();
                }
                start @ ('/' | '\\') => {
                    self.next();
                    let delimiter = if start == '/' { '/' } else { self.next()? };
                    self.pattern(delimiter)?;
                    self.skip(|c| c == 'I' || c == 'M');
                }
                _ => return Some(()),
            }
        }
    }

    /// Skips a pattern and the delimiter after it.
    fn pattern(&mut self, delimiter: char) -> Option<()> {
        let mut bracket = false;
        loop {
            match self.next()? {
                '\\' => {
                    self.next()?;
                }
                c if c == delimiter => {
                    self.differs |= bracket;
                    if !(bracket && self.brackets) {
                        return Some(());
                    }
                }
                '[' if !bracket => {
                    bracket = true;
                    self.skip(|c| c == '^');
                    self.rest = self.rest.strip_prefix(']').unwrap_or(self.rest);
                }
                ']' => bracket = false,
                '\n' => return None,
                _ => {}
            }
        }
    }

    /// Skips a replacement and the delimiter after it. Only a line break after a backslash is part
    /// of it.
    fn replacement(&mut self, delimiter: char) -> Option<()> {
        loop {
            match self.next()? {
                '\\' => {
                    self.next()?;
                }
                c if c == delimiter => return Some(()),
                '\n' => return None,
                _ => {}
            }
        }
    }

    fn flags(&mut self, report: &mut dyn FnMut(Effect<'a>)) -> Option<()> {
        loop {
            self.skip(|c| c == ' ' || c == '\t' || c == '\r');
            match self.rest.chars().next() {
                Some('g' | 'p' | 'i' | 'I' | 'm' | 'M' | '0'..='9') => {
                    self.next();
                }
                Some('e') => {
                    self.next();
                    report(Effect::Runs);
                }
                Some('w') => {
                    self.next();
                    report(Effect::Writes(self.line().trim()));
                    return Some(());
                }
                _ => return Some(()),
            }
        }
    }

    /// Skips the text of `a`, `i` and `c`: the rest of the line, and further lines as long as each
    /// line ends in a backslash.
    fn text(&mut self) {
        loop {
            let line = self.line();
            // Two backslashes are one that is escaped.
            let backslashes = line.len() - line.trim_end_matches('\\').len();
            let goes_on = backslashes % 2 == 1;
            if !goes_on || self.next().is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(script: &str) -> Vec<Effect<'_>> {
        let mut found = Vec::new();
        effects(script, &mut |effect| found.push(effect));
        found
    }

    #[test]
    fn plain_editing_has_no_effects() {
        for script in [
            "s/a/b/",
            "s/w/e/g",
            "1,5p",
            "$d",
            "/x/,/y/d",
            "s|/usr|/opt|;s#a#b#",
            "/w/!s/e/r/2",
            "y/abc/wre/",
            "a\\\nwrite e",
            "2i hello w x",
            "1~2d",
            "/start/{s/a/b/;p}",
            "\\,x,d",
            ":a;N;$!ba;s/\\n/ /g",
            "s/[a-z]*/x/I",
            "s/\\/w/x/",
            "5q",
            "",
            "# w x",
            "s/a/\\/w b/",
            "s/[/]/x/",
            "s/[^/]*$//",
            ":a s/x/y/;ta",
            "/x/{:a;n;ba}",
            "s/a/b/ g",
            "q5",
            "q 5;p",
            "l 20\np",
            "p ;p\t;p",
            "/x/Id",
            "/x/M,/y/Ip",
            "\\,x,Id",
        ] {
            assert_eq!(of(script), [], "{script:?}");
        }
    }

    #[test]
    fn files_and_programs_are_found() {
        assert_eq!(of("w /tmp/x"), [Effect::Writes("/tmp/x")]);
        assert_eq!(of("1!{w ../x\n}"), [Effect::Writes("../x")]);
        assert_eq!(of("s/a/b/w out.txt"), [Effect::Writes("out.txt")]);
        assert_eq!(of("s/a/b/gpw out.txt"), [Effect::Writes("out.txt")]);
        assert_eq!(of("$r /etc/passwd"), [Effect::Reads("/etc/passwd")]);
        assert_eq!(of("1e touch x"), [Effect::Runs]);
        assert_eq!(of("e"), [Effect::Runs]);
        assert_eq!(of("s/.*/id/e"), [Effect::Runs]);
        assert_eq!(of("p;1,3e id"), [Effect::Runs]);
        assert_eq!(of("a x\ne id"), [Effect::Runs]);
        assert_eq!(of("s/[/]w x/y/;e id"), [Effect::Runs], "seds disagree");
        for script in [
            ":a e id",
            "v 4.2 e id",
            "b x e id",
            "ta e id",
            "T\tx\te id",
            ":a\u{b}e id",
            ":a}s/x/;e id",
        ] {
            assert_eq!(of(script), [Effect::Runs], "{script:?}");
        }
        assert_eq!(of(":a r /etc/passwd"), [Effect::Reads("/etc/passwd")]);
        assert_eq!(of(":a w ../out/P"), [Effect::Writes("../out/P")]);
        assert_eq!(of("s/.*/id/ e"), [Effect::Runs]);
        assert_eq!(of("s/.*/id/g\tw ../x"), [Effect::Writes("../x")]);
        assert_eq!(of("q;e id"), [Effect::Runs]);
        assert_eq!(of("s/[[]/]/;s/[/]/b/;e id"), [Effect::Runs]);
        // A text that ends in three backslashes goes on, and a replacement does not.
        assert_eq!(of("a x\\\\\\\ns/a/b\ne id #/"), [Effect::Runs]);
        assert_eq!(of("s/a/b\\\nc/;e id"), [Effect::Runs]);
        assert_eq!(of("a x\\\\\ne id"), [Effect::Runs]);
        for faulty in [
            "s/a/b\ne id #/",
            "y/a/b\ne id #/",
            "k",
            "s/a",
            "s\na\nb\n",
            "y\na\nb\n",
            "s\\a\\b\\",
            "y\\a\\b\\",
            "s/a\nb/c/",
            "/a\nb/d",
        ] {
            assert_eq!(of(faulty), [Effect::Unclear], "{faulty:?}");
        }
    }
}
