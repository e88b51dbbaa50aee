//! How well memory finds a fact that is asked for in other words: "car trouble" for "The automobile
//! would not start this morning". All facts of a language are in one memory.

use crate::recall::Scores;
use anyhow::Result;
use atelier_testkit::User;
use serde_json::{Value, json};

/// A fact and a question about it that shares few words with it.
pub(crate) type Pair = (&'static str, &'static str);

pub(crate) fn languages() -> [(&'static str, Vec<Pair>); 3] {
    [
        ("English", pairs(include_str!("../data/paraphrases-en.tsv"))),
        ("Russian", pairs(include_str!("../data/paraphrases-ru.tsv"))),
        ("Japanese", pairs(include_str!("../data/paraphrases-ja.tsv"))),
    ]
}

fn pairs(file: &'static str) -> Vec<Pair> {
    file.lines().filter_map(|line| line.split_once('\t')).collect()
}

pub(crate) async fn measure(
    user: &User,
    project: &str,
    language: &str,
    pairs: &[Pair],
) -> Result<Scores> {
    user.post(&format!("{project}/agents"), json!({"name": language})).await.expect(201);
    let context = format!("{project}/agents/{language}/context");
    let entry = |(fact, _): &Pair| json!({"text": fact, "interaction_type": "user_message"});
    let entries: Vec<Value> = pairs.iter().map(entry).collect();
    crate::recall::import(user, &context, &entries).await?;
    let mut scores = Scores::default();
    for (fact, question) in pairs {
        scores.ask(user, &context, question, |hit| hit["text"] == *fact).await?;
    }
    Ok(scores)
}
