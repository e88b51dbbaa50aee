//! BM25 as sparse vectors: a text is its terms and how much each says about it. How rare a term is, the index
//! knows and multiplies in (the `Idf` modifier), so that stored vectors never drift.

use atelier_core::terms::terms;
use std::collections::BTreeMap;

/// A term counts less the more often it has been said already.
const K1: f32 = 1.2;
/// How much a long text's words are worth less.
const B: f32 = 0.75;
/// What counts as neither short nor long, in terms. Fixed: an average would move, and stored vectors would not.
const USUAL_LENGTH: f32 = 32.0;

/// Terms by their number, ascending, and their weights.
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

    /// How much of a query a stored text has, not looking at how rare the terms are.
    pub(crate) fn common(&self, asked: &Self) -> f32 {
        let weight = |(index, value): (&u32, &f32)| match self.indices.binary_search(index) {
            Ok(place) => self.values[place] * value,
            Err(_) => 0.0,
        };
        asked.indices.iter().zip(&asked.values).map(weight).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }
}

/// A text as it is stored.
pub fn stored(text: &str) -> Sparse {
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

/// A text as it is asked for.
pub fn asked(text: &str) -> Sparse {
    Sparse::new(terms(text).iter().map(|term| (number(term), 1.0)).collect())
}

/// FNV-1a, with its bits mixed once more. Stored vectors are made of these: it must never change.
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
        let once = stored("deploy server");
        let twice = stored("deploy deploy");
        let weight = |sparse: &Sparse| {
            let place = sparse.indices.iter().position(|index| *index == number("deploy"));
            sparse.values[place.expect("the term")]
        };
        assert!(weight(&twice) > weight(&once) && weight(&twice) < 2.0 * weight(&once));
    }

    /// Whoever changes these numbers makes every stored vector wrong.
    #[test]
    fn numbers_of_terms_never_change() {
        assert_eq!([number("deploy"), number("東京")], [121_266_721, 1_160_511_393]);
    }
}
