//! Refuses texts that a person, a log or another program reads as a different path than the file
//! system does.
//!
//! Names are taken literally: `%41.txt`, `a:b.txt` and `~backup.txt` are valid names. A text is
//! refused only if another reading of it leads out of the workspace, or if an approval could not
//! show it truthfully.

use super::{PathError, Platform, Roots, windows};

pub(super) fn refuse(raw: &str, roots: &Roots) -> Result<(), PathError> {
    let mut plain = true;
    for byte in raw.bytes() {
        match byte {
            0..0x20 | 0x7f => return Err(PathError::Unprintable(byte as char)),
            b'\\' | b'%' | 0x80.. => plain = false,
            _ => {}
        }
    }
    let drive = roots.platform() == Platform::Unix && windows::is_rooted_drive(raw);
    if drive || expands(raw) || is_url(raw) {
        return Err(roots.outside());
    }
    if plain {
        return Ok(());
    }
    if let Some(hidden) = raw.chars().find(|c| is_unprintable(*c)) {
        return Err(PathError::Unprintable(hidden));
    }
    if roots.platform() == Platform::Unix && raw.starts_with("\\\\") {
        return Err(roots.outside());
    }
    // Text is decoded up to three times, because `%25252e` is a known trick. A visible `..` is left
    // to `walk`, which knows whether the path stays inside.
    let visible = count_parents(raw);
    let mut reading = folded(raw);
    for _ in 0..3 {
        if count_parents(&reading) > visible {
            return Err(roots.outside());
        }
        let decoded = percent_decoded(&reading);
        if decoded == reading {
            break;
        }
        if decoded.contains('\0') {
            return Err(PathError::Unprintable('\0'));
        }
        reading = folded(&decoded);
    }
    if count_parents(&reading) > visible { Err(roots.outside()) } else { Ok(()) }
}

/// How many names of a path are `..`.
fn count_parents(path: &str) -> usize {
    path.split('/').filter(|name| *name == "..").count()
}

/// Whether a shell would expand the text (`~`, `$HOME`). Nothing here expands it, so the caller
/// would get another file than the one they mean.
fn expands(raw: &str) -> bool {
    let Some((first, _)) = raw.split_once('/') else { return raw == "~" };
    let variable = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    match first.as_bytes().first() {
        Some(b'~') => true,
        Some(b'$') => variable(first[1..].trim_start_matches('{').trim_end_matches('}')),
        Some(b'%') => {
            first.len() > 2 && first.ends_with('%') && variable(&first[1..first.len() - 1])
        }
        _ => false,
    }
}

fn is_url(raw: &str) -> bool {
    raw.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    }) || raw.get(..6).is_some_and(|head| head.eq_ignore_ascii_case("file:/"))
}

/// Whether a character reorders, hides or breaks the line that it is shown in. The joiners U+200C
/// and U+200D are allowed, because Persian and emoji need them.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// The text as a program would read it that replaces look-alike characters by plain ones.
fn folded(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        match c {
            '\u{2024}' | '\u{fe52}' | '\u{ff0e}' => out.push('.'),
            '\u{2025}' | '\u{fe30}' => out.push_str(".."),
            '\\' | '\u{2044}' | '\u{2215}' | '\u{2216}' | '\u{29f5}' | '\u{29f8}' | '\u{29f9}'
            | '\u{fe68}' | '\u{ff0f}' | '\u{ff3c}' => out.push('/'),
            '\u{ff05}' | '\u{fe6a}' => out.push('%'),
            '\u{ad}'
            | '\u{34f}'
            | '\u{200c}'
            | '\u{200d}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{e0000}'..='\u{e0fff}' => {}
            c => out.push(c),
        }
    }
    out
}

/// Decodes percent-encoded ASCII characters, including the overlong forms (`%c0%af`) that old
/// decoders accepted.
fn percent_decoded(text: &str) -> String {
    let escape = |at: usize| -> Option<u8> {
        let digits = text.get(at..at + 3)?.strip_prefix('%')?;
        u8::from_str_radix(digits, 16).ok()
    };
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let (byte, taken) = match escape(at) {
            Some(lead @ (0xc0 | 0xc1)) => match escape(at + 3) {
                Some(low) => (Some(((lead & 1) << 6) | (low & 0x3f)), 6),
                None => (None, 0),
            },
            Some(0xe0) => match (escape(at + 3), escape(at + 6)) {
                (Some(0x80 | 0x81), Some(low)) => (Some(low & 0x3f), 9),
                _ => (None, 0),
            },
            Some(byte) if byte.is_ascii() => (Some(byte), 3),
            _ => (None, 0),
        };
        match byte {
            Some(byte) => {
                out.push(byte as char);
                at += taken;
            }
            None => {
                let Some(c) = text[at..].chars().next() else { break };
                out.push(c);
                at += c.len_utf8();
            }
        }
    }
    out
}
