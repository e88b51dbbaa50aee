//! Splits a text into terms, which searches compare.
//!
//! English and Russian words are reduced to their stems, and stop words are left out. Chinese,
//! Japanese and Korean texts have no spaces between words, so every two neighbouring characters are
//! a term.

use rust_stemmers::{Algorithm, Stemmer};
use unicode_normalization::UnicodeNormalization;

/// The longest word of a text that is indexed, in characters.
const MAX_TERM: usize = 64;

/// The terms of a text, in order, with repetitions.
pub fn terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    let text: String = text.nfkc().flat_map(char::to_lowercase).collect();
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’' && c != '_') {
        for run in runs(word) {
            push(run, &mut terms);
        }
    }
    terms
}

/// Splits a word where a script without spaces begins or ends, as in `第3章`.
fn runs(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let unspaced = is_unspaced(first);
        let end = rest
            .char_indices()
            .find(|(_, c)| is_unspaced(*c) != unspaced)
            .map_or(rest.len(), |(at, _)| at);
        let (run, after) = rest.split_at(end);
        rest = after;
        Some(run)
    })
}

fn push(run: &str, terms: &mut Vec<String>) {
    if run.chars().next().is_some_and(is_unspaced) {
        let characters: Vec<char> = run.chars().collect();
        match characters.len() {
            1 => terms.push(run.to_owned()),
            _ => terms.extend(characters.windows(2).map(|pair| pair.iter().collect::<String>())),
        }
        return;
    }
    let word = run.trim_matches(|c| matches!(c, '\'' | '’' | '_'));
    let word = word.strip_suffix("'s").or_else(|| word.strip_suffix("’s")).unwrap_or(word);
    let word: String = word.chars().filter(|c| !matches!(c, '\'' | '’')).collect();
    if word.is_empty() || is_stop_word(&word) {
        return;
    }
    let stem = stem(&word);
    terms.push(stem.chars().take(MAX_TERM).collect());
}

fn stem(word: &str) -> String {
    // A stemmer is a reference to tables, so creating one costs nothing.
    if word.chars().all(|c| c.is_ascii_alphabetic()) {
        Stemmer::create(Algorithm::English).stem(word).into_owned()
    } else if word.chars().all(|c| matches!(c, 'а'..='я' | 'ё')) {
        Stemmer::create(Algorithm::Russian).stem(&word.replace('ё', "е")).into_owned()
    } else {
        word.to_owned()
    }
}

/// Whether the character belongs to a script that is written without spaces.
fn is_unspaced(c: char) -> bool {
    matches!(c,
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}')
}

fn is_stop_word(word: &str) -> bool {
    ENGLISH_STOP_WORDS.binary_search(&word).is_ok()
        || RUSSIAN_STOP_WORDS.binary_search(&word).is_ok()
}

const ENGLISH_STOP_WORDS: &[&str] = &[
    "a", "about", "after", "again", "all", "also", "am", "an", "and", "any", "are", "arent", "as",
    "at", "be", "because", "been", "before", "being", "both", "but", "by", "can", "cant", "could",
    "couldnt", "did", "didnt", "do", "does", "doesnt", "doing", "dont", "down", "during", "each",
    "few", "for", "from", "further", "had", "has", "have", "havent", "having", "he", "her", "here",
    "hers", "him", "his", "how", "i", "id", "if", "ill", "im", "in", "into", "is", "isnt", "it",
    "its", "itself", "ive", "just", "let", "me", "more", "most", "my", "myself", "no", "nor",
    "not", "of", "off", "on", "once", "only", "or", "other", "our", "ours", "out", "over", "own",
    "same", "she", "should", "so", "some", "such", "than", "that", "thats", "the", "their",
    "theirs", "them", "then", "there", "these", "they", "theyre", "this", "those", "through", "to",
    "too", "under", "until", "up", "us", "very", "was", "wasnt", "we", "were", "weve", "what",
    "when", "where", "which", "while", "who", "whom", "why", "will", "with", "would", "you",
    "your", "youre", "yours", "youve",
];

const RUSSIAN_STOP_WORDS: &[&str] = &[
    "а",
    "без",
    "бы",
    "был",
    "была",
    "были",
    "было",
    "быть",
    "в",
    "вам",
    "вас",
    "весь",
    "во",
    "вот",
    "все",
    "всего",
    "всех",
    "вы",
    "где",
    "да",
    "для",
    "до",
    "его",
    "ее",
    "если",
    "есть",
    "еще",
    "ещё",
    "же",
    "за",
    "здесь",
    "и",
    "из",
    "или",
    "им",
    "их",
    "к",
    "как",
    "какая",
    "какие",
    "какой",
    "когда",
    "кто",
    "ли",
    "либо",
    "мне",
    "мы",
    "на",
    "над",
    "нам",
    "нас",
    "не",
    "него",
    "нее",
    "нет",
    "ни",
    "них",
    "но",
    "ну",
    "о",
    "об",
    "он",
    "она",
    "они",
    "оно",
    "от",
    "по",
    "под",
    "при",
    "с",
    "со",
    "так",
    "также",
    "такой",
    "там",
    "те",
    "тем",
    "то",
    "того",
    "тоже",
    "той",
    "только",
    "том",
    "ты",
    "у",
    "уже",
    "хотя",
    "чего",
    "чей",
    "чем",
    "что",
    "чтобы",
    "чье",
    "чья",
    "эта",
    "эти",
    "это",
    "я",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_a_word_are_one_term() {
        assert_eq!(terms("Running the tests, tested runs"), terms("run test, test run"));
        assert_eq!(terms("Мы запускали тесты"), terms("запускал тест"));
        assert_eq!(terms("Caroline's painting"), terms("caroline paintings"));
        assert_eq!(terms("ＡＢＣ"), ["abc"]);
    }

    #[test]
    fn scripts_without_spaces_are_taken_by_pairs() {
        assert_eq!(terms("東京タワー 第3章"), ["東京", "京タ", "タワ", "ワー", "第", "3", "章"]);
        assert_eq!(terms("我喜欢你"), ["我喜", "喜欢", "欢你"]);
    }

    #[test]
    fn stop_words_are_left_out() {
        assert_eq!(terms("what is the и в на"), Vec::<String>::new());
        assert_eq!(terms("read_file src/main.rs"), ["read_file", "src", "main", "rs"]);
    }

    #[test]
    fn lists_are_in_order_for_the_search() {
        assert!(ENGLISH_STOP_WORDS.is_sorted() && RUSSIAN_STOP_WORDS.is_sorted());
    }
}
