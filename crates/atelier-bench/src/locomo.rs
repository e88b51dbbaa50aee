//! `atelier-bench locomo FILE`: how well memory finds the turns of a conversation that answer a
//! question.
//!
//! The file is a part of LoCoMo (Snap Research, CC BY-NC 4.0): conversations with turns, and
//! questions with the ids of the turns that answer them. Each conversation is imported over HTTP
//! into an agent of a real server. The result is the share of questions with an answering turn
//! among the first k hits.

use crate::Plan;
use anyhow::{Context, Result};
use atelier_testkit::{Server, User};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;

const CUTS: [usize; 4] = [1, 5, 10, 20];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The questions and turns, as JSON
    file: PathBuf,
    /// A model directory (`tokenizer.json`, `model.safetensors`) to measure in addition to the
    /// built-in embedder
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Put the speaker before each turn
    #[arg(long)]
    speakers: bool,
}

#[derive(Deserialize)]
struct Conversation {
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

#[expect(clippy::print_stdout, reason = "what was asked for")]
pub(crate) async fn run(args: &Args, plan: &Plan) -> Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let conversations: Vec<Conversation> = serde_json::from_str(&text)?;
    let builtin = Server::build(&plan.binary, plan.backend);
    let mut servers = vec![("built-in", builtin)];
    if let Some(model) = &args.model {
        let local = Server::build(&plan.binary, plan.backend)
            .with("MEMORY__EMBEDDER__KIND", "local")
            // A model needs milliseconds per query on an idle machine, and more on a busy one.
            .with("MEMORY__PATIENCE", "10s")
            .with("MEMORY__EMBEDDER__PATH", model.canonicalize()?.display());
        servers.push(("model", local));
    }
    for (name, builder) in servers {
        let server = builder.start().await;
        let user = server.user("bench");
        let project = user.project("locomo").await;
        let mut scores = [[0.0; CUTS.len()]; 3];
        let mut asked = 0.0;
        for (number, conversation) in conversations.iter().enumerate() {
            let context = import(&user, &project, number, conversation, args.speakers).await?;
            for question in
                conversation.questions.iter().filter(|question| is_answered(question, conversation))
            {
                asked += 1.0;
                for (mode, scores) in ["lexical", "dense", "hybrid"].into_iter().zip(&mut scores) {
                    let rank = rank(&user, &context, mode, question).await?;
                    for (cut, score) in CUTS.into_iter().zip(scores) {
                        *score += if rank.is_some_and(|rank| rank < cut) { 1.0 } else { 0.0 };
                    }
                }
            }
        }
        println!("{name}: {asked} questions");
        for (mode, scores) in ["lexical", "dense", "hybrid"].into_iter().zip(scores) {
            let figures: Vec<String> = CUTS
                .into_iter()
                .zip(scores)
                .map(|(cut, score)| format!("R@{cut} {:.3}", score / asked))
                .collect();
            println!("  {mode:<8} {}", figures.join("  "));
        }
    }
    Ok(())
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
    for batch in entries.chunks(100) {
        let answer = user
            .post(&format!("{context}/import"), json!({"interactions": batch}))
            .await
            .expect(200);
        anyhow::ensure!(answer["indexed"] == true, "the index is too slow: {answer}");
    }
    Ok(context)
}

/// The rank of the first turn that answers, if it is among the first twenty.
async fn rank(user: &User, context: &str, mode: &str, question: &Asked) -> Result<Option<usize>> {
    let body = json!({"query": question.question, "k": 20, "mode": mode});
    let found = user.post(&format!("{context}/search"), body).await.expect(200);
    anyhow::ensure!(
        found["degraded"].is_null(),
        "a search went by words only: {}",
        found["degraded"]
    );
    let results = found["results"].as_array().context("results")?;
    Ok(results
        .iter()
        .position(|hit| question.evidence.iter().any(|id| hit["metadata"]["turn"] == id.as_str())))
}
