//! How well memory finds the turns of a conversation that answer a question.
//!
//! The file is a part of LoCoMo (Snap Research, CC BY-NC 4.0): conversations with turns, and
//! questions with the ids of the turns that answer them. Each conversation is imported over HTTP
//! into an agent of a real server. The result is the share of questions with an answering turn
//! among the first k hits.

use crate::recall::Scores;
use anyhow::{Context, Result};
use atelier_testkit::User;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

#[derive(Deserialize)]
pub(crate) struct Conversation {
    turns: Vec<Turn>,
    questions: Vec<Asked>,
}

#[derive(Deserialize)]
struct Turn {
    id: String,
    text: String,
    speaker: String,
}

#[derive(Deserialize)]
struct Asked {
    question: String,
    evidence: Vec<String>,
}

pub(crate) fn read(file: &Path) -> Result<Vec<Conversation>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Asks all questions in every mode.
pub(crate) async fn measure(
    user: &User,
    project: &str,
    conversations: &[Conversation],
    speakers: bool,
) -> Result<Scores> {
    let mut scores = Scores::default();
    for (number, conversation) in conversations.iter().enumerate() {
        let context = import(user, project, number, conversation, speakers).await?;
        for question in
            conversation.questions.iter().filter(|question| is_answered(question, conversation))
        {
            let is_hit = |hit: &Value| {
                question.evidence.iter().any(|id| hit["metadata"]["turn"] == id.as_str())
            };
            scores.ask(user, &context, &question.question, is_hit).await?;
        }
    }
    Ok(scores)
}

fn is_answered(question: &Asked, conversation: &Conversation) -> bool {
    question.evidence.iter().any(|id| conversation.turns.iter().any(|turn| turn.id == *id))
}

async fn import(
    user: &User,
    project: &str,
    number: usize,
    conversation: &Conversation,
    speakers: bool,
) -> Result<String> {
    let name = format!("conversation-{number}");
    user.post(&format!("{project}/agents"), json!({"name": name})).await.expect(201);
    let context = format!("{project}/agents/{name}/context");
    let entry = |turn: &Turn| {
        let text =
            if speakers { format!("{}: {}", turn.speaker, turn.text) } else { turn.text.clone() };
        json!({"text": text, "interaction_type": "user_message", "metadata": {"turn": turn.id}})
    };
    let entries: Vec<Value> =
        conversation.turns.iter().filter(|turn| !turn.text.trim().is_empty()).map(entry).collect();
    crate::recall::import(user, &context, &entries).await?;
    Ok(context)
}
