//! Finds what an awk program does besides printing: pipes, `system`, redirections, `getline`, and
//! other files.

use super::value::Effect;

/// How often both readings of a `/` in a program are followed: as a division, and as the beginning
/// of a pattern.
const MAX_FORKS: usize = 64;

/// Reports each effect of a program. A computed file name is Unclear, and so is a program that
/// cannot be split into tokens.
pub(super) fn effects<'a>(program: &'a str, report: &mut dyn FnMut(Effect<'a>)) {
    // Versions of awk differ on whether `/` inside brackets ends a pattern. A reading that cannot
    // be split into tokens is ignored if another one can, because awk would refuse it.
    let readings = [true, false].map(|brackets| {
        let lexer = Lexer { rest: program, slash: Slash::Begins, brackets };
        let reader = Reader {
            lexer,
            printing: false,
            after_getline: false,
            depth: 0,
            redirected: None,
            continues: false,
        };
        let mut forks = MAX_FORKS;
        reader.read(&mut forks)
    });
    if readings.iter().all(Option::is_none) {
        return report(Effect::Unclear);
    }
    let mut found = Vec::new();
    readings.into_iter().flatten().flatten().for_each(|effect| add(&mut found, effect));
    found.into_iter().for_each(report);
}

/// Reads a program token by token, in one of its possible readings.
#[derive(Debug, Clone, Copy)]
struct Reader<'a> {
    lexer: Lexer<'a>,
    /// Whether the reader is in a `print` statement, where `>` redirects.
    printing: bool,
    /// Whether the reader is after `getline`, where a file follows `<`.
    after_getline: bool,
    /// How many parentheses are open in a `print` statement.
    depth: usize,
    /// Set if the name of a file must follow: whether the file is written, and whether its name is
    /// in parentheses.
    redirected: Option<(bool, bool)>,
    /// Whether the statement continues on the next line after the last token.
    continues: bool,
}

impl<'a> Reader<'a> {
    /// The effects of the program in this reading; `None` if the reading is impossible.
    fn read(mut self, forks: &mut usize) -> Option<Vec<Effect<'a>>> {
        let mut found = Vec::new();
        loop {
            self.lexer.skip_blanks();
            if self.lexer.slash == Slash::Either && self.lexer.rest.starts_with('/') {
                if let Some(left) = forks.checked_sub(1) {
                    *forks = left;
                    let [divides, begins] = [Slash::Divides, Slash::Begins].map(|slash| {
                        let lexer = Lexer { slash, ..self.lexer };
                        Reader { lexer, ..self }.read(forks)
                    });
                    if divides.is_none() && begins.is_none() {
                        return None;
                    }
                    for effect in divides.into_iter().chain(begins).flatten() {
                        add(&mut found, effect);
                    }
                    return Some(found);
                }
                add(&mut found, Effect::Unclear);
            }
            let token = match self.lexer.token() {
                Ok(Token::End) => break,
                Ok(token) => token,
                Err(Fault::Open) => return None,
                Err(Fault::Disputed) => {
                    add(&mut found, Effect::Unclear);
                    return Some(found);
                }
            };
            self.step(token, &mut found);
        }
        if self.redirected.is_some() {
            add(&mut found, Effect::Unclear);
        }
        Some(found)
    }

    fn step(&mut self, token: Token<'a>, found: &mut Vec<Effect<'a>>) {
        if let Some((writes, enclosed)) = self.redirected.take() {
            match token {
                Token::Sign("(") => self.redirected = Some((writes, true)),
                Token::Text(name) if !name.contains('\\') => {
                    add(found, if writes { Effect::Writes(name) } else { Effect::Reads(name) });
                    if enclosed || self.lexer.concatenates() {
                        add(found, Effect::Unclear);
                    }
                }
                _ => add(found, Effect::Unclear),
            }
        }
        match token {
            Token::Word("system") | Token::Sign("|" | "|&" | "@") => add(found, Effect::Runs),
            Token::Word("getline") => self.after_getline = true,
            Token::Sign("<") if self.after_getline => self.redirected = Some((false, false)),
            // Files can also be named by changing the list of arguments.
            Token::Word("ARGV" | "ARGC" | "ENVIRON" | "SYMTAB" | "PROCINFO") => {
                add(found, Effect::Unclear);
            }
            Token::Word("print" | "printf") => (self.printing, self.depth) = (true, 0),
            Token::Sign("(") => self.depth += 1,
            Token::Sign(")") => self.depth = self.depth.saturating_sub(1),
            Token::Sign("\n") if self.continues => return,
            Token::Sign(";" | "\n" | "}" | "{") => {
                (self.printing, self.after_getline) = (false, false);
            }
            // Inside parentheses `>` compares; outside, in a print statement, it redirects.
            Token::Sign(">" | ">>") if self.printing && self.depth == 0 => {
                self.redirected = Some((true, false));
            }
            _ => {}
        }
        self.continues = matches!(token, Token::Sign("," | "&&" | "||" | "?" | ":"));
    }
}

fn add<'a>(found: &mut Vec<Effect<'a>>, effect: Effect<'a>) {
    if !found.contains(&effect) {
        found.push(effect);
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

/// Why there is no token.
enum Fault {
    /// A string or pattern does not end, so every awk refuses the program.
    Open,
    /// Versions of awk differ on where a pattern ends.
    Disputed,
}

/// The possible meanings of a `/` at the current position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slash {
    Divides,
    Begins,
    Either,
}

#[derive(Debug, Clone, Copy)]
struct Lexer<'a> {
    rest: &'a str,
    slash: Slash,
    /// Whether a `/` inside brackets is part of the pattern.
    brackets: bool,
}

impl<'a> Lexer<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Skips blanks, continuations of lines, and comments.
    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest.trim_start_matches([' ', '\t', '\r']);
            let rest =
                rest.strip_prefix("\\\n").or_else(|| rest.strip_prefix("\\\r\n")).unwrap_or(rest);
            let rest = if rest.starts_with('#') {
                &rest[rest.find('\n').unwrap_or(rest.len())..]
            } else {
                rest
            };
            if rest.len() == self.rest.len() {
                return;
            }
            self.rest = rest;
        }
    }

    fn token(&mut self) -> Result<Token<'a>, Fault> {
        self.skip_blanks();
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        let (token, slash) = match first {
            '"' => (Token::Text(self.text()?), Slash::Divides),
            '/' if self.slash == Slash::Begins => {
                self.pattern()?;
                (Token::Other, Slash::Divides)
            }
            c if c.is_alphabetic() || c == '_' => {
                let end = self
                    .rest
                    .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .unwrap_or(self.rest.len());
                let word = self.take(end);
                let slash = match word {
                    "print" | "printf" | "return" | "exit" | "in" | "case" | "do" | "else" => {
                        Slash::Begins
                    }
                    "getline" | "length" | "next" | "nextfile" | "break" | "continue" => {
                        Slash::Either
                    }
                    _ => Slash::Divides,
                };
                (Token::Word(word), slash)
            }
            c if c.is_ascii_digit() => (self.number(), Slash::Divides),
            _ => {
                let length = ["||", "&&", "|&", ">>", ">=", "<=", "==", "!=", "++", "--"]
                    .iter()
                    .find(|sign| self.rest.starts_with(**sign))
                    .map_or(first.len_utf8(), |sign| sign.len());
                let sign = self.take(length);
                let slash = match sign {
                    "]" => Slash::Divides,
                    // It divides in `(a) / 2`, and begins a pattern in `if (a) /pattern/`.
                    ")" | "++" | "--" => Slash::Either,
                    _ => Slash::Begins,
                };
                (Token::Sign(sign), slash)
            }
        };
        self.slash = slash;
        Ok(token)
    }

    /// Reads a number such as `12`, `1.5`, `1e-3` or `0x1f`. A word may follow without a space:
    /// `1system("id")` is a number and a call.
    fn number(&mut self) -> Token<'a> {
        let all = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
        let all = &self.rest[..all.unwrap_or(self.rest.len())];
        // Versions of awk differ on how much belongs to the number, so a dangerous word is found
        // wherever it begins.
        for word in ["system", "getline"] {
            if let Some(at) = all.find(word) {
                self.take(at + word.len());
                return Token::Word(&all[at..at + word.len()]);
            }
        }
        let hexadecimal = all.strip_prefix("0x").or_else(|| all.strip_prefix("0X"));
        if let Some(rest) =
            hexadecimal.filter(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()))
        {
            let length = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
            self.take(2 + length);
            return Token::Other;
        }
        self.take(all.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(all.len()));
        if let Some(exponent) = self.rest.strip_prefix(['e', 'E']) {
            let signed = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let behind = signed.trim_start_matches(|c: char| c.is_ascii_digit());
            if behind.len() < signed.len() {
                self.rest = behind;
            }
        }
        Token::Other
    }

    fn text(&mut self) -> Result<&'a str, Fault> {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '\n' => return Err(Fault::Open),
                '"' => {
                    let text = &self.rest[1..at];
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                _ => {}
            }
        }
        Err(Fault::Open)
    }

    fn pattern(&mut self) -> Result<(), Fault> {
        let mut rest = &self.rest[1..];
        let mut bracket = false;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\\' => {
                    let Some(next) = rest.chars().next() else { break };
                    rest = &rest[next.len_utf8()..];
                }
                '\n' => return Err(Fault::Open),
                '[' if !bracket => {
                    bracket = true;
                    rest = rest.strip_prefix('^').unwrap_or(rest);
                    rest = rest.strip_prefix(']').unwrap_or(rest);
                }
                // In `[[:alpha:]/]`, `:]` ends the class but not the brackets.
                '[' if rest.starts_with([':', '.', '=']) => {
                    let kind = &rest[..1];
                    match rest[1..].find(&format!("{kind}]")) {
                        Some(at) => rest = &rest[at + 3..],
                        None => return Err(Fault::Disputed),
                    }
                }
                ']' => bracket = false,
                '/' if !(bracket && self.brackets) => {
                    self.rest = rest;
                    return Ok(());
                }
                _ => {}
            }
        }
        // With an open bracket, the pattern may have ended in one version of awk and not in
        // another.
        Err(if bracket { Fault::Disputed } else { Fault::Open })
    }

    /// Whether more is concatenated to the string that was just read: `"a" "b"`, `"a" $1`.
    fn concatenates(&self) -> bool {
        let rest = self.rest.trim_start_matches([' ', '\t']);
        !(rest.is_empty() || rest.starts_with([';', '\n', '}', ')']))
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
            "{ print ($1 + $2) / 2; n = (a) / (b) }",
            "{ print 1e3, 0x1f, 1.5 }",
            "/[/]usr/",
            "/^[^/]*$/ { n++ }",
            "/[[:alpha:]|]/ { print $NF / 2 }",
            "{ print $1,\n  $2 }",
            "BEGIN { while ((getline line) > 0) n++ }",
            "{ print $1; n = $2 > 3 }",
            "{ print $1\n n = $2 > 3 }",
            "{ print $1 } $3 > 100 { n++ }",
            "$1 < \"b\" { n++ }",
            "/[[]/ { print }",
            "/[[ax]/ { print }",
            "/[[=a=]]/ { print }",
            "{ print \"a\\\"b > c\" }",
        ] {
            assert_eq!(of(program), [], "{program}");
        }
    }

    #[test]
    fn files_and_programs_are_found() {
        assert_eq!(of("BEGIN { system(\"id\") }"), [Effect::Runs]);
        // A name with escapes is not the name of the file.
        assert_eq!(of("{ print > \"a\\057b\" }"), [Effect::Unclear]);
        assert_eq!(of("{ print | \"sh\" }"), [Effect::Runs]);
        assert_eq!(of("BEGIN { \"id\" | getline x; print x }"), [Effect::Runs]);
        assert_eq!(of("{ print |& \"/inet/tcp/0/h/80\" }"), [Effect::Runs]);
        assert_eq!(of("@load \"filefuncs\""), [Effect::Runs]);
        assert_eq!(of("{ print $1 > \"../x\" }"), [Effect::Writes("../x")]);
        assert_eq!(of("{ print $1 >> \"x.txt\"; next }"), [Effect::Writes("x.txt")]);
        assert_eq!(of("{ printf(\"%s\", $1) > \"x\" }"), [Effect::Writes("x")]);
        assert_eq!(of("{ print > $1 }"), [Effect::Unclear]);
        assert_eq!(of("{ print > \"a\" \"b\" }"), [Effect::Writes("a"), Effect::Unclear]);
        assert_eq!(
            of("BEGIN { while ((getline line < \"/etc/passwd\") > 0) print line }"),
            [Effect::Reads("/etc/passwd")]
        );
        assert_eq!(of("BEGIN { getline < file }"), [Effect::Unclear]);
        assert_eq!(of("BEGIN { ARGV[1] = \"/etc/passwd\" }"), [Effect::Unclear]);
        for open in
            ["{ print \"open }", "{ print \"a\nb\" }", "/a\nb/ { print }", "/[[:alpha/ { print }"]
        {
            assert_eq!(of(open), [Effect::Unclear], "{open}");
        }
        assert_eq!(of("{ x = 1 / 2; system(\"id\") / 3 }"), [Effect::Runs]);
        assert_eq!(of("{ print $1 / system(\"id\") / 2 }"), [Effect::Runs]);
    }

    #[test]
    fn no_spelling_hides_an_effect() {
        for program in [
            "BEGIN{x=1system(\"id\")}",
            "BEGIN{x=0xfsystem(\"id\")}",
            "BEGIN{x=1e5system(\"id\")}",
            "BEGIN{exit /\"/ + system(\"id\") + /\"/}",
            "{ if (1) /\"/; system(\"id\"); /\"/ }",
            "{ x = $/\"/ + system(\"id\") + /\"/ }",
            "{ x = (1)/2; system(\"id\"); y = 1/2 }",
            "/[^]/]\"/{system(\"id\")}#\"",
            "BEGIN { awk::system(\"id\") }",
            "BEGIN{x=1_system(\"id\")}",
            "BEGIN{x=1in/\"/+system(\"id\")+/\"/}",
            "{ x = 0x123\"a\"; system(\"id\") }",
            "{ x = 1e5\"a\"; system(\"id\") }",
            "{ x = 1e-55\"a\"; system(\"id\") }",
            "{ x = a[1] / 2; system(\"id\"); y = 1 / 2 }",
            "{ length /\"/; system(\"id\"); /\"/ }",
            "{ print \"\\\"\"; system(\"id\") }",
            "/\\/\"/ { system(\"id\") } #\"",
            "/[[:alpha:]/\"]/ { system(\"id\") } #\"",
            "{ x = /[/ + system(\"id\") + /]/ }",
        ] {
            let found = of(program);
            assert!(
                found.contains(&Effect::Runs) || found.contains(&Effect::Unclear),
                "{program}: {found:?}"
            );
        }
        // The meaning of the next slash or quote depends on where a number or a string ends.
        for program in [
            "BEGIN{x=1e5in/\"/+system(\"id\")+/\"/}",
            "BEGIN{x=1e-55in/\"/+system(\"id\")+/\"/}",
            "BEGIN{x=0xfin/\"/+system(\"id\")+/\"/}",
            "BEGIN{x=0x1fin/\"/+system(\"id\")+/\"/}",
            "BEGIN{x=1.5in/\"/+system(\"id\")+/\"/}",
            "{ if (x) 1exit /\"/ + system(\"id\") + /\"/ }",
            "{ print \"\\\"\"; system(\"id\"); print \"\\\"\" }",
        ] {
            assert_eq!(of(program), [Effect::Runs], "{program}");
        }
        for target in ["a[n++]", "x[1,2]", "$(1)", "$NF", "a[\"<\"]", "a[b[1]]", "x \\\n"] {
            let program = format!("BEGIN {{ getline {target} < \"/etc/passwd\" }}");
            assert_eq!(of(&program), [Effect::Reads("/etc/passwd")], "{program}");
        }
        for program in [
            "{ print $1,\n$2 > \"../x\" }",
            "{ print $1, # and\n\n$2 > \"../x\" }",
            "{ print $1 &&\n$2 > \"../x\" }",
            "{ print > (\"../x\") }",
            "{ print > \"../x\" $1 }",
        ] {
            assert!(of(program).contains(&Effect::Writes("../x")), "{program}");
        }
        let many = format!("{{ x = (1){} }}", "/(1)".repeat(500));
        assert_eq!(of(&many), [Effect::Unclear]);
    }
}
