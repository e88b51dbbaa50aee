//! Rows as an older version wrote them, on both databases.

use super::*;
use crate::{NewAgent, Owned, OwnedAgent, Settings, db::sql, rows::interactions::write_vectors};
use atelier_core::{
    AgentConfig, AgentName, Filter, ProjectName,
    gate::CallStatus,
    policy::verdict::{Judgement, Verdict},
    remembered::WITHHELD,
};
use atelier_testkit::{Backend, Database};
use chrono::Utc;
use rstest::rstest;
use serde_json::{Value, json};

struct Fixture {
    store: Store,
    settings: Settings,
    owned: Owned,
    agent: AgentId,
    _data: tempfile::TempDir,
    _database: Option<Database>,
}

impl Fixture {
    async fn open(backend: Backend) -> Self {
        let data = tempfile::tempdir().expect("a folder");
        let database = match backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Database::create().await),
        };
        let database_url = database.as_ref().map(Database::url);
        let settings =
            Settings { data: data.path().to_owned(), database_url, ..Default::default() };
        let store = Store::open(&settings).await.expect("a store");
        let (owner, tenant) = (UserId(Uuid::now_v7()), "acme".parse().expect("a tenant"));
        store.ensure_user(owner, &tenant).await.expect("a user");
        let name = AgentName::try_from("coder").expect("a name");
        let agent = NewAgent { name, config: AgentConfig::default() };
        let name = ProjectName::try_from("shop").expect("a name");
        let (kind, more) = (Default::default(), Default::default());
        let project = store.create_project(owner, tenant, name, kind, more, vec![agent]).await;
        let owned = store.owned_by(owner, project.expect("a project").id).await.expect("access");
        let agent = store.ensure_collections(&owned).await.expect("collections")[0].agent;
        Self { store, settings, owned, agent, _data: data, _database: database }
    }

    /// Inserts an interaction with its terms and a vector, and returns its number.
    async fn insert_old(&self, kind: &str, text: &str, session: &str, metadata: Value) -> i64 {
        let mut conn = self.store.db.connect().await.expect("a connection");
        let (seq,): (i64,) = sql("INSERT INTO interactions
             (agent_id, id, type, text, success, error_details, at, session_id, metadata)
             VALUES ($1, $2, $3, $4, TRUE, NULL, $5, $6, $7) RETURNING seq")
        .bind(self.agent.0)
        .bind(Uuid::now_v7())
        .bind(kind)
        .bind(text)
        .bind(Utc::now().timestamp_micros())
        .bind(session)
        .bind(metadata.to_string())
        .fetch_one(&mut conn)
        .await
        .expect("an interaction");
        let terms = search_terms(text);
        insert_terms(&mut conn, &[(seq, self.agent, &terms)]).await.expect("terms");
        write_vectors(&mut conn, &[(seq, "old", &[1.0, 2.0])]).await.expect("a vector");
        seq
    }

    async fn insert_call(&self, session: ConversationId, rule: &str, content: &str) -> CallId {
        let judgement = Judgement::new(Verdict::High, rule, "why");
        let (id, params) = (CallId(Uuid::now_v7()), json!({"path": "notes.txt"}));
        let project = self.owned.project;
        let mut call =
            GatedCall::new(id, project, "read_file".into(), params, &judgement, Utc::now());
        call.status = CallStatus::Completed;
        call.agent_id = Some(self.agent);
        call.session_id = Some(session);
        let result = json!({"success": true, "content": content});
        call.result = Some(serde_json::from_value(result).expect("an outcome"));
        let mut conn = self.store.db.connect().await.expect("a connection");
        sql("INSERT INTO tool_calls (id, project_id, status, record)
             VALUES ($1, $2, 'completed', $3)")
        .bind(id.0)
        .bind(project.0)
        .bind(json(&call))
        .execute(&mut conn)
        .await
        .expect("a call");
        id
    }

    fn owned_agent(&self) -> OwnedAgent {
        OwnedAgent::new(self.agent, self.owned.owner)
    }

    async fn texts(&self) -> Vec<String> {
        let everything = Filter::default();
        let page =
            self.store.interaction_page(self.owned_agent(), &everything, None, 1000, true).await;
        let interactions = page.expect("a page").interactions;
        interactions.into_iter().map(|(interaction, _)| interaction.text).collect()
    }

    async fn count(&self, text: &'static str) -> i64 {
        let mut conn = self.store.db.connect().await.expect("a connection");
        let (count,): (i64,) = sql(text).fetch_one(&mut conn).await.expect("a number");
        count
    }
}

/// By the rating of the call, by the path in the text, by a mask, and by what the conversation has
/// seen. A restart in the middle changes nothing.
#[rstest]
#[tokio::test]
async fn old_memories_are_cleaned_once_and_resumed_after_a_restart(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let mut fixture = Fixture::open(backend).await;
    let session = ConversationId(Uuid::now_v7());
    let call = fixture.insert_call(session, "file.secret", "GREETING=zanzibar").await;
    let session = session.to_string();
    let about = json!({"tool_id": call.to_string(), "tool_name": "read_file"});
    let link = "read_file {\"path\":\"notes.txt\"}\n→ {\"content\":\"GREETING=zanzibar\"}";
    let env = "read_file {\"path\":\".env\"}\n→ {\"content\":\"GREETING=timbuktu\"}";
    fixture.insert_old("agent_response", "It says zanzibar.", &session, json!({})).await;
    fixture.insert_old("tool_call", link, &session, about).await;
    fixture.insert_old("tool_call", env, "elsewhere", json!({})).await;
    fixture.insert_old("user_message", "password: hunter2", "elsewhere", json!({})).await;
    let plain =
        fixture.insert_old("user_message", "the parser works", "elsewhere", json!({})).await;
    for number in 0..INTERACTIONS {
        let text = format!("ordinary work number {number}");
        fixture.insert_old("task_execution", &text, "elsewhere", json!({})).await;
    }
    // Before anything is cleaned, reading already hides what a text itself shows.
    let shown = fixture.texts().await.join("\n");
    assert!(!shown.contains("timbuktu") && !shown.contains("hunter2"), "{shown}");

    let again = fixture.store.clean_memory().await.expect("the calls");
    assert!(again && fixture.count("SELECT COUNT(*) FROM withheld_calls").await == 1);
    assert!(fixture.store.clean_memory().await.expect("the first interactions"));
    fixture.store.close().await;
    fixture.store = Store::open(&fixture.settings).await.expect("opened again");
    let position = fixture.store.cleanup_position().await.expect("a position");
    assert_eq!(position.changed, BTreeSet::from([fixture.agent]));
    while fixture.store.clean_memory().await.expect("cleaned") {}

    let expected = [
        "It says [masked: secret].".to_owned(),
        format!("read_file {{\"path\":\"notes.txt\"}}\n→ {WITHHELD}"),
        format!("read_file {{\"path\":\".env\"}}\n→ {WITHHELD}"),
        "password: [masked: password]".to_owned(),
        "the parser works".to_owned(),
    ];
    assert_eq!(fixture.texts().await[..5], expected);
    for secret in ["zanzibar", "timbuktu", "hunter2"] {
        let found =
            fixture.store.search_text(fixture.owned_agent(), secret, &Filter::default(), 10).await;
        assert_eq!(found.expect("a search"), [], "{secret}");
    }
    let parser =
        fixture.store.search_text(fixture.owned_agent(), "parser", &Filter::default(), 10).await;
    assert_eq!(parser.expect("a search").len(), 1);
    // Vectors of changed texts are gone, others stay.
    let vectors = fixture.count("SELECT COUNT(*) FROM interaction_vectors").await;
    assert_eq!(vectors, INTERACTIONS as i64 + 1);
    let position = fixture.store.cleanup_position().await.expect("a position");
    assert!(position.changed.is_empty() && position.seq > plain, "{position:?}");

    // What an older node still writes is found by the next pass.
    fixture.insert_old("tool_call", env, "elsewhere", json!({})).await;
    while fixture.store.clean_memory().await.expect("cleaned") {}
    let dirty = "SELECT COUNT(*) FROM interactions WHERE text LIKE '%timbuktu%'";
    assert_eq!(fixture.count(dirty).await, 0);
    fixture.store.close().await;
}
