//! Tests of the promises of each embedder.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use atelier_memory::{Embedder, EmbedderSettings, Embedders, Frequencies, OpenAiAccess, Settings};
use serde_json::json;
use std::path::{Path, PathBuf};

async fn one(embedder: &Embedder, text: &str) -> Vec<f32> {
    embedder.embed_texts(vec![text.to_owned()]).await.unwrap().pop().unwrap().unwrap()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// CX-01.1: the same dimension as text-embedding-3-small, with nothing installed.
#[tokio::test]
async fn builtin_embedder_needs_no_model_and_is_deterministic() {
    let embedder = Embedder::Builtin;
    let first = one(&embedder, "Deployed the payment service").await;
    assert_eq!((first.len(), embedder.dimension()), (1536, 1536));
    assert!((dot(&first, &first) - 1.0).abs() < 1e-5);
    assert_eq!(first, one(&embedder, "Deployed the payment service").await);
    let near = one(&embedder, "payment services were deployed").await;
    let far = one(&embedder, "the cat sleeps on the sofa").await;
    assert!(dot(&first, &near) > 0.5 && dot(&first, &far) < 0.2);
    // Frequencies weigh the query only, not stored vectors.
    let frequencies = Frequencies::default();
    let asked = embedder.embed_query("payment service", &frequencies).await.unwrap().unwrap();
    assert!(dot(&asked, &first) > dot(&asked, &far));
}

/// A model directory with a tokenizer and one table of vectors.
#[tokio::test]
async fn static_model_averages_the_vectors_of_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "red": 1, "blue": 2, "green": 3}, "unk_token": "[UNK]"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let table: [f32; 12] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
    let header = json!({"embeddings": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}})
        .to_string();
    let weights = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();

    let embedder =
        Embedder::open(&EmbedderSettings::Local { path: folder.path().to_owned() }).unwrap();
    assert_eq!(embedder.dimension(), 3);
    assert_eq!(one(&embedder, "Red").await, [1.0, 0.0, 0.0]);
    let half = std::f32::consts::FRAC_1_SQRT_2;
    let both = one(&embedder, "red blue").await;
    assert!((both[0] - half).abs() < 1e-6 && (both[1] - half).abs() < 1e-6 && both[2] == 0.0);
    assert_eq!(one(&embedder, "purple").await, [0.0; 3]);
}

#[test]
fn folder_without_a_model_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let error =
        Embedder::open(&EmbedderSettings::Local { path: folder.path().to_owned() }).err().unwrap();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}

/// The real weights give the similarities that the model's authors publish for these sentences.
#[tokio::test]
async fn minilm_gives_the_published_similarities() {
    let embedder = Embedder::open(&EmbedderSettings::Local { path: minilm(&[]) }).unwrap();
    assert_eq!(embedder.dimension(), 384);
    let happy = one(&embedder, "That is a happy person").await;
    for (text, expected) in [
        ("That is a happy dog", 0.695),
        ("That is a very happy person", 0.943),
        ("Today is a sunny day", 0.257),
    ] {
        let similarity = dot(&happy, &one(&embedder, text).await);
        assert!((similarity - expected).abs() < 0.002, "{text}: {similarity}");
    }
}

/// CX-02.5: 8-bit integers lose next to nothing.
#[tokio::test]
async fn quantised_minilm_gives_nearly_the_vectors_of_the_published_one() {
    let published = Embedder::open(&EmbedderSettings::Local { path: minilm(&[]) }).unwrap();
    let quantised = Embedder::minilm(&minilm(&["--int8"])).unwrap();
    assert_eq!(quantised.dimension(), 384);
    let long = "Backups are made every night and kept for a month. ".repeat(20);
    for text in [
        "The automobile would not start this morning",
        "cannot sign in",
        "Развернули сервис платежей на тестовом сервере",
        "東京の天気を調べました",
        "fn main() { println!(\"{}\", 42); }",
        &long,
        "?",
    ] {
        let similarity = dot(&one(&published, text).await, &one(&quantised, text).await);
        assert!(similarity > 0.99, "{text}: {similarity}");
    }
    // Texts that are encoded together do not change one another.
    let texts = ["one", "a longer text about something else", "three"].map(str::to_owned).to_vec();
    let together = quantised.embed_texts(texts.clone()).await.unwrap();
    for (text, vector) in texts.iter().zip(together) {
        assert!(dot(&one(&quantised, text).await, &vector.unwrap()) > 0.9999, "{text}");
    }
}

/// CX-02.5: without a key MiniLM is the default, with one OpenAI's embeddings are, and without
/// weights the built-in embedder stands in and says why.
#[test]
fn default_embedder_follows_what_is_there() {
    // The program installs it when it starts; the client of OpenAI needs it.
    drop(rustls::crypto::ring::default_provider().install_default());
    let (empty, openai) = (
        tempfile::tempdir().unwrap(),
        OpenAiAccess { base_url: "http://127.0.0.1:9/v1".into(), key: "sk-test".into() },
    );
    let name = |settings: &Settings, openai: Option<&OpenAiAccess>| {
        let embedders = Embedders::open(settings, empty.path(), openai).unwrap();
        (embedders.current().name().to_owned(), embedders.fallback().map(str::to_owned))
    };
    let with_weights = Settings { minilm: Some(minilm(&["--int8"])), ..Settings::default() };
    assert_eq!(name(&with_weights, None), ("minilm-l6-v2-int8".into(), None));
    assert_eq!(
        name(&with_weights, Some(&openai)),
        ("openai-text-embedding-3-small-1536".into(), None)
    );
    let reported = Settings { embedder: EmbedderSettings::Minilm {}, ..with_weights.clone() };
    assert_eq!(name(&reported, Some(&openai)).0, "minilm-l6-v2-int8");
    let reported = Settings { embedder: EmbedderSettings::Builtin {}, ..with_weights };
    assert_eq!(name(&reported, Some(&openai)), ("builtin-1".into(), None));

    let without = Settings { minilm: Some(empty.path().into()), ..Settings::default() };
    let (found, why) = name(&without, None);
    assert_eq!(found, "builtin-1");
    let why = why.unwrap();
    assert!(why.contains(&empty.path().display().to_string()) && why.contains("minilm"), "{why}");
    let reported = Settings { embedder: EmbedderSettings::Minilm {}, ..without };
    assert!(
        Embedders::open(&reported, empty.path(), None).is_err(),
        "nothing stands in for a choice"
    );
}

/// Other weights under the name of the model would make vectors that do not compare.
#[tokio::test]
async fn weights_that_were_changed_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(minilm(&["--int8"]).join(name), folder.path().join(name)).unwrap();
    }
    let file = folder.path().join("model.safetensors");
    let mut weights = std::fs::read(&file).unwrap();
    let last = weights.len() - 1;
    weights[last] ^= 1;
    std::fs::write(&file, weights).unwrap();
    let embedder = Embedder::minilm(folder.path()).unwrap();
    let error = embedder.embed_texts(vec!["text".into()]).await.unwrap_err().to_string();
    assert!(error.contains("scripts/minilm"), "{error}");
}

#[expect(clippy::disallowed_methods, reason = "gets what the test needs; it is no tool call")]
fn minilm(arguments: &[&str]) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/minilm");
    let output = std::process::Command::new(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}
