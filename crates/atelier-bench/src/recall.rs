//! `atelier-bench recall [FILE]`: how well memory finds what was said, in other words
//! ([`crate::paraphrases`]) and in conversations ([`crate::locomo`]), with each embedder.
//!
//! Everything goes over HTTP to an agent of a real server. R@k is the share of questions with a
//! right answer among the first k hits.

use crate::{Plan, locomo, paraphrases};
use anyhow::{Context, Result, ensure};
use atelier_testkit::{Server, User};
use serde_json::{Value, json};
use std::{path::PathBuf, time::Instant};

const CUTS: [usize; 4] = [1, 5, 10, 20];
const MODES: [&str; 3] = ["lexical", "dense", "hybrid"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The questions and turns of LoCoMo, as JSON
    file: Option<PathBuf>,
    /// The folder with the weights of MiniLM (`scripts/minilm --int8`)
    #[arg(long, value_name = "DIR")]
    minilm: Option<PathBuf>,
    /// Another model directory (`tokenizer.json`, `model.safetensors`) to measure
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Put the speaker before each turn
    #[arg(long)]
    speakers: bool,
}

/// How many questions had a right answer among the first hits, by mode and cut.
#[derive(Default)]
pub(crate) struct Scores {
    hits: [[f64; CUTS.len()]; MODES.len()],
    asked: f64,
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
pub(crate) async fn run(args: &Args, plan: &Plan) -> Result<()> {
    let conversations = args.file.as_deref().map(locomo::read).transpose()?;
    let server = || Server::build(&plan.binary, plan.backend).with("MEMORY__PATIENCE", "10s");
    let mut servers = vec![("built-in", server())];
    if let Some(minilm) = &args.minilm {
        let minilm = minilm.canonicalize()?;
        let server = server().with("MEMORY__EMBEDDER__KIND", "minilm");
        servers.push(("MiniLM", server.with("MEMORY__MINILM", minilm.display())));
    }
    if let Some(model) = &args.model {
        let model = model.canonicalize()?;
        let server = server().with("MEMORY__EMBEDDER__KIND", "local");
        servers.push(("model", server.with("MEMORY__EMBEDDER__PATH", model.display())));
    }
    for (name, builder) in servers {
        let server = builder.start().await;
        let user = server.user("bench");
        let project = user.project("recall").await;
        for (language, pairs) in paraphrases::languages() {
            let began = Instant::now();
            let scores = paraphrases::measure(&user, &project, language, &pairs).await?;
            println!("{name}, {} paraphrases, {language}:\n{}", pairs.len(), scores.report());
            println!("  took {:.1} s", began.elapsed().as_secs_f64());
        }
        if let Some(conversations) = &conversations {
            let scores = locomo::measure(&user, &project, conversations, args.speakers).await?;
            println!("{name}, {} questions of LoCoMo:\n{}", scores.asked, scores.report());
        }
    }
    Ok(())
}

/// Adds interactions to a memory and waits until they are found.
pub(crate) async fn import(user: &User, context: &str, entries: &[Value]) -> Result<()> {
    for batch in entries.chunks(50) {
        let body = json!({"interactions": batch});
        let answer = user.post(&format!("{context}/import"), body).await.expect(200);
        ensure!(answer["indexed"] == true, "the index is too slow: {answer}");
    }
    Ok(())
}

impl Scores {
    /// Searches for a question in every mode.
    pub(crate) async fn ask(
        &mut self,
        user: &User,
        context: &str,
        question: &str,
        is_hit: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        self.asked += 1.0;
        for (mode, hits) in MODES.into_iter().zip(&mut self.hits) {
            let body = json!({"query": question, "k": 20, "mode": mode});
            let found = user.post(&format!("{context}/search"), body).await.expect(200);
            let degraded = &found["degraded"];
            ensure!(degraded.is_null(), "a search went by words only: {degraded}");
            let rank = found["results"].as_array().context("results")?.iter().position(&is_hit);
            for (cut, hits) in CUTS.into_iter().zip(hits) {
                *hits += if rank.is_some_and(|rank| rank < cut) { 1.0 } else { 0.0 };
            }
        }
        Ok(())
    }

    fn report(&self) -> String {
        let line = |(mode, hits): (&str, &[f64; CUTS.len()])| {
            let figures = CUTS.into_iter().zip(hits);
            let figures: Vec<String> =
                figures.map(|(cut, hits)| format!("R@{cut} {:.3}", hits / self.asked)).collect();
            format!("  {mode:<8} {}", figures.join("  "))
        };
        MODES.into_iter().zip(&self.hits).map(line).collect::<Vec<_>>().join("\n")
    }
}
