//! What an awk program does beside printing: pipes, `system`, redirections, `getline`, and other files.

use super::value::Effect;

/// Reports each effect. Names that are computed are Unclear; so is what does not lex.
pub(super) fn effects<'a>(program: &'a str, report: &mut dyn FnMut(Effect<'a>)) {
    let mut lexer = Lexer { rest: program, operand: false };
    let mut printing = false;
    let mut depth = 0usize;
    let mut redirected: Option<bool> = None;
    loop {
        let token = match lexer.token() {
            Some(Token::End) => break,
            Some(token) => token,
            None => return report(Effect::Unclear),
        };
        if let Some(writes) = redirected.take() {
            report(match token {
                Token::Text(name) if !name.contains('\\') && !lexer.concatenates() => {
                    if writes {
                        Effect::Writes(name)
                    } else {
                        Effect::Reads(name)
                    }
                }
                _ => Effect::Unclear,
            });
        }
        match token {
            Token::Word("system") | Token::Sign("|" | "|&" | "@") => report(Effect::Runs),
            Token::Word("getline") => {
                lexer.skip_target();
                if lexer.rest.starts_with('<') {
                    lexer.rest = &lexer.rest[1..];
                    lexer.operand = false;
                    redirected = Some(false);
                }
            }
            // Files can also be named by changing the list of arguments.
            Token::Word("ARGV" | "ARGC" | "ENVIRON" | "SYMTAB" | "PROCINFO") => report(Effect::Unclear),
            Token::Word("print" | "printf") => (printing, depth) = (true, 0),
            Token::Sign("(") => depth += 1,
            Token::Sign(")") => depth = depth.saturating_sub(1),
            Token::Sign(";" | "\n" | "}") => printing = false,
            // In parentheses `>` compares; behind print it redirects.
            Token::Sign(">" | ">>") if printing && depth == 0 => redirected = Some(true),
            _ => {}
        }
    }
    if redirected.is_some() {
        report(Effect::Unclear);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Text(&'a str),
    Sign(&'a str),
    Other,
    End,
}

struct Lexer<'a> {
    rest: &'a str,
    /// The token before was a value, so that `/` divides and does not begin a pattern.
    operand: bool,
}

impl<'a> Lexer<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// None when a text or pattern does not end.
    fn token(&mut self) -> Option<Token<'a>> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
        self.rest = self.rest.trim_start_matches("\\\n");
        let Some(first) = self.rest.chars().next() else { return Some(Token::End) };
        Some(match first {
            '#' => {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
                return self.token();
            }
            '"' => {
                let text = self.quoted('"')?;
                self.operand = true;
                Token::Text(text)
            }
            '/' if !self.operand => {
                self.quoted('/')?;
                self.operand = true;
                Token::Other
            }
            c if c.is_alphabetic() || c == '_' => {
                let end =
                    self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
                let word = self.take(end);
                self.operand = !matches!(
                    word,
                    "print" | "printf" | "return" | "in" | "case" | "getline" | "do" | "else"
                );
                Token::Word(word)
            }
            c if c.is_ascii_digit() => {
                let end =
                    self.rest.find(|c: char| !(c.is_alphanumeric() || c == '.')).unwrap_or(self.rest.len());
                self.take(end);
                self.operand = true;
                Token::Other
            }
            _ => {
                let length = ["||", "&&", "|&", ">>", ">=", "<=", "==", "!=", "++", "--"]
                    .iter()
                    .find(|sign| self.rest.starts_with(**sign))
                    .map_or(first.len_utf8(), |sign| sign.len());
                let sign = self.take(length);
                self.operand = matches!(sign, ")" | "]" | "++" | "--" | "$");
                Token::Sign(sign)
            }
        })
    }

    fn quoted(&mut self, quote: char) -> Option<&'a str> {
        let mut escaped = false;
        let mut bracket = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '\n' => return None,
                '[' if quote == '/' => bracket = true,
                ']' => bracket = false,
                // Awks differ on whether this one ends the pattern.
                c if c == quote && bracket => return None,
                c if c == quote => {
                    let text = &self.rest[1..at];
                    self.rest = &self.rest[at + 1..];
                    return Some(text);
                }
                _ => {}
            }
        }
        None
    }

    /// Whether what follows goes on with the name just read: `"a" "b"`, `"a" $1`.
    fn concatenates(&self) -> bool {
        let rest = self.rest.trim_start_matches([' ', '\t']);
        !(rest.is_empty() || rest.starts_with([';', '\n', '}', ')']))
    }

    /// `getline`, `getline x`, `getline $1`, `getline a[i]`: stands before the sign that follows.
    fn skip_target(&mut self) {
        let target = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | ' ' | '\t' | '[' | ']' | '"');
        self.rest = self.rest.trim_start_matches(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(program: &str) -> Vec<Effect<'_>> {
        let mut found = Vec::new();
        effects(program, &mut |effect| found.push(effect));
        found
    }

    #[test]
    fn plain_programs_have_no_effects() {
        for program in [
            "{print $1}",
            "/system/ {print}",
            "$3 > 100",
            "NR>1 && $2 >= 5 {s += $2} END {print s/NR}",
            "{print ($1 > 2)}",
            "{printf \"%s|%s\\n\", $1, $2}",
            "a || b",
            "{ print $1 / 2; x = 4 / 2 }",
            "/a|b/ { n++ } END { print n }",
            "BEGIN { FS = \"|\" } { print $2 } # system(\"x\")",
            "length($0) > 80 { print FILENAME \": \" FNR }",
            "{ print; if ($1 > 2) x = 1 }",
        ] {
            assert_eq!(of(program), [], "{program}");
        }
    }

    #[test]
    fn files_and_programs_are_found() {
        assert_eq!(of("BEGIN { system(\"id\") }"), [Effect::Runs]);
        assert_eq!(of("{ print | \"sh\" }"), [Effect::Runs]);
        assert_eq!(of("BEGIN { \"id\" | getline x; print x }"), [Effect::Runs]);
        assert_eq!(of("{ print |& \"/inet/tcp/0/h/80\" }"), [Effect::Runs]);
        assert_eq!(of("@load \"filefuncs\""), [Effect::Runs]);
        assert_eq!(of("{ print $1 > \"../x\" }"), [Effect::Writes("../x")]);
        assert_eq!(of("{ print $1 >> \"x.txt\"; next }"), [Effect::Writes("x.txt")]);
        assert_eq!(of("{ printf(\"%s\", $1) > \"x\" }"), [Effect::Writes("x")]);
        assert_eq!(of("{ print > $1 }"), [Effect::Unclear]);
        assert_eq!(of("{ print > \"a\" \"b\" }"), [Effect::Unclear]);
        assert_eq!(
            of("BEGIN { while ((getline line < \"/etc/passwd\") > 0) print line }"),
            [Effect::Reads("/etc/passwd")]
        );
        assert_eq!(of("BEGIN { getline < file }"), [Effect::Unclear]);
        assert_eq!(of("BEGIN { ARGV[1] = \"/etc/passwd\" }"), [Effect::Unclear]);
        assert_eq!(of("{ print \"open }"), [Effect::Unclear]);
        assert_eq!(of("{ x = 1 / 2; system(\"id\") / 3 }"), [Effect::Runs]);
        assert_eq!(of("{ print $1 / system(\"id\") / 2 }"), [Effect::Runs]);
    }
}
