//! An approximate, compact count of how frequent pieces of text and words are in a collection.
//!
//! Pieces are hashed into a table of counters, and words into another one. Two pieces can share a
//! counter, and then both look more frequent than they are. Deleted interactions stay counted until
//! the collection is rebuilt.
//! Frequencies only weigh queries, so neither matters much.

/// How many counters of pieces there are.
const SLOTS: usize = 1 << 13;
/// How many counters of words there are. They follow those of pieces.
const WORD_SLOTS: usize = 1 << 15;

#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    texts: u32,
    slots: Vec<u32>,
}

impl Default for Frequencies {
    fn default() -> Self {
        Self { texts: 0, slots: vec![0; SLOTS + WORD_SLOTS] }
    }
}

impl Frequencies {
    /// Counts one text by its distinct pieces and words.
    pub fn count(&mut self, pieces: &[u64], words: &[u64]) {
        self.texts = self.texts.saturating_add(1);
        let pieces = pieces.iter().map(|piece| slot(*piece));
        let mut slots: Vec<usize> =
            pieces.chain(words.iter().map(|word| word_slot(*word))).collect();
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            self.slots[slot] = self.slots[slot].saturating_add(1);
        }
    }

    /// The inverse document frequency of a piece: how much it says that a text contains it.
    pub fn rarity(&self, piece: u64) -> f32 {
        self.rarity_at(slot(piece))
    }

    /// The inverse document frequency of a word.
    pub fn word_rarity(&self, word: u64) -> f32 {
        self.rarity_at(word_slot(word))
    }

    fn rarity_at(&self, slot: usize) -> f32 {
        let (texts, with) = (self.texts as f32, self.slots[slot] as f32);
        ((texts - with + 0.5).max(0.5) / (with + 0.5) + 1.0).ln()
    }

    /// The counters that are not zero, each with its index.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.texts.to_le_bytes().to_vec();
        for (number, count) in self.slots.iter().enumerate().filter(|(_, count)| **count > 0) {
            bytes.extend((number as u16).to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes have another format.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (texts, rest) = bytes.split_first_chunk::<4>()?;
        let (entries, rest) = rest.as_chunks::<6>();
        if !rest.is_empty() {
            return None;
        }
        let mut frequencies = Self { texts: u32::from_le_bytes(*texts), ..Self::default() };
        for [a, b, count @ ..] in entries {
            *frequencies.slots.get_mut(usize::from(u16::from_le_bytes([*a, *b])))? =
                u32::from_le_bytes(*count);
        }
        Some(frequencies)
    }
}

fn slot(piece: u64) -> usize {
    (piece >> 20) as usize % SLOTS
}

fn word_slot(word: u64) -> usize {
    SLOTS + (word >> 20) as usize % WORD_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_pieces_have_a_low_rarity() {
        let mut frequencies = Frequencies::default();
        for text in 0..100u64 {
            frequencies.count(&[1 << 40, text << 24], &[1 << 41]);
        }
        assert!(frequencies.word_rarity(1 << 41) < 0.1 && frequencies.word_rarity(7 << 24) > 3.0);
        assert!(frequencies.rarity(1 << 40) < 0.1 && frequencies.rarity(7 << 24) > 3.0);
        assert_eq!(Frequencies::from_bytes(&frequencies.to_bytes()), Some(frequencies));
        assert_eq!(Frequencies::from_bytes(b"short"), None);
    }
}
