//! Snapshots: a whole database as one embedded database, whatever engine it came from.
//!
//! A snapshot of the embedded database is a copy that SQLite makes of itself. A snapshot of
//! PostgreSQL is read in one transaction, so it is consistent although servers go on writing. Both
//! have the same form, so that either can be loaded into either engine.

mod values;

use crate::{
    Error, Result, Settings, Store,
    db::{Conn, Db, DbError, Pg, PgConn, Sql, SqlBuilder, open_file, query, sql},
    migrate,
    rows::interactions::{TermsRow, insert_terms, search_terms},
};
use atelier_core::AgentId;
use futures::TryStreamExt;
use rusqlite::{Connection, OpenFlags};
use sqlx::AssertSqlSafe;
use std::{collections::BTreeSet, path::Path, sync::Arc};
use tokio::sync::mpsc;
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
                let mut conn = db.connect_for_long().await?;
                vacuum_into(&file).execute(&mut conn).await?;
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
        let folder = folder.to_owned();
        blocking(move || {
            let conn = open_snapshot(&folder)?;
            let found: Vec<(String,)> = query(&conn, &sql("PRAGMA integrity_check(1)"))?;
            if let Some((found,)) = found.into_iter().find(|(found,)| found != "ok") {
                return Err(Error::Corrupt(format!("the snapshot is damaged: {found}")));
            }
            let tables = snapshot_tables(&conn)?;
            tables.iter().map(|table| content_of(&conn, table)).collect()
        })
        .await
    }

    /// The objects that the rows of a snapshot refer to.
    pub async fn objects_of_snapshot(folder: &Path) -> Result<Vec<ObjectRef>> {
        let folder = folder.to_owned();
        let rows: Vec<(String, i64, String)> = blocking(move || {
            let objects = sql("SELECT object_key, file_size, checksum FROM file_blobs
                               UNION SELECT object_key, part_size, checksum FROM upload_parts");
            Ok(query(&open_snapshot(&folder)?, &objects)?)
        })
        .await?;
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
                // A copy that is not whole must not be taken for a database.
                let partial = settings.data.join("atelier.db.partial");
                remove_if_there(&partial)?;
                let (folder, copy) = (folder.to_owned(), vacuum_into(&partial));
                blocking(move || Ok(query::<()>(&open_snapshot(&folder)?, &copy)?)).await?;
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
        let count = sql("SELECT COUNT(*) FROM nodes WHERE lease_until > $1");
        let (nodes,): (i64,) = count.bind(now).fetch_one(&mut conn).await?;
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

/// Does work that reads or writes a whole database where it blocks no task.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Closed)?
}

fn vacuum_into(file: &Path) -> Sql {
    sql("VACUUM INTO $1").bind(file.to_string_lossy().into_owned())
}

/// Opens a snapshot to read it.
fn open_snapshot(folder: &Path) -> Result<Connection> {
    let path = folder.join(SNAPSHOT_FILE);
    let opened = open_file(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
    opened.map_err(|source| Error::Open { place: path.display().to_string(), source })
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The tables of a snapshot. Their columns have the types of SQLite.
fn snapshot_tables(conn: &Connection) -> Result<Vec<Table>> {
    // The tables of the full-text search are virtual, or begin with its name.
    let names = sql("SELECT name FROM sqlite_master WHERE type = 'table'
                     AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'interaction_terms%'
                     ORDER BY name");
    let mut tables = Vec::new();
    for (name,) in query::<(String,)>(conn, &names)? {
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let columns = sql("SELECT name FROM pragma_table_info($1) ORDER BY name").bind(&name);
        let columns: Vec<(String,)> = query(conn, &columns)?;
        let column = |(name,)| Column { name, r#type: Type::AsStored, identity: false };
        tables.push(Table { name, columns: columns.into_iter().map(column).collect() });
    }
    Ok(tables)
}

/// The tables of a PostgreSQL database, each after those that it refers to.
async fn postgres_tables(conn: &mut Conn) -> Result<Vec<Table>> {
    let columns = sql("SELECT CAST(c.table_name AS TEXT), CAST(c.column_name AS TEXT), \
                CAST(c.data_type AS TEXT), c.is_identity = 'YES'
         FROM information_schema.columns c JOIN information_schema.tables t
           ON t.table_schema = c.table_schema AND t.table_name = c.table_name
         WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
         ORDER BY c.table_name, c.column_name COLLATE \"C\"");
    let columns: Vec<(String, String, String, bool)> = columns.fetch_all(conn).await?;
    let references =
        sql("SELECT CAST(conrelid AS regclass)::TEXT, CAST(confrelid AS regclass)::TEXT
         FROM pg_constraint
         WHERE contype = 'f' AND connamespace = to_regnamespace(current_schema())");
    let references: Vec<(String, String)> = references.fetch_all(conn).await?;
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

/// Calls `each` with every row of a table.
fn read_table(
    conn: &Connection,
    table: &Table,
    mut each: impl FnMut(Vec<Value>) -> Result<()>,
) -> Result<()> {
    let mut select = conn.prepare(&table.select()).map_err(DbError::from)?;
    let mut rows = select.raw_query();
    while let Some(row) = rows.next().map_err(DbError::from)? {
        each(values::of_sqlite(row)?)?;
    }
    Ok(())
}

/// Counts and hashes the rows of a table.
fn content_of(conn: &Connection, table: &Table) -> Result<TableContent> {
    let mut digest = Digest::default();
    read_table(conn, table, |row| {
        digest.add(&row);
        Ok(())
    })?;
    Ok(TableContent { name: table.name.clone(), rows: digest.rows(), digest: digest.to_string() })
}

/// Copies everything into a new embedded database in the folder.
async fn copy_from_postgres(source: PgConn, folder: &Path, progress: Progress<'_>) -> Result<()> {
    let settings = Settings { data: folder.to_owned(), ..Settings::default() };
    let empty = Db::open(&settings).await?;
    migrate::run(&empty).await?;
    empty.close().await;
    let file = folder.join(SNAPSHOT_FILE);
    let mut target = blocking(move || {
        let target = open_file(&file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // Tables are filled in any order; what they refer to was checked where they come from.
        let prepare = "PRAGMA foreign_keys = OFF; PRAGMA synchronous = OFF; BEGIN";
        target.execute_batch(prepare).map_err(DbError::from)?;
        Ok(target)
    })
    .await?;
    let mut source = Conn::Pg(source);
    source.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    for table in postgres_tables(&mut source).await? {
        let Conn::Pg(source) = &mut source else { return Err(Error::NoDatabase) };
        let table = Arc::new(table);
        target = run_on(target, sql(format!("DELETE FROM \"{}\"", table.name))).await?;
        let mut batch = Vec::with_capacity(BATCH);
        let mut done = 0;
        let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(source);
        while let Some(row) = rows.try_next().await.map_err(DbError::from)? {
            batch.push(values::of_postgres(&row, &table.columns)?);
            if batch.len() == BATCH {
                done += batch.len() as u64;
                target = run_on(target, insert_into_sqlite(&table, &mut batch)).await?;
                progress(&table.name, done);
            }
        }
        if !batch.is_empty() {
            done += batch.len() as u64;
            target = run_on(target, insert_into_sqlite(&table, &mut batch)).await?;
        }
        progress(&table.name, done);
    }
    target = run_on(target, sql("COMMIT")).await?;
    blocking(move || Ok(target.close().map_err(|(_, error)| DbError::from(error))?)).await?;
    if let Conn::Pg(source) = source {
        source.close().await?;
    }
    let db = Db::open(&settings).await?;
    let mut conn = db.connect_for_long().await?;
    add_terms(&mut conn).await?;
    // Moves everything from the log into the file, which alone is the snapshot.
    conn.run("PRAGMA wal_checkpoint(TRUNCATE)").await?;
    conn.run("PRAGMA journal_mode = DELETE").await?;
    drop(conn);
    db.close().await;
    Ok(std::fs::File::open(folder.join(SNAPSHOT_FILE))?.sync_all()?)
}

/// Runs a statement on a connection and gives the connection back.
async fn run_on(conn: Connection, statement: Sql) -> Result<Connection> {
    blocking(move || {
        query::<()>(&conn, &statement)?;
        Ok(conn)
    })
    .await
}

/// Makes all interactions searchable by their terms.
async fn add_terms(conn: &mut Conn) -> Result<()> {
    let mut last = i64::MIN;
    loop {
        let next = sql(
            "SELECT seq, agent_id, text FROM interactions WHERE seq > $1 ORDER BY seq LIMIT $2",
        );
        let rows: Vec<(i64, Uuid, String)> =
            next.bind(last).bind(BATCH as i64).fetch_all(conn).await?;
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

fn insert_into_sqlite(table: &Table, batch: &mut Vec<Vec<Value>>) -> Sql {
    let start = format!("INSERT INTO \"{}\" ({}) ", table.name, table.column_list());
    let mut insert = SqlBuilder::new(start);
    insert.push_values(batch.drain(..), |mut row, values| {
        for value in values {
            row.push_bind(value);
        }
    });
    insert.take()
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
    let mut conn = Conn::Pg(pg.connect().await?);
    conn.run("SET statement_timeout = 0").await?;
    conn.run("SET idle_in_transaction_session_timeout = '60s'").await?;
    let loaded = load_all(copy, &mut conn, progress).await;
    // Its session has other limits, and a transaction that failed.
    conn.discard();
    loaded
}

async fn load_all(source: &Path, conn: &mut Conn, progress: Progress<'_>) -> Result<()> {
    conn.run("BEGIN").await?;
    // The lock keeps a server from using the database before it is whole.
    conn.run("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE").await?;
    let (tenants,): (i64,) = sql("SELECT COUNT(*) FROM tenants").fetch_one(conn).await?;
    if tenants > 0 {
        return Err(Error::NotEmpty("the PostgreSQL database".into()));
    }
    let tables: Vec<Arc<Table>> = postgres_tables(conn).await?.into_iter().map(Arc::new).collect();
    for table in tables.iter().rev() {
        sql(format!("DELETE FROM \"{}\"", table.name)).execute(conn).await?;
    }
    for table in &tables {
        let sent = load_table(source, conn, table, progress).await?;
        let Conn::Pg(target) = &mut *conn else { return Err(Error::NoDatabase) };
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

/// Reads a table of a snapshot on another thread, some rows ahead.
fn rows_of(folder: &Path, table: &Arc<Table>) -> mpsc::Receiver<Result<Vec<Value>>> {
    let (sender, rows) = mpsc::channel(BATCH);
    let (folder, table) = (folder.to_owned(), table.clone());
    tokio::task::spawn_blocking(move || {
        let send = |row| sender.blocking_send(row).map_err(|_| Error::Closed);
        let read = |conn| read_table(&conn, &table, |row| send(Ok(row)));
        // A receiver that is gone does not want the error either.
        open_snapshot(&folder).and_then(read).or_else(|error| send(Err(error))).ok()
    });
    rows
}

/// Copies one table and returns what was copied.
async fn load_table(
    source: &Path,
    conn: &mut Conn,
    table: &Arc<Table>,
    progress: Progress<'_>,
) -> Result<Digest> {
    let Conn::Pg(target) = &mut *conn else { return Err(Error::NoDatabase) };
    let (mut digest, mut batch) = (Digest::default(), Rows::new(&table.columns));
    let mut rows = rows_of(source, table);
    while let Some(row) = rows.recv().await {
        let row = values::with_microseconds(row?, &table.columns)?;
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
        sql(next).execute(conn).await?;
    }
    Ok(digest)
}

async fn digest_in_postgres(conn: &mut PgConn, table: &Table) -> Result<Digest> {
    let mut digest = Digest::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(conn);
    while let Some(row) = rows.try_next().await.map_err(DbError::from)? {
        digest.add(&values::of_postgres(&row, &table.columns)?);
    }
    Ok(digest)
}
