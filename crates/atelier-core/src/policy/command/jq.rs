//! Finds out whether a jq filter reads more than the files that follow it: modules and data that it
//! imports, and the environment.

/// Functions and keywords that read what the call does not name.
const ELSEWHERE: [&str; 6] = ["import", "include", "modulemeta", "get_search_list", "env", "$ENV"];

/// Whether the filter may read modules, data or the environment.
///
/// The names of fields (`.env`, `{include: 1}`) and texts do not count. Versions of jq differ on
/// where a comment ends, so everything after the sign of a comment counts.
pub(super) fn looks_elsewhere(filter: &str) -> bool {
    let mut rest = filter;
    // For each open interpolation, how many parentheses are open in it.
    let mut interpolations: Vec<usize> = Vec::new();
    let mut previous = ' ';
    while let Some(c) = rest.chars().next() {
        let behind = &rest[c.len_utf8()..];
        match c {
            '#' => return ELSEWHERE.iter().any(|word| behind.contains(word)),
            '"' => {
                (rest, previous) = (text(behind, &mut interpolations), '"');
                continue;
            }
            '(' => interpolations.last_mut().into_iter().for_each(|open| *open += 1),
            ')' => match interpolations.last_mut() {
                Some(0) => {
                    interpolations.pop();
                    (rest, previous) = (text(behind, &mut interpolations), '"');
                    continue;
                }
                Some(open) => *open -= 1,
                None => {}
            },
            _ if c == '$' || is_in_word(c) => {
                // jq 1.7 allows blanks between `$` and the name.
                let name = if c == '$' { behind.trim_start() } else { rest };
                let word = &name[..name.find(|c| !is_in_word(c)).unwrap_or(name.len())];
                let after = &name[word.len()..];
                let key = after.trim_start();
                let is_key = c != '$' && key.starts_with(':') && !key.starts_with("::");
                let reads = match c {
                    '$' => word == "ENV",
                    _ => previous != '.' && !is_key && ELSEWHERE.contains(&word),
                };
                if reads {
                    return true;
                }
                (rest, previous) = (after, 'x');
                continue;
            }
            _ => {}
        }
        (rest, previous) = (behind, c);
    }
    false
}

fn is_in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Skips a text from behind its quote, or from behind an interpolation in it, to its end or to its
/// next interpolation.
fn text<'a>(rest: &'a str, interpolations: &mut Vec<usize>) -> &'a str {
    let mut chars = rest.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return &rest[at + 1..],
            '\\' => {
                if let Some((at, '(')) = chars.next() {
                    interpolations.push(0);
                    return &rest[at + 1..];
                }
            }
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::looks_elsewhere;

    #[test]
    fn what_a_filter_reads_besides_its_files_is_found() {
        for filter in [
            "import \"node_modules/p/credentials\" as $d; $d",
            "include \"x\" {search: \"/etc\"}; .",
            "import \"a\" as a; a::f",
            "\"m\" | modulemeta",
            "get_search_list",
            "$ENV",
            "$ENV.PATH",
            "$ ENV",
            "env",
            "env.PATH",
            ".a | env",
            "\"\\(env)\"",
            "\"a\\(\"b\\(.c | env)\")\"",
            "\"\\(.a)\" | env",
            "# a\nenv",
            "# \"\nenv",
            "{a: env}",
            "[env]",
        ] {
            assert!(looks_elsewhere(filter), "{filter}");
        }
    }

    #[test]
    fn names_of_fields_and_texts_read_nothing() {
        for filter in [
            ".",
            ".scripts | keys[]",
            ".env",
            ".a.env[0]",
            "{env: .x, include: 1}",
            "$env",
            "$environment",
            "\"env import\"",
            ".x == \"include\"",
            "\"a\\\"env\"",
            "\"\\(.a) env\"",
            "select(.name == \"a\") | .version",
            "environments",
            "input_filename",
            "# counts",
            "",
        ] {
            assert!(!looks_elsewhere(filter), "{filter}");
        }
    }
}
