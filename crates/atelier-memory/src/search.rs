//! One question, two ways of looking, one list.

use crate::index::Answer;
use atelier_core::{Filter, Interaction, ScoreParts, SearchMode};
use chrono::{DateTime, Utc};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// How much the dense half counts beside the lexical one. Chosen on one half of LoCoMo, to be judged by the other:
/// people ask with the words they remember, and small models know few of those.
const DENSE_WEIGHT: f32 = 0.3;
/// The built-in embedder sees the same words as the lexical half, so it only nudges.
const BUILTIN_WEIGHT: f32 = 0.15;
/// How many candidates each half may name.
pub(crate) const CANDIDATES: usize = 100;

#[derive(Debug, Clone)]
pub struct Query {
    pub text: String,
    pub k: usize,
    pub mode: SearchMode,
    pub filter: Filter,
    /// Leave out what scores less.
    pub min_score: Option<f32>,
    /// Favour what is new: what is so many days old counts half.
    pub recency_days: Option<f32>,
    /// Show texts that are the same but for case, white space and how their sentence ends once.
    pub unique: bool,
}

impl Query {
    pub fn new(text: impl Into<String>, k: usize) -> Self {
        Self {
            text: text.into(),
            k,
            mode: SearchMode::Hybrid,
            filter: Filter::default(),
            min_score: None,
            recency_days: None,
            unique: false,
        }
    }
}

/// What was found, best first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    pub hits: Vec<Hit>,
    /// Why the answer may be poorer than usual: the index or the embedder did not answer.
    pub degraded: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    pub fact: Interaction,
    /// Between 0 and 1 for hybrid searches; of its half otherwise.
    pub score: f32,
    pub parts: ScoreParts,
}

/// Puts the halves together. What counts is how far a hit stands out of its half's list, in standard deviations: ranks
/// alone would not say it, and scores of different halves do not compare.
pub(crate) fn fuse(answer: &Answer, mode: SearchMode, builtin: bool) -> Vec<(Uuid, f32, ScoreParts)> {
    let mut parts: HashMap<Uuid, ScoreParts> = HashMap::new();
    for (id, score) in &answer.dense {
        parts.entry(*id).or_default().dense = Some(*score);
    }
    for (id, score) in &answer.lexical {
        parts.entry(*id).or_default().lexical = Some(*score);
    }
    let weight = if builtin { BUILTIN_WEIGHT } else { DENSE_WEIGHT };
    let (dense, lexical) = (Spread::of(&answer.dense), Spread::of(&answer.lexical));
    let score = |parts: &ScoreParts| match mode {
        SearchMode::Dense => parts.dense.unwrap_or(0.0),
        SearchMode::Lexical => parts.lexical.unwrap_or(0.0),
        SearchMode::Hybrid => {
            let sum = weight * dense.standing(parts.dense) + lexical.standing(parts.lexical);
            sum / (sum + 4.0)
        }
    };
    let mut fused: Vec<_> = parts.into_iter().map(|(id, parts)| (id, score(&parts), parts)).collect();
    // Those that stand out of neither list go by what the halves said; ids decide between equals, the newer first.
    let bare = |parts: &ScoreParts| parts.lexical.unwrap_or(0.0) + parts.dense.unwrap_or(0.0);
    fused.sort_by(|a, b| b.1.total_cmp(&a.1).then(bare(&b.2).total_cmp(&bare(&a.2))).then(b.0.cmp(&a.0)));
    fused
}

/// Mean and deviation of a half's list. Places that it left empty count as zero: nothing was found for them.
struct Spread {
    mean: f32,
    deviation: f32,
}

impl Spread {
    fn of(list: &[(Uuid, f32)]) -> Self {
        let (count, empty) =
            (CANDIDATES.max(list.len()) as f32, CANDIDATES.saturating_sub(list.len()) as f32);
        let mean = list.iter().map(|(_, score)| score).sum::<f32>() / count;
        let squares = list.iter().map(|(_, score)| (score - mean).powi(2)).sum::<f32>() + empty * mean * mean;
        Self { mean, deviation: (squares / count).sqrt().max(1e-6) }
    }

    fn standing(&self, score: Option<f32>) -> f32 {
        score.map_or(0.0, |score| ((score - self.mean) / self.deviation).max(0.0))
    }
}

/// Applies what was asked for beside the filter, and cuts.
pub(crate) fn finish(mut hits: Vec<Hit>, query: &Query, now: DateTime<Utc>) -> Vec<Hit> {
    if let Some(half_life) = query.recency_days {
        for hit in &mut hits {
            let days = (now - hit.fact.timestamp).num_seconds().max(0) as f32 / 86_400.0;
            let fresh = 0.5f32.powf(days / half_life.max(0.01));
            hit.parts.recency = Some(fresh);
            hit.score *= fresh;
        }
        hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    }
    if let Some(least) = query.min_score {
        hits.retain(|hit| hit.score >= least);
    }
    if query.unique {
        let mut seen = HashSet::new();
        hits.retain(|hit| seen.insert(plain(&hit.fact.text)));
    }
    hits.truncate(query.k);
    hits
}

/// A text without what people do not mean by it. Other signs are meant: C++ is not C#, and -1 is not 1.
pub(crate) fn plain(text: &str) -> String {
    let text = text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ");
    match text.trim_end_matches(['.', '!', '?']) {
        "" => text,
        bare => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_the_same_but_for_case_space_and_end() {
        assert_eq!(plain("Rotated  the\nkeys!"), plain("rotated the keys"));
        let different =
            ["C++ is preferred", "C# is preferred", "x == y", "x != y", "1", "-1", "🎉", "!!!", "???"];
        let kept: HashSet<String> = different.iter().map(|text| plain(text)).collect();
        assert_eq!(kept.len(), different.len());
    }

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn what_both_halves_name_comes_first() {
        let answer = Answer {
            dense: vec![(id(1), 0.9), (id(2), 0.8), (id(3), 0.1)],
            lexical: vec![(id(2), 9.0), (id(4), 8.5)],
        };
        let order: Vec<Uuid> =
            fuse(&answer, SearchMode::Hybrid, false).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(order, [id(2), id(4), id(1), id(3)]);
        let best = fuse(&answer, SearchMode::Dense, false)[0];
        assert_eq!((best.0, best.1), (id(1), 0.9));
    }

    #[test]
    fn one_half_alone_keeps_its_order() {
        let answer = Answer { dense: Vec::new(), lexical: vec![(id(1), 3.0), (id(2), 2.0), (id(3), 1.0)] };
        let order: Vec<Uuid> =
            fuse(&answer, SearchMode::Hybrid, true).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(order, [id(1), id(2), id(3)]);
    }
}
