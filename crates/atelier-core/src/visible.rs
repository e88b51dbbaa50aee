//! Characters that are invisible or look like others. They are shown by their code point, so that
//! nobody approves a text that is different from what they see.
//!
//! The terminal and the console use the same table. The console's copy,
//! `web/src/ui/hiddenCharacters.ts`, is generated from this one.

use crate::path::is_unprintable;

/// Characters that take no space, or that look like an empty space, a slash or a dot. Control
/// characters are not listed.
pub const HIDDEN: [(char, char); 34] = [
    ('\u{a0}', '\u{a0}'),
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    // Spaces of all widths, joiners and marks of direction.
    ('\u{2000}', '\u{200f}'),
    ('\u{2024}', '\u{2025}'),
    ('\u{2028}', '\u{202f}'),
    ('\u{2044}', '\u{2044}'),
    ('\u{205f}', '\u{206f}'),
    ('\u{2215}', '\u{2216}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{29f5}', '\u{29f5}'),
    ('\u{29f8}', '\u{29f9}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{fe30}', '\u{fe30}'),
    ('\u{fe52}', '\u{fe52}'),
    ('\u{fe68}', '\u{fe68}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ff0e}', '\u{ff0f}'),
    ('\u{ff3c}', '\u{ff3c}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{13430}', '\u{13440}'),
    ('\u{16fe4}', '\u{16fe4}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d159}', '\u{1d159}'),
    ('\u{1d173}', '\u{1d17a}'),
    // Tags and variation selectors.
    ('\u{e0000}', '\u{e0fff}'),
];

/// Letters of other scripts that look like Latin ones. They are shown by their code point only in a
/// word that has Latin letters as well, so that Russian and Greek stay readable.
pub const LOOKALIKES: &str = "АВЕЅІЈКМНОРСТХУаеѕіјорсухһԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧονρι";

/// Whether a character is shown by its code point wherever it stands.
pub fn is_hidden(c: char) -> bool {
    !c.is_ascii()
        && (is_unprintable(c) || HIDDEN.iter().any(|(from, to)| (*from..=*to).contains(&c)))
}

/// The text with hidden characters and look-alikes shown by their code point, such as `⟨U+200B⟩`.
/// Control characters are escaped, except the tabulator.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        let mixed = word.bytes().any(|byte| byte.is_ascii_alphabetic());
        word.chars()
            .for_each(|c| show(c, is_hidden(c) || (mixed && LOOKALIKES.contains(c)), &mut shown));
        rest = behind;
        if let Some(c) = rest.chars().next() {
            show(c, is_hidden(c), &mut shown);
            rest = &rest[c.len_utf8()..];
        }
    }
    shown
}

/// Makes a text visible like [`visible`], for answers and other prose that nobody approves: spaces
/// and emoji of all kinds stay as they are.
pub fn readable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let joins = matches!(c, '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{e0000}'..='\u{e0fff}');
        show(c, joins || is_unprintable(c), &mut shown);
    }
    shown
}

fn show(c: char, hidden: bool, shown: &mut String) {
    match c {
        '\t' => shown.push(c),
        c if c.is_control() => shown.extend(c.escape_default()),
        c if hidden => shown.push_str(&format!("⟨U+{:04X}⟩", c as u32)),
        c => shown.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TL-06.3
    #[test]
    fn hidden_characters_are_shown() {
        let hidden = "\u{a0}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{180e}\u{2003}\u{200b}\u{200d}\u{200e}\
            \u{202e}\u{202f}\u{2060}\u{2065}\u{2066}\u{2800}\u{3000}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{1d173}\
            \u{e0041}\u{e0100}\u{2028}\u{2215}\u{ff0f}";
        for c in hidden.chars() {
            assert_eq!(visible(&format!("a{c}b")), format!("a⟨U+{:04X}⟩b", c as u32));
        }
        assert_eq!(visible("a\u{1b}[2Jb\rc\td\u{85}"), "a\\u{1b}[2Jb\\rc\td\\u{85}");
        for plain in [
            "naïve café",
            "Привет, мир",
            "日本語のテキスト、",
            "ελληνικά",
            "x – y … “z”",
            "👍 ok",
            "µm Δt",
        ] {
            assert_eq!(visible(plain), plain);
        }
    }

    #[test]
    fn prose_stays_readable() {
        assert_eq!(readable("10\u{202f}% ❤\u{fe0f}\u{3000}．"), "10\u{202f}% ❤\u{fe0f}\u{3000}．");
        assert_eq!(readable("a\u{202e}b\u{200b}c\u{1b}"), "a⟨U+202E⟩b⟨U+200B⟩c\\u{1b}");
    }

    #[test]
    fn lookalike_letters_are_shown_among_latin_ones() {
        assert_eq!(visible(".\u{435}nv"), ".⟨U+0435⟩nv");
        assert_eq!(
            visible("p\u{430}ypal \u{430}\u{43d}\u{430}"),
            "p⟨U+0430⟩ypal \u{430}\u{43d}\u{430}"
        );
        assert_eq!(visible("scr\u{456}pt.sh"), "scr⟨U+0456⟩pt.sh");
        assert!(LOOKALIKES.chars().all(|c| !c.is_ascii() && c.is_alphabetic()));
    }
}
