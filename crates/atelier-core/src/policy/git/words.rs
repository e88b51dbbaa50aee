//! Words of a git command line: what they can name, by their form alone.

/// Whether git takes the word for a path although no file has that name.
pub(super) fn is_pathspec(word: &str) -> bool {
    word.starts_with(":(") || word.contains(['*', '?', '[']) || matches!(word, ":/" | ":!" | ":^")
}

/// Whether git's refusal can be relied on if `git rev-parse` does not know the word: it is a name,
/// an ancestor of one, a range of those or a file in one. Other expressions may mean more to a
/// subcommand.
pub(super) fn is_refused(word: &str) -> bool {
    if let Some((revision, _)) = named_file(word) {
        return is_name(revision);
    }
    word.split("..").all(|side| is_name(side.trim_start_matches('.')))
}

/// Whether the text can be nothing but a name, or an ancestor of what it names.
fn is_name(text: &str) -> bool {
    let digits = |c: char| c.is_ascii_digit();
    let mut name = text;
    while let Some(rest) = name.trim_end_matches(digits).strip_suffix(['~', '^']) {
        name = rest;
    }
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '+' | ' ');
    name.chars().all(plain) && object_ids(name).is_empty()
}

/// The parts of a word that can be ids of objects, in full or abbreviated, as `abcd`, `abcd^` and
/// `v1-2-gabcd`.
pub(super) fn object_ids(word: &str) -> Vec<&str> {
    let value = word.split_once('=').map(|(_, value)| value);
    let parts = [Some(word), value].into_iter().flatten().flat_map(|text| text.split(".."));
    let parts = parts.map(|part| part.trim_start_matches(['^', '.']));
    let bases = parts.filter_map(|part| part.split(['^', '~', '@', ':']).next());
    let is_id = |text: &&str| text.len() >= 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let spellings = bases.flat_map(|base| [Some(base), base.rfind("-g").map(|at| &base[at + 2..])]);
    spellings.flatten().filter(is_id).collect()
}

/// The parts of a word that can name an object: the word, both ends of a range, the value of an
/// option, and what each of them starts from, as `k` and `k^{}`.
pub(super) fn object_names(word: &str) -> impl Iterator<Item = &str> {
    let value = || word.split_once('=').map(|(_, value)| value);
    let texts: Vec<&str> = match word.strip_prefix('-') {
        Some(long) if long.starts_with('-') => value().into_iter().collect(),
        // `-sk` and `-Wsk` are `--source=k` of `git restore`.
        Some(letters) => letters.match_indices('s').map(|(at, _)| &letters[at + 1..]).collect(),
        None => [Some(word), value()].into_iter().flatten().collect(),
    };
    let ends = texts.into_iter().flat_map(|text| [text].into_iter().chain(text.split("..")));
    let parts = ends.flat_map(|end| [end].into_iter().chain(end.split(',')));
    let parts = parts.map(|part| part.trim_start_matches(['^', '.']));
    let names = parts.flat_map(|part| [Some(part), part.split(['^', '~', '@', ':']).next()]);
    names.flatten().filter(|name| !name.is_empty() && !name.starts_with('-'))
}

/// A word that names a commit or a range of commits, in a form that names nothing else.
pub(super) fn as_commits(word: &str) -> String {
    if named_file(word).is_some() {
        return word.to_owned();
    }
    let commit = |side: &str| match side.is_empty() {
        true => String::new(),
        false => format!("{side}^{{commit}}"),
    };
    let range = ["...", ".."].into_iter().find_map(|dots| Some((word.split_once(dots)?, dots)));
    match range {
        Some(((from, to), dots)) => format!("{}{dots}{}", commit(from), commit(to)),
        None => commit(word),
    }
}

/// The revision and the path of `revision:path`, if the revision is a plain name. The revision is
/// empty for `:path`, which is a file of the index.
pub fn named_file(word: &str) -> Option<(&str, &str)> {
    let (revision, path) = word.split_once(':')?;
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '~' | '^' | '@');
    let is_plain =
        revision.chars().all(plain) && !revision.contains("..") && !revision.starts_with('-');
    let path = match (revision, path.as_bytes()) {
        ("", [b'0'..=b'3', b':', ..]) => &path[2..],
        _ => path,
    };
    // After a colon, these signs begin a pathspec or a search in messages.
    let special = revision.is_empty() && path.starts_with(['(', '/', '!', '^']);
    (is_plain && !special && !path.is_empty() && !path.contains(':')).then_some((revision, path))
}
