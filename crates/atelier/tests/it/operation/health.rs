//! What `/ready`, the health of a worker space, `atelier doctor` and the metrics say when something
//! is wrong.

use super::{part, ready};
use crate::{build, start};
use atelier_testkit::{
    Backend::{self, Postgres, Sqlite},
    Bucket, Harm, Hostile, Server, Sql, User, eventually, qdrant_url,
};
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

async fn health(user: &User, project: &str) -> Value {
    user.get(&format!("{project}/worker-space")).await.expect(200)["health"].clone()
}

async fn becomes_healthy(server: &Server) {
    eventually("the server is healthy", async || {
        let (status, health) = ready(server).await;
        (status == 200 && health["status"] == "healthy").then_some(())
    })
    .await;
}

/// OP-02.1 WS-10.2: while another program holds the lock of SQLite, the server is unhealthy, because
/// nothing can be written. Reads are served.
#[tokio::test]
async fn locked_database_is_unhealthy() {
    let server = start(Sqlite).await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    becomes_healthy(&server).await;
    // Opening a worker space writes, so it is opened before.
    health(&ann, &project).await;
    let mut sql = server.sql().await;
    sql.hold_agents().await;
    let expected =
        json!({"name": "store", "status": "unhealthy", "reason": "sqlite: the database is locked"});
    eventually("the node is not ready", async || {
        let (status, health) = ready(&server).await;
        (status == 503 && *part(&health, "store") == expected).then_some(())
    })
    .await;
    let health = health(&ann, &project).await;
    assert_eq!((&health["status"], part(&health, "store")), (&json!("unhealthy"), &expected));
    ann.get(&project).await.expect(200);
    sql.release().await;
    becomes_healthy(&server).await;
}

/// OP-02.1 WS-10.2: a PostgreSQL that only reads is unhealthy, although it answers.
#[tokio::test]
async fn read_only_database_is_unhealthy() {
    let server = start(Postgres).await;
    let ann = server.user("ann");
    ann.project("shop").await;
    becomes_healthy(&server).await;
    let mut conn = server.database().connect().await;
    let set = async |conn: &mut _, value: &str| {
        let name: String = sqlx::query_scalar("SELECT current_database()::text")
            .fetch_one(&mut *conn)
            .await
            .unwrap();
        let set = format!(
            "SET default_transaction_read_only = off;
             ALTER DATABASE {name} SET default_transaction_read_only = {value};
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'atelier'"
        );
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *conn).await.unwrap();
    };
    set(&mut conn, "on").await;
    eventually("it says that it cannot write", async || {
        let (status, health) = ready(&server).await;
        let reason = "postgres: the database is read-only";
        (status == 503 && part(&health, "store")["reason"] == reason).then_some(())
    })
    .await;
    set(&mut conn, "off").await;
    becomes_healthy(&server).await;
    ann.project("another").await;
}

/// Overwrites the first page of a table, as a failing disk does.
async fn damage(server: &mut Server, table: &str) {
    let Sql::Sqlite(conn) = server.sql().await else { panic!("a file") };
    let number = |query: &str| conn.query_row(query, (), |row| row.get::<_, i64>(0)).unwrap();
    let page = number(&format!("SELECT rootpage FROM sqlite_master WHERE name = '{table}'"));
    let size = number("PRAGMA page_size");
    // Everything is in the database file, and not in the log.
    conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(conn);
    server.kill();
    let file = std::fs::File::options().write(true).open(server.data().join("atelier.db")).unwrap();
    let at = ((page - 1) * size).try_into().unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 512], at).unwrap();
}

/// OP-02.2: a damaged database is not healthy, although most requests succeed, and `atelier doctor`
/// finds it.
#[tokio::test]
async fn damaged_database_is_not_healthy() {
    let mut server = start(Sqlite).await;
    let ann = server.user("ann");
    ann.project("shop").await;
    let sound = server.command(&["doctor"]);
    let reported = String::from_utf8(sound.stdout).unwrap();
    assert!(reported.contains("✓ database"), "{reported}");
    damage(&mut server, "audit").await;
    let server = server.restart_killed().await;
    eventually("it says that the database is damaged", async || {
        let (status, health) = ready(&server).await;
        let reason = "sqlite: the database is damaged: restore a backup";
        (status == 503 && part(&health, "store")["reason"] == reason).then_some(())
    })
    .await;
    ann.at(&server).get("/my/projects/").await.expect(200);
    let found = server.command(&["doctor"]);
    let reported = String::from_utf8(found.stdout).unwrap();
    assert!(!found.status.success(), "{reported}");
    assert!(reported.contains("✗ database: the database file is damaged"), "{reported}");
    assert!(reported.contains("restore the file from a backup"), "{reported}");
}

/// OP-02.3: `/ready` names every part that a node needs. A node without its object store or its index
/// is degraded, and may take requests.
#[rstest]
#[tokio::test]
async fn node_without_its_object_store_or_index_is_degraded(
    #[values(Sqlite, Postgres)] backend: Backend,
) {
    let bucket = Bucket::new();
    let (s3, qdrant) =
        (Hostile::before(&bucket.endpoint).await, Hostile::before(&qdrant_url()).await);
    let server = build(backend)
        .with("OBJECT_STORE", bucket.clone().through(s3.url()).url())
        .with("FILES__PREFIX", &bucket.prefix)
        .with("QDRANT_URL", qdrant.url())
        .start()
        .await;
    let ann = server.user("ann");
    let project = ann.project("shop").await;
    becomes_healthy(&server).await;
    let (_, healthy) = ready(&server).await;
    let names: Vec<&Value> =
        healthy["parts"].as_array().unwrap().iter().map(|part| &part["name"]).collect();
    assert_eq!(
        json!(names),
        json!(["store", "disk", "object_store", "memory", "keys", "lanes", "pool"])
    );
    let of_space = health(&ann, &project).await;
    let more: Vec<&Value> =
        of_space["parts"].as_array().unwrap().iter().map(|part| &part["name"]).collect();
    assert_eq!(json!(more[7..]), json!(["agent_cache", "tasks"]));

    for (proxy, name) in [(&s3, "object_store"), (&qdrant, "memory")] {
        proxy.set(Harm::Silence);
        eventually(name, async || {
            let (status, health) = ready(&server).await;
            assert_eq!(status, 200, "{health}");
            (health["status"] == "degraded" && part(&health, name)["status"] == "degraded")
                .then_some(())
        })
        .await;
        ann.get(&project).await.expect(200);
        proxy.set(Harm::None);
        becomes_healthy(&server).await;
    }
}

/// OP-02.4: metrics tell of nodes, connections, waiting writes, the object store and copies.
#[tokio::test]
async fn metrics_tell_what_operators_need() {
    let nodes = build(Postgres).start_nodes(2).await;
    let ann = nodes[0].user("ann");
    let workspace = ann.workspace().await;
    ann.upload(&workspace, "notes.txt", "kept").await.expect(201);
    eventually("both nodes are counted", async || {
        (nodes[0].metric("atelier_live_nodes").await == 2.0).then_some(())
    })
    .await;
    assert_eq!(nodes[0].metric("atelier_database_connections").await, 13.0);
    assert!(nodes[0].metric("atelier_database_connections_in_use").await >= 1.0);
    assert!(nodes[0].metric("atelier_lane_wait_seconds_count").await >= 1.0);
    assert_eq!(nodes[0].metric("atelier_waiting_writes").await, 0.0);
    eventually("all copies are made", async || {
        (nodes[0].metric("atelier_stale_copies").await == 0.0).then_some(())
    })
    .await;
}

/// OP-02.4: failures of the object store are counted.
#[tokio::test]
async fn failures_of_the_object_store_are_counted() {
    let bucket = Bucket::new();
    let s3 = Hostile::before(&bucket.endpoint).await;
    let server = build(Sqlite)
        .with("OBJECT_STORE", bucket.clone().through(s3.url()).url())
        .with("FILES__PREFIX", &bucket.prefix)
        .with("FILES__STORE_TIMEOUT", "500ms")
        .start()
        .await;
    let ann = server.user("ann");
    let workspace = ann.workspace().await;
    s3.set(Harm::Silence);
    let refused = ann.upload(&workspace, "notes.txt", "kept").await;
    assert_eq!(refused.problem(), (503, "object_store_unavailable"));
    assert!(server.metric("atelier_object_store_errors_total").await >= 1.0);
    s3.set(Harm::None);
    eventually("uploads succeed again", async || {
        (ann.upload(&workspace, "notes.txt", "kept").await.status == 201).then_some(())
    })
    .await;
}
