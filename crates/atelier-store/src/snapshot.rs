//! Snapshots: a whole database as one embedded database, whatever engine it came from.
//!
//! A snapshot of the embedded database is a copy that SQLite makes of itself. A snapshot of
//! PostgreSQL is read in one transaction, so it is consistent although servers go on writing. Both
//! have the same form, so that either can be loaded into either engine.

mod values;

use crate::{
    Error, Result, Settings, Store,
    db::{Conn, Db, Pg, PgConn, on},
    migrate,
    rows::interactions::{TermsRow, insert_terms, search_terms},
};
use atelier_core::AgentId;
use futures::TryStreamExt;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, Postgres, SqliteConnection,
    sqlite::SqliteConnectOptions,
};
use std::{collections::BTreeSet, path::Path};
use uuid::Uuid;
use values::{Digest, Rows, Type, Value};

/// The file of a snapshot, in its folder. It is the name of the embedded database, so a server that
/// is started on the folder uses the snapshot.
pub const SNAPSHOT_FILE: &str = "atelier.db";

/// Tables that a snapshot of PostgreSQL leaves out: who runs and what they hold now, and what is
/// made from other tables.
const LEFT_OUT: [&str; 5] =
    ["_sqlx_migrations", "neighbour_versions", "nodes", "workspace_leases", "interaction_terms"];

/// How many rows are copied with one statement.
const BATCH: usize = 200;

/// What a snapshot holds of one table.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TableContent {
    pub name: String,
    pub rows: u64,
    /// The sum of the hashes of all rows, which does not depend on their order.
    pub digest: String,
}

/// An object of the object store that a row refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    pub key: String,
    pub size: i64,
    /// The SHA-256 of the content, in hexadecimal digits.
    pub checksum: String,
}

/// Told of the table that is being copied and of how many of its rows are done.
pub type Progress<'p> = &'p (dyn Fn(&str, u64) + Sync);

struct Table {
    name: String,
    columns: Vec<Column>,
}

struct Column {
    name: String,
    r#type: Type,
    /// PostgreSQL numbers its rows.
    identity: bool,
}

impl Table {
    fn column_list(&self) -> String {
        let quoted: Vec<String> =
            self.columns.iter().map(|column| format!("\"{}\"", column.name)).collect();
        quoted.join(", ")
    }

    fn select(&self) -> String {
        format!("SELECT {} FROM \"{}\"", self.column_list(), self.name)
    }
}

impl Store {
    /// Writes a snapshot of a database into a folder. Servers may be using the database meanwhile.
    pub async fn write_snapshot(
        settings: &Settings,
        folder: &Path,
        progress: Progress<'_>,
    ) -> Result<Vec<TableContent>> {
        check_schema(settings).await?;
        let file = folder.join(SNAPSHOT_FILE);
        match Db::open(settings).await? {
            db @ Db::Lite(_) => {
                let mut conn = db.connect().await?;
                let file = file.to_string_lossy().into_owned();
                on!(&mut conn, |c| {
                    sqlx::query("VACUUM INTO $1").bind(&file).execute(c).await.map(drop)
                })?;
                drop(conn);
                db.close().await;
            }
            Db::Pg(pg) => {
                let source = pg.connect_to_migrate().await?;
                copy_from_postgres(source, folder, progress).await?;
                pg.close().await;
            }
        }
        Self::read_snapshot(folder).await
    }

    /// Checks a snapshot, and says what it holds.
    pub async fn read_snapshot(folder: &Path) -> Result<Vec<TableContent>> {
        let mut conn = open_snapshot(folder, false).await?;
        let (found,): (String,) =
            sqlx::query_as("PRAGMA integrity_check(1)").fetch_one(&mut conn).await?;
        if found != "ok" {
            return Err(Error::Corrupt(format!("the snapshot is damaged: {found}")));
        }
        let mut contents = Vec::new();
        for table in snapshot_tables(&mut conn).await? {
            contents.push(content_of(&mut conn, &table).await?);
        }
        conn.close().await?;
        Ok(contents)
    }

    /// The objects that the rows of a snapshot refer to.
    pub async fn objects_of_snapshot(folder: &Path) -> Result<Vec<ObjectRef>> {
        let mut conn = open_snapshot(folder, false).await?;
        let rows: Vec<(String, i64, String)> = sqlx::query_as(
            "SELECT object_key, file_size, checksum FROM file_blobs
             UNION SELECT object_key, part_size, checksum FROM upload_parts",
        )
        .fetch_all(&mut conn)
        .await?;
        conn.close().await?;
        let object = |(key, size, checksum)| ObjectRef { key, size, checksum };
        Ok(rows.into_iter().map(object).collect())
    }

    /// Loads a snapshot into a database that holds nothing yet, and has the index of all memories
    /// built again. If it fails, the database still holds nothing.
    pub async fn load_snapshot(
        folder: &Path,
        settings: &Settings,
        progress: Progress<'_>,
    ) -> Result<()> {
        match &settings.database_url {
            None => {
                let file = settings.data.join(SNAPSHOT_FILE);
                if file.exists() {
                    return Err(Error::NotEmpty(file.display().to_string()));
                }
                let mut conn = open_snapshot(folder, false).await?;
                // A copy that is not whole must not be taken for a database.
                let partial = settings.data.join("atelier.db.partial");
                remove_if_there(&partial)?;
                sqlx::query("VACUUM INTO $1")
                    .bind(partial.to_string_lossy().into_owned())
                    .execute(&mut conn)
                    .await?;
                conn.close().await?;
                std::fs::rename(partial, file)?;
            }
            Some(_) => load_into_postgres(folder, settings, progress).await?,
        }
        let store = Store::open(settings).await?;
        for collection in store.collections().await? {
            store.rebuild_collection(&collection).await?;
        }
        store.close().await;
        Ok(())
    }

    /// How many servers use this database now.
    pub async fn nodes_using(settings: &Settings) -> Result<i64> {
        let db = Db::open(settings).await?;
        let mut conn = db.connect().await?;
        let now = crate::rows::database_time(&mut conn).await?;
        let (nodes,): (i64,) = on!(&mut conn, |c| {
            let count = sqlx::query_as("SELECT COUNT(*) FROM nodes WHERE lease_until > $1");
            count.bind(now).fetch_one(c).await
        })?;
        drop(conn);
        db.close().await;
        Ok(nodes)
    }
}

/// Refuses a database of another version, because tables may have other columns there.
async fn check_schema(settings: &Settings) -> Result<()> {
    match Store::examine(settings).await? {
        migrate::Schema::Known { found, known, .. } if found == known => Ok(()),
        migrate::Schema::Known { found, known, .. } => Err(Error::OtherSchema { found, known }),
        migrate::Schema::Missing => Err(Error::NoDatabase),
    }
}

async fn open_snapshot(folder: &Path, create: bool) -> Result<SqliteConnection> {
    let path = folder.join(SNAPSHOT_FILE);
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .create_if_missing(create)
        .read_only(!create)
        // Tables are filled in any order; what they refer to was checked where they come from.
        .foreign_keys(false);
    let place = path.display().to_string();
    options.connect().await.map_err(|source| Error::Open { place, source })
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The tables of a snapshot. Their columns have the types of SQLite.
async fn snapshot_tables(conn: &mut SqliteConnection) -> Result<Vec<Table>> {
    // The tables of the full-text search are virtual, or begin with its name.
    let names: Vec<(String,)> = sqlx::query_as(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
         AND name NOT LIKE 'interaction_terms%' ORDER BY name",
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut tables = Vec::new();
    for (name,) in names {
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let columns: Vec<(String,)> =
            sqlx::query_as("SELECT name FROM pragma_table_info($1) ORDER BY name")
                .bind(&name)
                .fetch_all(&mut *conn)
                .await?;
        let column = |(name,)| Column { name, r#type: Type::AsStored, identity: false };
        tables.push(Table { name, columns: columns.into_iter().map(column).collect() });
    }
    Ok(tables)
}

/// The tables of a PostgreSQL database, each after those that it refers to.
async fn postgres_tables<'c, C>(conn: &'c mut C) -> Result<Vec<Table>>
where
    for<'e> &'e mut C: Executor<'e, Database = Postgres>,
{
    let columns: Vec<(String, String, String, bool)> = sqlx::query_as(
        "SELECT CAST(c.table_name AS TEXT), CAST(c.column_name AS TEXT), \
                CAST(c.data_type AS TEXT), c.is_identity = 'YES'
         FROM information_schema.columns c JOIN information_schema.tables t
           ON t.table_schema = c.table_schema AND t.table_name = c.table_name
         WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
         ORDER BY c.table_name, c.column_name COLLATE \"C\"",
    )
    .fetch_all(&mut *conn)
    .await?;
    let references: Vec<(String, String)> = sqlx::query_as(
        "SELECT CAST(conrelid AS regclass)::TEXT, CAST(confrelid AS regclass)::TEXT
         FROM pg_constraint WHERE contype = 'f' AND connamespace = to_regnamespace(current_schema())",
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut tables: Vec<Table> = Vec::new();
    for (table, name, r#type, identity) in columns {
        if LEFT_OUT.contains(&table.as_str()) {
            continue;
        }
        let column = Column { name, r#type: Type::of_postgres(&r#type)?, identity };
        match tables.last_mut().filter(|last| last.name == table) {
            Some(last) => last.columns.push(column),
            None => tables.push(Table { name: table, columns: vec![column] }),
        }
    }
    in_order(tables, &references)
}

/// Puts tables after those that they refer to.
fn in_order(mut tables: Vec<Table>, references: &[(String, String)]) -> Result<Vec<Table>> {
    let (mut ordered, mut placed) = (Vec::new(), BTreeSet::new());
    while !tables.is_empty() {
        let (ready, waiting): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(|table| {
            references
                .iter()
                .filter(|(from, to)| *from == table.name && from != to)
                .all(|(_, to)| placed.contains(to))
        });
        if ready.is_empty() {
            return Err(Error::Corrupt("tables refer to each other in a circle".into()));
        }
        placed.extend(ready.iter().map(|table| table.name.clone()));
        ordered.extend(ready);
        tables = waiting;
    }
    Ok(ordered)
}

/// Counts and hashes the rows of a table.
async fn content_of(conn: &mut SqliteConnection, table: &Table) -> Result<TableContent> {
    let mut digest = Digest::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(conn);
    while let Some(row) = rows.try_next().await? {
        digest.add(&values::of_sqlite(&row)?);
    }
    Ok(TableContent { name: table.name.clone(), rows: digest.rows(), digest: digest.to_string() })
}

/// Copies everything into a new embedded database in the folder.
async fn copy_from_postgres(
    mut source: PgConnection,
    folder: &Path,
    progress: Progress<'_>,
) -> Result<()> {
    let settings = Settings { data: folder.to_owned(), ..Settings::default() };
    let empty = Db::open(&settings).await?;
    migrate::run(&empty).await?;
    empty.close().await;
    let mut target = open_snapshot(folder, true).await?;
    sqlx::raw_sql("PRAGMA synchronous = OFF").execute(&mut target).await?;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut source).await?;
    sqlx::raw_sql("BEGIN").execute(&mut target).await?;
    for table in postgres_tables(&mut source).await? {
        let clear = format!("DELETE FROM \"{}\"", table.name);
        sqlx::query(AssertSqlSafe(clear)).execute(&mut target).await?;
        let mut batch = Vec::with_capacity(BATCH);
        let mut done = 0;
        let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(&mut source);
        while let Some(row) = rows.try_next().await? {
            batch.push(values::of_postgres(&row, &table.columns)?);
            if batch.len() == BATCH {
                done += insert_into_sqlite(&mut target, &table, &mut batch).await?;
                progress(&table.name, done);
            }
        }
        done += insert_into_sqlite(&mut target, &table, &mut batch).await?;
        progress(&table.name, done);
    }
    sqlx::raw_sql("COMMIT").execute(&mut target).await?;
    target.close().await?;
    source.close().await?;
    let db = Db::open(&settings).await?;
    let mut conn = db.connect().await?;
    add_terms(&mut conn).await?;
    // Moves everything from the log into the file, which alone is the snapshot.
    conn.run("PRAGMA wal_checkpoint(TRUNCATE)").await?;
    conn.run("PRAGMA journal_mode = DELETE").await?;
    drop(conn);
    db.close().await;
    Ok(std::fs::File::open(folder.join(SNAPSHOT_FILE))?.sync_all()?)
}

/// Makes all interactions searchable by their terms.
async fn add_terms(conn: &mut Conn) -> Result<()> {
    let mut last = i64::MIN;
    loop {
        let rows: Vec<(i64, Uuid, String)> = on!(&mut *conn, |c| {
            let next = sqlx::query_as(
                "SELECT seq, agent_id, text FROM interactions WHERE seq > $1 ORDER BY seq LIMIT $2",
            );
            next.bind(last).bind(BATCH as i64).fetch_all(c).await
        })?;
        let Some((seq, ..)) = rows.last() else { return Ok(()) };
        last = *seq;
        let words: Vec<Vec<String>> = rows.iter().map(|(.., text)| search_terms(text)).collect();
        let rows: Vec<TermsRow<'_>> = rows
            .iter()
            .zip(&words)
            .map(|((seq, agent, _), words)| (*seq, AgentId(*agent), words.as_slice()))
            .collect();
        insert_terms(conn, &rows).await?;
    }
}

async fn insert_into_sqlite(
    conn: &mut SqliteConnection,
    table: &Table,
    batch: &mut Vec<Vec<Value>>,
) -> Result<u64> {
    if batch.is_empty() {
        return Ok(0);
    }
    let start = format!("INSERT INTO \"{}\" ({}) ", table.name, table.column_list());
    let mut insert = sqlx::QueryBuilder::new(start);
    let count = batch.len() as u64;
    insert.push_values(batch.drain(..), |mut row, values| {
        for value in values {
            match value {
                Value::Null => row.push_bind(None::<i64>),
                Value::Int(number) => row.push_bind(number),
                Value::Real(number) => row.push_bind(number),
                Value::Text(text) => row.push_bind(text),
                Value::Bytes(bytes) => row.push_bind(bytes),
            };
        }
    });
    insert.build().execute(conn).await?;
    Ok(count)
}

/// Loads a snapshot into PostgreSQL, in one transaction.
async fn load_into_postgres(
    folder: &Path,
    settings: &Settings,
    progress: Progress<'_>,
) -> Result<()> {
    let Db::Pg(pg) = Db::open(settings).await? else {
        return Err(Error::NoDatabase);
    };
    migrate::run(&Db::Pg(pg.clone())).await?;
    // The snapshot may be of an older version. A copy of it is migrated, not the snapshot.
    let copy = folder.join("migrated");
    std::fs::create_dir_all(&copy)?;
    std::fs::copy(folder.join(SNAPSHOT_FILE), copy.join(SNAPSHOT_FILE))?;
    let loaded = load_current(&copy, &pg, progress).await;
    std::fs::remove_dir_all(&copy)?;
    pg.close().await;
    loaded
}

async fn load_current(copy: &Path, pg: &Pg, progress: Progress<'_>) -> Result<()> {
    let embedded = Settings { data: copy.to_owned(), ..Settings::default() };
    let db = Db::open(&embedded).await?;
    migrate::run(&db).await?;
    db.close().await;
    let mut source = open_snapshot(copy, false).await?;
    let mut conn = Conn::Pg(pg.connect().await?);
    conn.run("SET statement_timeout = 0").await?;
    conn.run("SET idle_in_transaction_session_timeout = '60s'").await?;
    let loaded = load_all(&mut source, &mut conn, progress).await;
    // Its session has other limits, and a transaction that failed.
    conn.discard();
    source.close().await?;
    loaded
}

async fn load_all(
    source: &mut SqliteConnection,
    conn: &mut Conn,
    progress: Progress<'_>,
) -> Result<()> {
    conn.run("BEGIN").await?;
    // The lock keeps a server from using the database before it is whole.
    conn.run("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE").await?;
    let Conn::Pg(target) = conn else { return Err(Error::NoDatabase) };
    let (tenants,): (i64,) =
        sqlx::query_as("SELECT COUNT(*) FROM tenants").fetch_one(&mut *target).await?;
    if tenants > 0 {
        return Err(Error::NotEmpty("the PostgreSQL database".into()));
    }
    let tables = postgres_tables(target).await?;
    for table in tables.iter().rev() {
        let clear = format!("DELETE FROM \"{}\"", table.name);
        sqlx::query(AssertSqlSafe(clear)).execute(&mut *target).await?;
    }
    for table in &tables {
        let sent = load_table(source, target, table, progress).await?;
        if sent != digest_in_postgres(target, table).await? {
            return Err(Error::Corrupt(format!(
                "table {} arrived in PostgreSQL with other rows",
                table.name
            )));
        }
    }
    add_terms(conn).await?;
    Ok(conn.run("COMMIT").await?)
}

/// Copies one table and returns what was copied.
async fn load_table(
    source: &mut SqliteConnection,
    target: &mut PgConn,
    table: &Table,
    progress: Progress<'_>,
) -> Result<Digest> {
    let (mut digest, mut batch) = (Digest::default(), Rows::new(&table.columns));
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(source);
    while let Some(row) = rows.try_next().await? {
        let row = values::with_microseconds(values::of_sqlite(&row)?, &table.columns)?;
        digest.add(&row);
        batch.push(row)?;
        if batch.len() == BATCH {
            batch.insert(target, &table.name, &table.column_list()).await?;
            progress(&table.name, digest.rows());
        }
    }
    batch.insert(target, &table.name, &table.column_list()).await?;
    progress(&table.name, digest.rows());
    for column in table.columns.iter().filter(|column| column.identity) {
        let next = format!(
            "SELECT setval(pg_get_serial_sequence('{0}', '{1}'), COALESCE(MAX(\"{1}\"), 0) + 1, \
             FALSE) FROM \"{0}\"",
            table.name, column.name
        );
        sqlx::query(AssertSqlSafe(next)).execute(&mut *target).await?;
    }
    Ok(digest)
}

async fn digest_in_postgres(conn: &mut PgConn, table: &Table) -> Result<Digest> {
    let mut digest = Digest::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(conn);
    while let Some(row) = rows.try_next().await? {
        digest.add(&values::of_postgres(&row, &table.columns)?);
    }
    Ok(digest)
}
