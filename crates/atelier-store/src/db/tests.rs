use super::*;
use atelier_testkit::{Backend, Database};
use chrono::{DateTime, Utc};
use rstest::rstest;
use std::pin::pin;
use tokio::sync::oneshot;
use uuid::Uuid;

/// An empty database. It is deleted when the other two values are dropped.
async fn empty(backend: Backend) -> (Db, tempfile::TempDir, Option<Database>) {
    let data = tempfile::tempdir().unwrap();
    let database = match backend {
        Backend::Sqlite => None,
        Backend::Postgres => Some(Database::create().await),
    };
    let database_url = database.as_ref().map(Database::url);
    let settings = Settings { data: data.path().to_owned(), database_url, ..Settings::default() };
    (Db::open(&settings).await.unwrap(), data, database)
}

fn time() -> DateTime<Utc> {
    "2026-01-02T03:04:05.000678Z".parse().unwrap()
}

#[rstest]
#[tokio::test]
async fn placeholders_are_bound_by_their_numbers(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (db, _data, _database) = empty(backend).await;
    let mut conn = db.connect().await.unwrap();
    let select = "SELECT CAST($2 AS TEXT), CAST($1 AS BIGINT), CAST($2 AS TEXT)";
    let row: (String, i64, String) =
        sql(select).bind(7_i64).bind("seven").fetch_one(&mut conn).await.unwrap();
    assert_eq!(row, ("seven".into(), 7, "seven".into()));
    let error = sql(select).bind(7_i64).fetch_one::<(String,)>(&mut conn).await;
    assert!(error.is_err(), "{error:?}");
}

#[rstest]
#[tokio::test]
async fn values_come_back_as_they_were_stored(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (db, _data, _database) = empty(backend).await;
    let mut conn = db.connect_for_long().await.unwrap();
    conn.run(match backend {
        Backend::Sqlite => {
            "CREATE TABLE t (id BLOB PRIMARY KEY, n INTEGER, short INTEGER, real REAL,
                             truth INTEGER, text TEXT, bytes BLOB, at TEXT)"
        }
        Backend::Postgres => {
            "CREATE TABLE t (id UUID PRIMARY KEY, n BIGINT, short INTEGER,
                             real DOUBLE PRECISION, truth BOOLEAN, text TEXT, bytes BYTEA,
                             at TIMESTAMPTZ)"
        }
    })
    .await
    .unwrap();
    type Stored = (
        Uuid,
        Option<i64>,
        Option<i32>,
        Option<f64>,
        Option<bool>,
        Option<String>,
        Option<Vec<u8>>,
        Option<DateTime<Utc>>,
    );
    let full: Stored = (
        Uuid::from_u128(1),
        Some(i64::MIN),
        Some(-5),
        Some(0.1),
        Some(true),
        Some("ünï\u{1f980}".into()),
        Some(vec![0, 255]),
        Some(time()),
    );
    let absent: Stored = (Uuid::from_u128(2), None, None, None, None, None, None, None);
    let mut insert = SqlBuilder::new("INSERT INTO t ");
    insert.push_values([full.clone(), absent.clone()], |mut row, one| {
        row.push_bind(one.0).push_bind(one.1).push_bind(one.2).push_bind(one.3);
        row.push_bind(one.4).push_bind(one.5).push_bind(one.6).push_bind(one.7);
    });
    assert_eq!(insert.execute(&mut conn).await.unwrap(), 2);
    let rows: Vec<Stored> = sql("SELECT * FROM t ORDER BY id").fetch_all(&mut conn).await.unwrap();
    assert_eq!(rows, [full, absent]);
    let again = sql("INSERT INTO t (id) VALUES ($1)").bind(Uuid::from_u128(1));
    let refused = again.execute(&mut conn).await.unwrap_err();
    assert!(refused.is_unique_violation(), "{refused}");
}

/// The forms in which all versions store values in SQLite.
#[tokio::test]
async fn stored_forms_are_those_of_earlier_versions() {
    let (db, _data, _) = empty(Backend::Sqlite).await;
    let mut conn = db.connect().await.unwrap();
    let forms = sql("SELECT typeof($1), hex($1), typeof($2), $2, typeof($3), CAST($3 AS TEXT)")
        .bind(Uuid::from_u128(0xab))
        .bind(time())
        .bind(true);
    let forms: (String, String, String, String, String, String) =
        forms.fetch_one(&mut conn).await.unwrap();
    let expected = (
        "blob",
        "000000000000000000000000000000AB",
        "text",
        "2026-01-02T03:04:05.000678+00:00",
        "integer",
        "1",
    );
    let (a, b, c, d, e, f) = &forms;
    assert_eq!((&**a, &**b, &**c, &**d, &**e, &**f), expected);
    let whole: DateTime<Utc> = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(time_text(whole), "2026-01-02T03:04:05+00:00");
    let (installed,): (DateTime<Utc>,) =
        sql("SELECT '2026-01-02 03:04:05'").fetch_one(&mut conn).await.unwrap();
    assert_eq!(installed, whole);
}

/// A query that never ends.
const ENDLESS: &str = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
                       SELECT COUNT(*) FROM n";

/// The test has one thread: if the query kept the task from anything else, it would never end.
#[tokio::test]
async fn a_long_read_blocks_no_task_and_ends_when_nobody_waits_for_it() {
    let (db, _data, _) = empty(Backend::Sqlite).await;
    for _ in 0..2 * db.usage().size {
        let mut conn = db.connect().await.unwrap();
        let mut read = pin!(sql(ENDLESS).fetch_one::<(i64,)>(&mut conn));
        assert!(futures::poll!(&mut read).is_pending());
    }
    // Every connection comes back, and is as good as new.
    let mut all = Vec::new();
    for _ in 0..db.usage().size {
        all.push(db.connect().await.unwrap());
    }
    for conn in &mut all {
        assert_eq!(sql("SELECT 1").fetch_one::<(i64,)>(conn).await.unwrap(), (1,));
    }
}

#[tokio::test]
async fn a_write_that_waits_for_the_file_blocks_no_task() {
    let (db, _data, _) = empty(Backend::Sqlite).await;
    let mut writer = db.connect_for_long().await.unwrap();
    writer.run("CREATE TABLE t (n INTEGER)").await.unwrap();
    writer.run("BEGIN IMMEDIATE").await.unwrap();
    let (waits, waited) = oneshot::channel();
    let write = async {
        let mut conn = db.connect().await.unwrap();
        let mut insert = pin!(sql("INSERT INTO t VALUES (1)").execute(&mut conn));
        assert!(futures::poll!(&mut insert).is_pending());
        waits.send(()).unwrap();
        insert.await.unwrap()
    };
    let release = async {
        waited.await.unwrap();
        writer.run("ROLLBACK").await.unwrap();
    };
    assert_eq!(tokio::join!(write, release).0, 1);
}

#[tokio::test]
async fn a_statement_of_the_writer_ends_at_its_limit() {
    let (db, _data, _) = empty(Backend::Sqlite).await;
    let mut conn = db.connect_writer().await.unwrap();
    let Conn::Lite(lite) = &mut conn else { unreachable!("it is SQLite") };
    lite.limit(std::time::Duration::ZERO).unwrap();
    let error = sql(ENDLESS).fetch_one::<(i64,)>(&mut conn).await.unwrap_err();
    assert_eq!(crate::Trouble::of(&error), crate::Trouble::NoAnswer);
}
