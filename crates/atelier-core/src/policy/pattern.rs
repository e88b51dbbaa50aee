//! Glob patterns of `list_directory`, `search_files` and `grep`. A pattern chooses among the names
//! inside the workspace and cannot lead out of it.

use crate::failure::FailureCode;
use serde::{Serialize, Serializer};

/// The longest glob pattern in a tool call, in bytes.
const MAX_BYTES: usize = 1024;
/// The most alternatives that the braces of a pattern may expand to.
const MAX_ALTERNATIVES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("The pattern is empty or longer than {MAX_BYTES} bytes")]
    Length,
    #[error("The pattern leaves the directory it searches")]
    Outside,
    #[error("The pattern stands for more than {MAX_ALTERNATIVES} patterns")]
    TooMany,
    #[error("The pattern holds a control character")]
    Unprintable,
    #[error("The pattern's brackets or braces do not match")]
    Unbalanced,
}

impl PatternError {
    pub fn code(&self) -> FailureCode {
        match self {
            Self::Outside => FailureCode::PathOutsideWorkspace,
            _ => FailureCode::PatternInvalid,
        }
    }
}

/// A glob pattern that stays inside the directory it searches. Every alternative of its braces was
/// checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobPattern(String);

impl GlobPattern {
    pub fn parse(raw: &str) -> Result<Self, PatternError> {
        if raw.is_empty() || raw.len() > MAX_BYTES {
            return Err(PatternError::Length);
        }
        if raw.chars().any(char::is_control) {
            return Err(PatternError::Unprintable);
        }
        let mut left = MAX_ALTERNATIVES;
        each_alternative(String::new(), raw, 0, &mut left)?;
        Ok(Self(raw.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the pattern itself names hidden files (`.*`, `src/.env`). Only then they are listed.
    pub fn names_hidden(&self) -> bool {
        self.0.split(['/', '{', ',']).any(|name| name.starts_with('.') && name != ".")
    }
}

impl Serialize for GlobPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Checks every pattern that the braces expand to. `done` is the part that is expanded already, and
/// `left` is how many more patterns there may be.
fn each_alternative(
    done: String,
    rest: &str,
    depth: usize,
    left: &mut usize,
) -> Result<(), PatternError> {
    let Some(open) = rest.find('{') else {
        if rest.contains('}') && depth == 0 {
            return Err(PatternError::Unbalanced);
        }
        *left = left.checked_sub(1).ok_or(PatternError::TooMany)?;
        return stays_inside(&(done + rest));
    };
    // Each level of braces is a recursion. Patterns that people write have one or two levels.
    if depth > 32 {
        return Err(PatternError::TooMany);
    }
    let close = closing(&rest[open..]).ok_or(PatternError::Unbalanced)? + open;
    for branch in branches(&rest[open + 1..close]) {
        let joined = format!("{branch}{}", &rest[close + 1..]);
        each_alternative(format!("{done}{}", &rest[..open]), &joined, depth + 1, left)?;
    }
    Ok(())
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn branches(inner: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                found.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&inner[start..]);
    found
}

fn stays_inside(pattern: &str) -> Result<(), PatternError> {
    // A backslash only quotes the next character, and `[.]` is another form of a dot.
    let plain: String = pattern.replace("[.]", ".").chars().filter(|c| *c != '\\').collect();
    let drive =
        matches!(plain.as_bytes(), [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    if plain.starts_with(['/', '~'])
        || drive
        || plain.contains("://")
        || plain.split('/').any(|n| n == "..")
    {
        return Err(PatternError::Outside);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_but_do_not_climb() {
        for fine in [
            "*",
            "**/*.rs",
            "src/{a,b}/*.{js,ts}",
            "a..b",
            "[!x]*",
            ".env",
            "{a,{b,c}}/x",
            "*.tar.gz",
        ] {
            assert_eq!(GlobPattern::parse(fine).map(|p| p.0), Ok(fine.to_owned()));
        }
        for raw in [
            "../*",
            "**/../../out/*",
            "{..,src}/*",
            "/**/passwd",
            "{/etc/passwd,notes.txt}",
            "{.,x}{.,y}/z",
            "{a,{b,c},..}/x",
            "\\../x",
            "[.][.]/x",
            "~/x",
            "C:/x",
            "..\\/x",
        ] {
            assert_eq!(GlobPattern::parse(raw), Err(PatternError::Outside), "{raw}");
        }
        assert_eq!(GlobPattern::parse(&"{a,b}".repeat(24)), Err(PatternError::TooMany));
        assert_eq!(GlobPattern::parse(&"{".repeat(500)), Err(PatternError::Unbalanced));
        assert_eq!(GlobPattern::parse("a}"), Err(PatternError::Unbalanced));
        let nested = |levels: usize| format!("{}a{}", "{".repeat(levels), "}".repeat(levels));
        assert!(GlobPattern::parse(&nested(33)).is_ok());
        assert_eq!(GlobPattern::parse(&nested(34)), Err(PatternError::TooMany));
        assert_eq!(GlobPattern::parse(""), Err(PatternError::Length));
        assert!(GlobPattern::parse(&"a".repeat(MAX_BYTES)).is_ok());
        assert_eq!(GlobPattern::parse(&"a".repeat(MAX_BYTES + 1)), Err(PatternError::Length));
        assert_eq!(GlobPattern::parse("a\nb"), Err(PatternError::Unprintable));
    }

    #[test]
    fn hidden_names_are_named() {
        assert!(GlobPattern::parse("**/.env").unwrap().names_hidden());
        assert!(GlobPattern::parse("{.git,x}*").unwrap().names_hidden());
        assert!(!GlobPattern::parse("./a.b/*").unwrap().names_hidden());
    }
}
