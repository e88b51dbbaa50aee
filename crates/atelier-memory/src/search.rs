//! Queries and results of a search, and how the dense and the lexical matches become one ranking.

use crate::index::IndexMatches;
use atelier_core::{Filter, Interaction, ScoreParts, SearchMode};
use chrono::{DateTime, Utc};
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

/// How many candidates the dense and the lexical search contribute each.
pub(crate) const CANDIDATES: usize = 100;

#[derive(Debug, Clone)]
pub struct Query {
    pub text: String,
    pub k: usize,
    pub mode: SearchMode,
    pub filter: Filter,
    /// Leave out hits that score less.
    pub min_score: Option<f32>,
    /// Favour new interactions: one that is this many days old counts half.
    pub recency_days: Option<f32>,
    /// Show only one of the texts that differ just in case, white space and final punctuation.
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

/// The hits of a search, best first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchResults {
    pub hits: Vec<Hit>,
    /// Why the results may be worse than usual: the index or the embedder did not answer.
    pub degraded: Option<String>,
    /// The lowest dense score with which a hit counts as related to the query.
    pub(crate) min_similarity: f32,
}

/// The matches of one part of a collection, with the meaning of its embedder's scores.
pub(crate) struct PartMatches {
    pub(crate) matches: IndexMatches,
    pub(crate) dense_weight: f32,
    pub(crate) min_similarity: f32,
}

pub(crate) type Ranked = Vec<(Uuid, f32, ScoreParts)>;

#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    pub interaction: Interaction,
    /// Between 0 and 1 in a hybrid search; otherwise the dense or lexical score itself.
    pub score: f32,
    pub parts: ScoreParts,
}

/// Combines dense and lexical matches. A hit counts by how many standard deviations it stands out
/// of its list: ranks alone do not show that, and dense and lexical scores do not compare.
pub(crate) fn fuse(answer: &IndexMatches, mode: SearchMode, dense_weight: f32) -> Ranked {
    let mut parts: HashMap<Uuid, ScoreParts> = HashMap::new();
    for (id, score) in &answer.dense {
        parts.entry(*id).or_default().dense = Some(*score);
    }
    for (id, score) in &answer.lexical {
        parts.entry(*id).or_default().lexical = Some(*score);
    }
    let (dense, lexical) =
        (ScoreDistribution::of(&answer.dense), ScoreDistribution::of(&answer.lexical));
    let score = |parts: &ScoreParts| match mode {
        SearchMode::Dense => parts.dense.unwrap_or(0.0),
        SearchMode::Lexical => parts.lexical.unwrap_or(0.0),
        SearchMode::Hybrid => {
            let sum =
                dense_weight * dense.deviations(parts.dense) + lexical.deviations(parts.lexical);
            sum / (sum + 4.0)
        }
    };
    sorted(parts.into_iter().map(|(id, parts)| (id, score(&parts), parts)).collect())
}

/// Combines the matches of several parts of a collection, each with an embedder of its own. Scores
/// of two embedders do not compare, so a hit counts by how far it stands out of its own part. In a
/// small part everything stands out, so hits that are not related to the query are left out. If
/// several parts have an interaction, the score of the first part counts.
pub(crate) fn fuse_parts(parts: Vec<PartMatches>, mode: SearchMode) -> Ranked {
    let one = parts.len() < 2;
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for mut part in parts {
        if one {
            return fuse(&part.matches, mode, part.dense_weight);
        }
        part.matches.dense.retain(|(_, near)| *near >= part.min_similarity);
        let weight = if mode == SearchMode::Dense { 1.0 } else { part.dense_weight };
        let ranked = fuse(&part.matches, SearchMode::Hybrid, weight);
        all.extend(ranked.into_iter().filter(|(id, ..)| seen.insert(*id)));
    }
    sorted(all)
}

/// Best first. Hits that stand out of neither list are ordered by their plain scores, then by id,
/// newest first.
fn sorted(mut fused: Ranked) -> Ranked {
    let bare = |parts: &ScoreParts| parts.lexical.unwrap_or(0.0) + parts.dense.unwrap_or(0.0);
    fused.sort_by(|a, b| {
        b.1.total_cmp(&a.1).then(bare(&b.2).total_cmp(&bare(&a.2))).then(b.0.cmp(&a.0))
    });
    fused
}

/// Mean and standard deviation of a list's scores. Missing candidates count as zero.
struct ScoreDistribution {
    mean: f32,
    deviation: f32,
}

impl ScoreDistribution {
    fn of(list: &[(Uuid, f32)]) -> Self {
        let (count, empty) =
            (CANDIDATES.max(list.len()) as f32, CANDIDATES.saturating_sub(list.len()) as f32);
        let mean = list.iter().map(|(_, score)| score).sum::<f32>() / count;
        let squares =
            list.iter().map(|(_, score)| (score - mean).powi(2)).sum::<f32>() + empty * mean * mean;
        Self { mean, deviation: (squares / count).sqrt().max(1e-6) }
    }

    fn deviations(&self, score: Option<f32>) -> f32 {
        score.map_or(0.0, |score| ((score - self.mean) / self.deviation).max(0.0))
    }
}

/// Applies the query's recency, minimum score and uniqueness, and keeps the best `k` hits.
pub(crate) fn finish(mut hits: Vec<Hit>, query: &Query, now: DateTime<Utc>) -> Vec<Hit> {
    if let Some(half_life) = query.recency_days {
        for hit in &mut hits {
            let days = (now - hit.interaction.timestamp).num_seconds().max(0) as f32 / 86_400.0;
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
        hits.retain(|hit| seen.insert(plain(&hit.interaction.text)));
    }
    hits.truncate(query.k);
    hits
}

/// A text reduced to what makes it different: case, white space and final punctuation are removed.
/// Other signs stay, because C++ is not C# and -1 is not 1.
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
    fn texts_are_compared_without_case_space_and_final_punctuation() {
        assert_eq!(plain("Rotated  the\nkeys!"), plain("rotated the keys"));
        let different = [
            "C++ is preferred",
            "C# is preferred",
            "x == y",
            "x != y",
            "1",
            "-1",
            "🎉",
            "!!!",
            "???",
        ];
        let kept: HashSet<String> = different.iter().map(|text| plain(text)).collect();
        assert_eq!(kept.len(), different.len());
    }

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn hit_of_both_searches_comes_first() {
        let answer = IndexMatches {
            dense: vec![(id(1), 0.9), (id(2), 0.8), (id(3), 0.1)],
            lexical: vec![(id(2), 9.0), (id(4), 8.5)],
        };
        let order: Vec<Uuid> =
            fuse(&answer, SearchMode::Hybrid, 0.3).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(order, [id(2), id(4), id(1), id(3)]);
        let best = fuse(&answer, SearchMode::Dense, 0.3)[0];
        assert_eq!((best.0, best.1), (id(1), 0.9));
    }

    /// Two cosines of 0.4 say different things if two embedders have given them.
    #[test]
    fn parts_of_two_embedders_are_ranked_by_what_stands_out_in_each() {
        let part = |first: u128, best: f32, min_similarity: f32| {
            let rest = (1..20).map(|n| (id(first + n), min_similarity - 0.01 * n as f32));
            PartMatches {
                matches: IndexMatches {
                    dense: std::iter::once((id(first), best)).chain(rest).collect(),
                    lexical: vec![],
                },
                dense_weight: 0.3,
                min_similarity,
            }
        };
        let parts = vec![part(100, 0.5, 0.25), part(200, 0.3, 0.15)];
        let found: Vec<Uuid> =
            fuse_parts(parts, SearchMode::Dense).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(found.len(), 2, "unrelated hits are left out: {found:?}");
        assert!(found.contains(&id(100)) && found.contains(&id(200)));
        // If both parts have an interaction, the score of the first part counts.
        let both = vec![part(100, 0.5, 0.25), part(100, 0.9, 0.25)];
        let found = fuse_parts(both, SearchMode::Hybrid);
        assert_eq!((found.len(), found[0].2.dense), (1, Some(0.5)));
    }

    #[test]
    fn one_search_alone_keeps_its_order() {
        let answer = IndexMatches {
            dense: Vec::new(),
            lexical: vec![(id(1), 3.0), (id(2), 2.0), (id(3), 1.0)],
        };
        let order: Vec<Uuid> =
            fuse(&answer, SearchMode::Hybrid, 0.15).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(order, [id(1), id(2), id(3)]);
    }
}
