//! Several nodes on one database: what the others do while one of them, or an owner's writes, or the
//! database itself stands still.

use crate::{build, chat::Chat, connect::client::ProjectSetup};
use atelier_testkit::{
    Asked,
    Backend::{Postgres, Sqlite},
    Bucket, PostgresServer, Reply, ScriptedModel, Server, Sql, User, eventually,
};
use rstest::rstest;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use uuid::Uuid;

/// The first key of Atelier's advisory locks.
const LOCK_KEY: i32 = 0x0061_746c;

fn id_of(user: &User) -> Uuid {
    user.claims()["sub"].as_str().unwrap().parse().unwrap()
}

/// Keeps every node from writing for an owner until the connection is dropped.
async fn hold_owner(server: &Server, owner: Uuid) -> PgConnection {
    let id = owner.as_u128();
    let key = (id ^ (id >> 32) ^ (id >> 64) ^ (id >> 96)) as i32;
    let mut conn = server.database().connect().await;
    let lock = sqlx::query("SELECT pg_advisory_lock($1, $2)").bind(LOCK_KEY).bind(key);
    lock.execute(&mut conn).await.unwrap();
    conn
}

async fn count(conn: &mut PgConnection, query: String) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(conn).await.unwrap()
}

/// Another user whose writes use the same lane as those of `user` on every node.
fn lane_mate(server: &Server, user: &User) -> User {
    let lane = |user: &User| id_of(user).as_u128() % 4;
    let mates = (0..).map(|n| server.user(&format!("mate-{n}")));
    mates.into_iter().find(|mate| lane(mate) == lane(user)).unwrap()
}

/// The contents of a conversation's messages that a user sent, in their order.
async fn sent(chat: &Chat) -> Vec<String> {
    let messages = chat.messages().await;
    let sent = messages.iter().filter(|message| message["role"] == "user");
    sent.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

/// UP-01.1: a node that is frozen in the middle of a transaction does not keep the others from
/// writing, not even for the same owner. What it had not committed is not reported as done.
#[tokio::test]
async fn frozen_node_stops_nobody() {
    let nodes = build(Postgres).start_nodes(3).await;
    let chat = Chat::new(&nodes[0], "ann").await;
    let owner = id_of(&chat.setup.user);
    // The message takes the lock of its owner, and then waits for the row with the owner's counter.
    let mut row = nodes[0].database().connect().await;
    sqlx::raw_sql("BEGIN").execute(&mut row).await.unwrap();
    let lock = format!("SELECT 1 FROM users WHERE id = '{owner}' FOR UPDATE");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut row).await.unwrap();
    let frozen = chat.clone();
    let lost = tokio::spawn(async move { frozen.post_message("lost", Some("coder")).await });
    let mut watch = nodes[0].database().connect().await;
    let mut state = async |query: &str| {
        let query = format!(
            "SELECT COUNT(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'atelier' AND {query}"
        );
        count(&mut watch, query).await
    };
    eventually("the message waits for the row", async || {
        (state("wait_event_type = 'Lock' AND wait_event <> 'advisory'").await > 0).then_some(())
    })
    .await;
    nodes[0].freeze();
    sqlx::raw_sql("ROLLBACK").execute(&mut row).await.unwrap();

    let there = chat.at(&nodes[1]);
    eventually("the owner's message is accepted elsewhere", async || {
        (there.post_message("kept", Some("coder")).await.status == 202).then_some(())
    })
    .await;
    let bob = Chat::new(&nodes[2], "bob").await;
    bob.send("hello", Some("coder")).await;
    assert_eq!(sent(&there).await, ["kept"]);

    nodes[0].thaw();
    let answer = lost.await.unwrap();
    assert_eq!(answer.problem(), (503, "store_unavailable"));
    assert!(answer.headers.contains_key("retry-after"));
    // The node connects again by itself.
    eventually("the node accepts messages again", async || {
        (chat.post_message("back", Some("coder")).await.status == 202).then_some(())
    })
    .await;
    assert_eq!(sent(&there).await, ["kept", "back"]);
}

/// UP-01.2: while the writes of one owner cannot begin, other owners are served, in the same lane of
/// the same node too. The blocked request ends with 503, and nothing of it is done.
#[tokio::test]
async fn blocked_owner_delays_nobody() {
    let server = build(Postgres).start().await;
    let ann = Chat::new(&server, "ann").await;
    let bob = Chat::of(ProjectSetup::new(lane_mate(&server, &ann.setup.user)).await).await;
    let held = hold_owner(&server, id_of(&ann.setup.user)).await;
    let (blocked, stop) = (ann.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let refused = tokio::spawn(async move {
        let mut answers = Vec::new();
        while answers.is_empty() || !stopped.load(Ordering::Relaxed) {
            answers.push(blocked.post_message("blocked", Some("coder")).await);
        }
        answers
    });
    for n in 0..3 {
        bob.ask(&format!("question {n}"), Some("coder")).await;
    }
    stop.store(true, Ordering::Relaxed);
    for answer in refused.await.unwrap() {
        assert_eq!(answer.problem(), (503, "store_unavailable"));
        assert!(answer.headers.contains_key("retry-after"));
    }
    drop(held);
    eventually("the owner is served again", async || {
        (ann.post_message("again", Some("coder")).await.status == 202).then_some(())
    })
    .await;
    assert_eq!(sent(&ann).await, ["again"]);
}

/// UP-01.2: a node that recovers the tasks of a dead node does not wait for owners whose writes are
/// blocked.
#[tokio::test]
async fn recovery_waits_for_no_blocked_owner() {
    let model = ScriptedModel::start(|_: &Asked| Reply::silence()).await;
    let mut dying = build(Postgres).model(&model).start().await;
    let mut owners = Vec::new();
    for name in ["ann", "bob", "cid", "dan"] {
        let chat = Chat::new(&dying, name).await;
        chat.send("stay", Some("coder")).await;
        owners.push(id_of(&chat.setup.user));
    }
    model.answering(4).await;
    let mut sql = dying.database().connect().await;
    let dead: Uuid = sqlx::query_scalar("SELECT id FROM nodes").fetch_one(&mut sql).await.unwrap();
    let _held = hold_owner(&dying, owners[0]).await;
    let _other = dying.second_node().await;
    dying.kill();
    eventually("the other owners' tasks are recovered", async || {
        let query = format!(
            "SELECT COUNT(*) FROM tasks WHERE node = '{dead}' AND user_id <> '{}'",
            owners[0]
        );
        (count(&mut sql, query).await == 0).then_some(())
    })
    .await;
    let held = format!("SELECT COUNT(*) FROM tasks WHERE node = '{dead}'");
    assert_eq!(count(&mut sql, held).await, 1, "the blocked owner's task waits");
}

/// UP-01.3: an upload is answered when it is committed. It does not wait until its readable copy is
/// recorded.
#[tokio::test]
async fn upload_does_not_wait_for_its_readable_copy() {
    let bucket = Bucket::new();
    let server = build(Postgres)
        .with("OBJECT_STORE", bucket.url())
        .with("FILES__PREFIX", &bucket.prefix)
        .start()
        .await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    // Recording that a copy was made waits for a lock, which this test holds.
    let mut held = server.database().connect().await;
    let prepare = "SELECT pg_advisory_lock(1);
        CREATE FUNCTION wait_for_lock() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END';
        CREATE TRIGGER held BEFORE DELETE ON stale_copies
            FOR EACH ROW EXECUTE FUNCTION wait_for_lock()";
    sqlx::raw_sql(prepare).execute(&mut held).await.unwrap();
    ann.upload(&workspace, "notes.txt", "one").await.expect(201);
    let mut sql = server.sql().await;
    assert_eq!(sql.count("SELECT COUNT(*) FROM stale_copies").await, 1);
    drop(held);
    eventually("the copies are made", async || {
        (sql.count("SELECT COUNT(*) FROM stale_copies").await == 0).then_some(())
    })
    .await;
}

/// UP-01.3: nodes that upload into one conversation at the same time leave each other's copies
/// alone, and every copy ends as the newest version.
#[tokio::test]
async fn nodes_leave_each_others_copies_alone() {
    let bucket = Bucket::new();
    let one = build(Postgres)
        .with("OBJECT_STORE", bucket.url())
        .with("FILES__PREFIX", &bucket.prefix)
        .start()
        .await;
    let two = one.second_node().await;
    let ann = one.user("ann");
    let (workspace, there) = (ann.workspace().await, ann.at(&two));
    let uploads = (0..24).map(|n| {
        let user = if n % 2 == 0 { &ann } else { &there };
        let workspace = &workspace;
        async move {
            let name = format!("file-{}.txt", n / 4);
            user.upload(workspace, &name, format!("upload {n}")).await.expect(201)
        }
    });
    let uploaded = futures::future::join_all(uploads).await;
    let mut sql = one.sql().await;
    eventually("every copy is made", async || {
        (sql.count("SELECT COUNT(*) FROM stale_copies").await == 0).then_some(())
    })
    .await;
    let conversation = workspace.rsplit('/').next().unwrap();
    for file in uploaded.iter().map(|answer| &answer["files"][0]) {
        let (id, path) = (file["file_id"].as_str().unwrap(), file["file_path"].as_str().unwrap());
        let (_, _, content) = ann.download(&format!("{workspace}/files/{id}")).await;
        let copy = bucket.read(&format!("{}{conversation}/{path}", bucket.prefix)).await;
        assert_eq!(copy, Some(content.unwrap()), "{path}");
    }
}

/// UP-01.4: nodes that start at the same time on an empty database all start, and one of them
/// creates the first project.
#[tokio::test]
async fn nodes_start_together_on_an_empty_database() {
    let nodes = build(Postgres).start_nodes(3).await;
    let mut sql = nodes[0].sql().await;
    assert_eq!(sql.count("SELECT COUNT(*) FROM projects").await, 1);
    assert_eq!(sql.count("SELECT COUNT(*) FROM sign_in_codes").await, 1);
    let links = nodes.iter().filter(|node| node.greeting().contains("#sign-in=")).count();
    assert_eq!(links, 1, "one node prints the link that signs in");
    for node in &nodes {
        node.user("ann").get("/my/projects/").await.expect(200);
    }
}

/// A node never opens more connections than the setting allows.
#[tokio::test]
async fn connections_to_postgres_are_limited() {
    let server = build(Postgres).with("DATABASE_CONNECTIONS", 8).start().await;
    let ann = server.user("ann");
    let reads = (0..64).map(|_| ann.get("/my/projects/"));
    for answer in futures::future::join_all(reads).await {
        answer.expect(200);
    }
    let mut sql = server.sql().await;
    let open = "SELECT COUNT(*) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'atelier'";
    assert!(sql.count(open).await <= 8);
}

/// UP-02.1: while PostgreSQL is frozen or down, requests end with 503 and `Retry-After`. When it is
/// back, the server goes on by itself, and exactly what was acknowledged is stored.
#[tokio::test]
async fn requests_end_while_postgres_is_frozen_or_down() {
    let mut postgres = PostgresServer::start().await;
    // The testkit makes no database of its own for SQLite.
    let server = build(Sqlite).with("DATABASE_URL", postgres.url()).start().await;
    let chat = Chat::new(&server, "ann").await;
    chat.send("before", Some("coder")).await;

    postgres.freeze();
    refuses(&chat, "while frozen").await;
    postgres.thaw();
    accepts(&chat, "thawed").await;

    postgres.stop();
    refuses(&chat, "while down").await;
    postgres.restart().await;
    accepts(&chat, "restarted").await;
    assert_eq!(sent(&chat).await, ["before", "thawed", "restarted"]);
}

/// Asserts that reads and writes end with a problem that says when to try again.
async fn refuses(chat: &Chat, content: &str) {
    let (write, read) = tokio::join!(
        chat.post_message(content, Some("coder")),
        chat.setup.user.get(&chat.setup.project)
    );
    for answer in [write, read] {
        assert_eq!(answer.problem(), (503, "store_unavailable"));
        assert!(answer.headers.contains_key("retry-after"));
    }
}

async fn accepts(chat: &Chat, content: &str) {
    eventually("messages are accepted again", async || {
        let answer = chat.post_message(content, Some("coder")).await;
        assert!([202, 503].contains(&answer.status.as_u16()), "{}", answer.body);
        (answer.status == 202).then_some(())
    })
    .await;
}

/// Old tasks are removed with their journals. Their messages stay, and so do newer tasks.
#[rstest]
#[tokio::test]
async fn old_tasks_are_removed(#[values(Sqlite, Postgres)] backend: atelier_testkit::Backend) {
    let server = build(backend).with("WORK__KEEP_DAYS", 0).start().await;
    let chat = Chat::new(&server, "ann").await;
    let answer: Value = chat.ask("hello", Some("coder")).await;
    assert!(answer["content"].is_string(), "{answer}");
    let messages = chat.messages().await.len();
    let mut sql = server.sql().await;
    assert_eq!(count_tasks(&mut sql).await, 1);
    // The sweep runs at the start and every hour.
    let server = server.restart().await;
    let chat = chat.at(&server);
    eventually("the task is removed", async || (count_tasks(&mut sql).await == 0).then_some(()))
        .await;
    assert_eq!(sql.count("SELECT COUNT(*) FROM task_steps").await, 0);
    assert_eq!(chat.messages().await.len(), messages);
}

async fn count_tasks(sql: &mut Sql) -> i64 {
    sql.count("SELECT COUNT(*) FROM tasks").await
}
