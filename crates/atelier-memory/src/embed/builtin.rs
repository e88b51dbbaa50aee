//! The embedder that needs no model: words, pairs of words and parts of words, hashed into 1536
//! numbers.
//!
//! It finds texts that share words or parts of words, in any language, but knows nothing of their
//! meaning. Only the query is weighed by how rare a piece is, so a stored vector depends on its
//! text alone and never becomes outdated.

use crate::{frequencies::Frequencies, lexical::hash};
use atelier_core::terms::terms;
use std::collections::BTreeMap;

pub(crate) const DIMENSION: usize = 1536;
pub(crate) const NAME: &str = "builtin-1";

/// The weight of each kind of piece.
///
/// Whole words weigh least, because the lexical search covers them already. Chosen on one half of
/// LoCoMo.
const WORD: f32 = 0.5;
const PAIR: f32 = 1.0;
const PIECE: f32 = 0.3;

/// The vector of a stored text.
pub(crate) fn document(text: &str) -> Vec<f32> {
    let mut counts: BTreeMap<u64, (f32, f32)> = BTreeMap::new();
    for (piece, worth) in pieces(text) {
        let (count, _) = counts.entry(piece).or_insert((0.0, worth));
        *count += 1.0;
    }
    hash_into_vector(
        counts.into_iter().map(|(piece, (count, worth))| (piece, worth * (1.0 + count.ln()))),
    )
}

/// The vector of a query, weighed by the frequencies of a collection.
pub(crate) fn query(text: &str, frequencies: &Frequencies) -> Vec<f32> {
    let pieces: BTreeMap<u64, f32> = pieces(text).into_iter().collect();
    hash_into_vector(
        pieces.into_iter().map(|(piece, worth)| (piece, worth * frequencies.rarity(piece))),
    )
}

/// The distinct pieces of a text, for counting their frequencies.
pub(crate) fn distinct(text: &str) -> Vec<u64> {
    let mut pieces: Vec<u64> = pieces(text).into_iter().map(|(piece, _)| piece).collect();
    pieces.sort_unstable();
    pieces.dedup();
    pieces
}

fn pieces(text: &str) -> Vec<(u64, f32)> {
    let terms = terms(text);
    let mut pieces = Vec::new();
    for term in &terms {
        pieces.push((hash(term.as_bytes(), 1), WORD));
        let marked: Vec<char> = std::iter::once('<').chain(term.chars()).chain(['>']).collect();
        for size in 3..=5 {
            if marked.len() > size {
                pieces.extend(marked.windows(size).map(|window| {
                    let piece: String = window.iter().collect();
                    (hash(piece.as_bytes(), 3), PIECE)
                }));
            }
        }
    }
    for pair in terms.windows(2) {
        pieces.push((hash(format!("{} {}", pair[0], pair[1]).as_bytes(), 2), PAIR));
    }
    pieces
}

fn hash_into_vector(weights: impl Iterator<Item = (u64, f32)>) -> Vec<f32> {
    let mut vector = vec![0.0f32; DIMENSION];
    for (piece, weight) in weights {
        // Random signs make hash collisions average out.
        let spot = hash(&piece.to_le_bytes(), 10);
        let sign = if spot >> 63 == 0 { 1.0 } else { -1.0 };
        vector[(spot % DIMENSION as u64) as usize] += sign * weight;
    }
    super::normalized(vector)
}
