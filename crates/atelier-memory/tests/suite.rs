//! The cases that both engines pass: Qdrant Edge in this process, and a real Qdrant server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use Engine::{Edge, Server};
use atelier_core::{AgentId, Filter, Interaction, InteractionId, InteractionType};
use atelier_memory::{
    CollectionKey, Embedder, Frequencies, Index, IndexError, IndexQuery, Point, lexical_document,
    lexical_query,
};
use atelier_testkit::qdrant_url;
use chrono::{DateTime, TimeDelta, Utc};
use rstest::rstest;
use std::time::Duration;
use uuid::Uuid;

#[derive(Debug, Clone, Copy)]
enum Engine {
    Edge,
    Server,
}

const DIMENSION: usize = 1536;

/// An index with one collection.
struct Fixture {
    index: Index,
    key: CollectionKey,
    _folder: tempfile::TempDir,
}

async fn open(engine: Engine) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let index = match engine {
        Edge => Index::embedded(folder.path(), 4).unwrap(),
        Server => Index::server(&qdrant_url(), None).unwrap(),
    };
    let key = new_key(&index);
    index.create(&key, DIMENSION).await.unwrap();
    Fixture { index, key, _folder: folder }
}

/// A new agent. On the server it shares a collection with the agents of the other tests.
fn new_key(index: &Index) -> CollectionKey {
    let agent = AgentId(Uuid::now_v7());
    CollectionKey {
        agent,
        name: format!("user{}_{agent}_test_context", Uuid::nil()),
        place: Some(index.place(agent, "test", DIMENSION)),
    }
}

fn start() -> DateTime<Utc> {
    DateTime::from_timestamp(1_700_000_000, 0).unwrap()
}

/// The nth interaction: an hour after the previous one, every third failed, with all types in turn.
fn interaction(number: usize, text: &str) -> Interaction {
    Interaction {
        pinned: false,
        id: InteractionId(Uuid::from_u128(number as u128 + 1)),
        text: text.into(),
        interaction_type: InteractionType::ALL[number % 4],
        success: !number.is_multiple_of(3),
        error_details: None,
        timestamp: start() + TimeDelta::hours(number as i64),
        task_id: Some(format!("task-{}", number % 2)),
        session_id: (number % 2 == 1).then(|| "session".into()),
        metadata: Default::default(),
    }
}

async fn points(texts: &[&str]) -> Vec<Point> {
    let vectors = Embedder::Builtin
        .embed_texts(texts.iter().map(ToString::to_string).collect())
        .await
        .unwrap();
    let point = |(number, (text, vector)): (usize, (&&str, Option<Vec<f32>>))| Point {
        interaction: interaction(number, text),
        vector,
        words: lexical_document(text),
    };
    texts.iter().zip(vectors).enumerate().map(point).collect()
}

const TEXTS: [&str; 8] = [
    "Deployed the payment service to the staging cluster",
    "The user prefers tabs over spaces",
    "Tests of the parser failed: unexpected end of input",
    "Развернули сервис платежей на тестовом сервере",
    "東京の天気を調べました",
    "Refactored the parser and its tests",
    "Wrote documentation for the payment API",
    "The deployment of the parser was rolled back",
];

impl Fixture {
    async fn fill(&self) {
        self.index.apply(&self.key, points(&TEXTS).await, vec![]).await.unwrap();
    }

    /// The numbers of the interactions that a search finds, by vector and by words.
    async fn find(&self, text: &str, filter: Filter) -> (Vec<usize>, Vec<usize>) {
        let vector = Embedder::Builtin.embed_query(text, &Frequencies::default()).await.unwrap();
        let ask = IndexQuery { vector, words: Some(lexical_query(text)), filter, limit: 10 };
        let answer = self.index.search(&self.key, ask).await.unwrap();
        let numbers = |list: &[(Uuid, f32)]| {
            list.iter().map(|(id, _)| id.as_u128() as usize - 1).collect::<Vec<_>>()
        };
        (numbers(&answer.dense), numbers(&answer.lexical))
    }

    async fn end(self) {
        self.index.drop(&self.key).await.unwrap();
    }
}

/// CX-03.1
#[rstest]
#[tokio::test]
async fn dense_and_lexical_search_find_words_in_three_languages(
    #[values(Edge, Server)] engine: Engine,
) {
    let memory = open(engine).await;
    memory.fill().await;
    for (text, best) in [
        ("deploying payments", 0),
        ("does the user like tabs?", 1),
        ("где развернут сервис платежей", 3),
        ("東京の天気", 4),
    ] {
        let (dense, lexical) = memory.find(text, Filter::default()).await;
        assert_eq!((dense[0], lexical[0]), (best, best), "{text}");
        assert_eq!(dense.len(), TEXTS.len(), "the dense search ranks everything");
    }
    memory.end().await;
}

/// CX-03.2 CX-03.3 CX-03.4
#[rstest]
#[tokio::test]
async fn filters_apply_to_dense_and_lexical_search(#[values(Edge, Server)] engine: Engine) {
    let memory = open(engine).await;
    memory.fill().await;
    let hour = |hours: i64| Some(start() + TimeDelta::hours(hours));
    let tool_calls = Filter { types: vec![InteractionType::ToolCall], ..Filter::default() };
    for (filter, allowed) in [
        (tool_calls.clone(), vec![1, 5]),
        (Filter { success: Some(false), ..Filter::default() }, vec![0, 3, 6]),
        (Filter { from: hour(2), to: hour(5), ..Filter::default() }, vec![2, 3, 4, 5]),
        (Filter { task_id: Some("task-0".into()), ..Filter::default() }, vec![0, 2, 4, 6]),
        (Filter { session_id: Some("session".into()), ..Filter::default() }, vec![1, 3, 5, 7]),
        (Filter { success: Some(true), to: hour(4), ..tool_calls.clone() }, vec![1]),
        (Filter { task_id: Some("none".into()), ..Filter::default() }, vec![]),
    ] {
        let (mut dense, lexical) =
            memory.find("the parser deployment payment tabs", filter.clone()).await;
        dense.sort_unstable();
        assert_eq!(dense, allowed, "{filter:?}");
        assert!(lexical.iter().all(|number| allowed.contains(number)), "{filter:?}: {lexical:?}");
    }
    memory.end().await;
}

/// Applying a point twice stores it once, and removing it twice is no error.
#[rstest]
#[tokio::test]
async fn applying_twice_changes_nothing(#[values(Edge, Server)] engine: Engine) {
    let memory = open(engine).await;
    memory.fill().await;
    memory.fill().await;
    assert_eq!(memory.index.count(&memory.key).await.unwrap(), 8);
    let gone = vec![Uuid::from_u128(1), Uuid::from_u128(2)];
    for _ in 0..2 {
        memory.index.apply(&memory.key, vec![], gone.clone()).await.unwrap();
        assert_eq!(memory.index.count(&memory.key).await.unwrap(), 6);
    }
    let (dense, lexical) = memory.find("payment service tabs", Filter::default()).await;
    assert!(
        !dense.contains(&0)
            && !dense.contains(&1)
            && !lexical.contains(&0)
            && !lexical.contains(&1)
    );
    memory.end().await;
}

/// A text that the embedder refused has no vector and is found by its words.
#[rstest]
#[tokio::test]
async fn interaction_without_a_vector_is_found_by_its_words(
    #[values(Edge, Server)] engine: Engine,
) {
    let memory = open(engine).await;
    let mut points = points(&TEXTS).await;
    points[1].vector = None;
    memory.index.apply(&memory.key, points, vec![]).await.unwrap();
    let (dense, lexical) = memory.find("tabs over spaces", Filter::default()).await;
    assert!(!dense.contains(&1));
    assert_eq!(lexical, [1]);
    memory.end().await;
}

/// CX-01.1 CX-01.2 CX-01.3
#[rstest]
#[tokio::test]
async fn collections_are_created_with_field_indexes_and_dropped_whole(
    #[values(Edge, Server)] engine: Engine,
) {
    let memory = open(engine).await;
    let (index, key) = (&memory.index, &memory.key);
    assert!(index.exists(key).await.unwrap());
    memory.fill().await;
    let indexed = index.indexed_fields(key).await.unwrap();
    assert_eq!(indexed, ["interaction_type", "session_id", "success", "task_id", "timestamp"]);
    assert!(index.size(key, DIMENSION).await.unwrap() > 8 * 1536);

    // Creating the collection again empties it.
    index.create(key, DIMENSION).await.unwrap();
    assert_eq!(index.count(key).await.unwrap(), 0);

    // Only a folder is the agent's own; a collection of a server is shared.
    let here = |names: Vec<String>| names.iter().any(|name| name.contains(&key.agent.to_string()));
    assert_eq!(here(index.collections().await.unwrap()), matches!(engine, Edge));
    for _ in 0..2 {
        index.drop(key).await.unwrap();
        assert!(!index.exists(key).await.unwrap());
        assert!(!here(index.collections().await.unwrap()));
    }
    assert!(matches!(index.count(key).await, Err(IndexError::CollectionMissing)));
    let ask = IndexQuery {
        vector: Some(vec![1.0; DIMENSION]),
        words: None,
        filter: Filter::default(),
        limit: 1,
    };
    assert!(matches!(index.search(key, ask).await, Err(IndexError::CollectionMissing)));
}

/// CX-08.1 CX-08.3
#[rstest]
#[tokio::test]
async fn collections_share_nothing(#[values(Edge, Server)] engine: Engine) {
    let memory = open(engine).await;
    memory.fill().await;
    let other = new_key(&memory.index);
    memory.index.create(&other, DIMENSION).await.unwrap();
    assert_eq!(memory.index.count(&other).await.unwrap(), 0);
    memory.index.apply(&other, points(&TEXTS[..2]).await, vec![]).await.unwrap();
    memory.index.drop(&other).await.unwrap();
    assert_eq!(memory.index.count(&memory.key).await.unwrap(), 8);
    memory.end().await;
}

/// CX-08.1: agents of one embedder share a collection of a server, and even points of the same id
/// stay apart.
#[tokio::test]
async fn agents_share_a_collection_of_the_server_and_nothing_in_it() {
    let memory = open(Server).await;
    memory.fill().await;
    let before = memory.index.collections().await.unwrap().len();
    let others: Vec<CollectionKey> = (0..50).map(|_| new_key(&memory.index)).collect();
    for other in &others {
        memory.index.create(other, DIMENSION).await.unwrap();
        memory.index.apply(other, points(&TEXTS[..2]).await, vec![]).await.unwrap();
    }
    assert_eq!(others[0].place, memory.key.place);
    // Tests that run at the same time make collections for other embedders at most.
    assert!(memory.index.collections().await.unwrap().len() < before + 50);
    let ask = |key: &CollectionKey| {
        let words = Some(lexical_query("payment tabs parser"));
        let ask = IndexQuery { vector: None, words, filter: Filter::default(), limit: 100 };
        let (index, key) = (memory.index.clone(), key.clone());
        async move { index.search(&key, ask).await.unwrap().lexical.len() }
    };
    assert_eq!((ask(&memory.key).await, ask(&others[7]).await), (6, 2));
    // If one agent forgets an interaction, the others keep it.
    memory.index.apply(&others[7], vec![], vec![Uuid::from_u128(1)]).await.unwrap();
    memory.index.drop(&others[8]).await.unwrap();
    assert_eq!(memory.index.count(&memory.key).await.unwrap(), 8);
    assert_eq!(memory.index.count(&others[7]).await.unwrap(), 1);
    assert_eq!(memory.index.count(&others[9]).await.unwrap(), 2);
    for other in &others {
        memory.index.drop(other).await.unwrap();
    }
    memory.end().await;
}

/// A damaged id stops nothing: the index gets a new one, and its collections are found to be in
/// another index.
#[rstest]
#[case(b"")]
#[case(b"\xff\xfe\x00")]
#[case(b"edge-nonsense")]
#[tokio::test]
async fn damaged_id_of_the_index_is_replaced(#[case] damage: &[u8]) {
    let Fixture { index, key: _, _folder: folder } = open(Edge).await;
    let old = index.id().unwrap().to_owned();
    index.close().await;
    drop(index);
    std::fs::write(folder.path().join("id"), damage).unwrap();
    let index = Index::embedded(folder.path(), 4).unwrap();
    let new = index.id().unwrap().to_owned();
    assert!(new != old && new.starts_with("edge-"), "{new}");
    index.close().await;
    drop(index);
    assert_eq!(Index::embedded(folder.path(), 4).unwrap().id(), Some(new.as_str()));
}

/// Files that the engine cannot read are reported as damage, which the indexer answers by
/// rebuilding the collection.
#[tokio::test]
async fn damaged_collection_is_reported_and_created_anew() {
    let Fixture { index, key, _folder: folder } = open(Edge).await;
    index.apply(&key, points(&TEXTS).await, vec![]).await.unwrap();
    index.flush(&key).await.unwrap();
    index.close().await;
    drop(index);
    let collection = folder.path().join(key.place.clone().unwrap());
    let generation = std::fs::read_to_string(collection.join("generation")).unwrap();
    std::fs::remove_dir_all(collection.join(&generation).join("segments")).unwrap();
    std::fs::write(collection.join(&generation).join("segments"), "not a folder").unwrap();
    let index = Index::embedded(folder.path(), 4).unwrap();
    let counted = index.count(&key).await;
    assert!(matches!(counted, Err(IndexError::Damaged(_))), "{counted:?}");
    index.create(&key, DIMENSION).await.unwrap();
    assert_eq!(index.count(&key).await.unwrap(), 0);
}

/// With more collections than may be open at a time, the least recently used are closed and nothing
/// is lost.
#[tokio::test]
async fn closed_collections_open_again() {
    let memory = open(Edge).await;
    memory.fill().await;
    let others: Vec<CollectionKey> = (0..10).map(|_| new_key(&memory.index)).collect();
    for key in &others {
        memory.index.create(key, DIMENSION).await.unwrap();
        memory.index.apply(key, points(&TEXTS[..3]).await, vec![]).await.unwrap();
    }
    for key in &others {
        assert_eq!(memory.index.count(key).await.unwrap(), 3);
    }
    assert_eq!(memory.index.count(&memory.key).await.unwrap(), 8);
}

/// Applied changes, including removals, survive closing and reopening the index.
#[tokio::test]
async fn embedded_index_keeps_applied_changes() {
    let Fixture { index, key, _folder: folder } = open(Edge).await;
    index.apply(&key, points(&TEXTS).await, vec![]).await.unwrap();
    index.apply(&key, vec![], vec![Uuid::from_u128(1)]).await.unwrap();
    let id = index.id().unwrap().to_owned();
    let second = Index::embedded(folder.path(), 4).unwrap();
    assert_eq!(second.id(), None, "a folder belongs to one index at a time");
    assert!(matches!(second.count(&key).await, Err(IndexError::Unreachable(_))));
    index.close().await;
    drop(index);
    let again = Index::embedded(folder.path(), 4).unwrap();
    assert_eq!(again.id(), Some(id.as_str()));
    assert_eq!(again.count(&key).await.unwrap(), 7);
}

/// Building the search graph changes no results.
#[tokio::test]
async fn optimizing_keeps_search_results() {
    let memory = open(Edge).await;
    let texts: Vec<String> = (0..6000)
        .map(|n| format!("note {n} about topic {} and place {}", n % 97, n % 31))
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (turn, batch) in points(&texts).await.chunks(500).enumerate() {
        let batch = batch.iter().cloned().enumerate().map(|(at, mut point)| {
            point.interaction.id = InteractionId(Uuid::from_u128((turn * 500 + at) as u128 + 1));
            point
        });
        memory.index.apply(&memory.key, batch.collect(), vec![]).await.unwrap();
    }
    let before = memory.find("note 4242 about topic 71", Filter::default()).await;
    assert!(!memory.index.is_optimized(&memory.key).await.unwrap(), "none of them is in a graph");
    memory.index.optimize(&memory.key).await.unwrap();
    assert!(memory.index.is_optimized(&memory.key).await.unwrap());
    let after = memory.find("note 4242 about topic 71", Filter::default()).await;
    assert_eq!((before.0[0], before.1[0]), (4242, 4242));
    assert_eq!((after.0[0], after.1[0]), (4242, 4242));
    assert_eq!(memory.index.count(&memory.key).await.unwrap(), 6000);
    memory.index.apply(&memory.key, vec![], vec![Uuid::from_u128(4243)]).await.unwrap();
    assert_eq!(memory.index.count(&memory.key).await.unwrap(), 5999);
}

#[tokio::test]
async fn unreachable_server_is_reported() {
    let index = Index::server("http://127.0.0.1:9", None).unwrap();
    let answer = index.ping(Duration::from_secs(5)).await;
    assert!(matches!(answer, Err(IndexError::Unreachable(_))), "{answer:?}");
}
