//! BM25 as sparse vectors: each term of a text has a weight. The index multiplies in how rare a
//! term is (the `Idf` modifier), so stored vectors never become outdated.

use crate::frequencies::Frequencies;
use atelier_core::terms::terms;
use std::collections::BTreeMap;

/// Term saturation: each repetition of a term counts less than the one before.
const K1: f32 = 1.2;
/// Length normalisation: how much less the terms of a long text count.
const B: f32 = 0.75;
/// The assumed average length in terms. It is fixed, because a measured average would change while
/// stored vectors would not.
const USUAL_LENGTH: f32 = 32.0;

/// The numbers of terms, ascending, and their weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sparse {
    pub indices: Vec<u32>,
    pub values: Vec<f32>,
}

impl Sparse {
    fn new(weights: BTreeMap<u32, f32>) -> Self {
        let (indices, values) = weights.into_iter().unzip();
        Self { indices, values }
    }

    /// The score of a stored text for a query, without regard to how rare the terms are.
    pub(crate) fn score(&self, query: &Self) -> f32 {
        let weight = |(index, value): (&u32, &f32)| match self.indices.binary_search(index) {
            Ok(at) => self.values[at] * value,
            Err(_) => 0.0,
        };
        query.indices.iter().zip(&query.values).map(weight).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }
}

/// The sparse vector of a stored text.
pub fn document(text: &str) -> Sparse {
    let terms = terms(text);
    let length = terms.len() as f32;
    let mut counts: BTreeMap<u32, f32> = BTreeMap::new();
    for term in &terms {
        *counts.entry(number(term)).or_default() += 1.0;
    }
    let damping = K1 * (1.0 - B + B * length / USUAL_LENGTH);
    for count in counts.values_mut() {
        *count = *count * (K1 + 1.0) / (*count + damping);
    }
    Sparse::new(counts)
}

/// The sparse vector of a query.
pub fn query(text: &str) -> Sparse {
    Sparse::new(terms(text).iter().map(|term| (number(term), 1.0)).collect())
}

/// The sparse vector of a query, in which rare words weigh more. For an index that does not weigh
/// words itself.
pub fn weighted_query(text: &str, frequencies: &Frequencies) -> Sparse {
    let weight = |term: &String| frequencies.word_rarity(word(term));
    Sparse::new(terms(text).iter().map(|term| (number(term), weight(term))).collect())
}

/// The distinct words of a text, for counting their frequencies.
pub(crate) fn distinct(text: &str) -> Vec<u64> {
    let mut words: Vec<u64> = terms(text).iter().map(|term| word(term)).collect();
    words.sort_unstable();
    words.dedup();
    words
}

fn word(term: &str) -> u64 {
    hash(term.as_bytes(), 1)
}

/// The number of a term: FNV-1a with its bits mixed once more. It must never change, because stored
/// vectors refer to terms by their numbers.
pub(crate) fn number(term: &str) -> u32 {
    let hash = hash(term.as_bytes(), 0);
    (hash ^ (hash >> 32)) as u32
}

pub(crate) fn hash(bytes: &[u8], seed: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_terms_count_more_but_not_twice_as_much() {
        let once = document("deploy server");
        let twice = document("deploy deploy");
        let weight = |sparse: &Sparse| {
            let at = sparse.indices.iter().position(|index| *index == number("deploy"));
            sparse.values[at.expect("the term")]
        };
        assert!(weight(&twice) > weight(&once) && weight(&twice) < 2.0 * weight(&once));
    }

    /// Other numbers would make every stored vector wrong.
    #[test]
    fn numbers_of_terms_never_change() {
        assert_eq!([number("deploy"), number("東京")], [121_266_721, 1_160_511_393]);
    }
}
