//! Migrations of both databases, and the refusal to open a database of a newer version.

use crate::{
    Error, Result, Settings, Store,
    db::{Conn, Db, DbError, sql},
    trouble::check_integrity,
};
use sha2::{Digest, Sha384};
use std::{collections::HashMap, time::Instant};

macro_rules! migrations {
    ($folder:literal) => {
        migrations!($folder:
            1 "0001_accounts_projects_agents",
            2 "0002_events",
            3 "0003_gate",
            4 "0004_conversations",
            5 "0005_interactions",
            6 "0006_conversation_files",
            7 "0007_work",
            8 "0008_provider_keys",
            9 "0009_approvals",
            10 "0010_open_work",
            11 "0011_lease_nodes",
            12 "0012_begun_tasks",
            13 "0013_client_tokens",
            14 "0014_sessions",
            15 "0015_requested_by",
            16 "0016_secrets_in_memory",
            17 "0017_copy_nodes",
            20 "0020_own_files",
            26 "0026_cluster_keys",
            27 "0027_request_keys",
            28 "0028_task_interruptions",
            29 "0029_model_providers",
            30 "0030_collection_places",
            31 "0031_corrected_memories",
            34 "0034_neighbour_versions",
            36 "0036_code_origins",
            37 "0037_usage",
        )
    };
    ($folder:literal: $($version:literal $name:literal),+ $(,)?) => {
        vec![$(Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../migrations/", $folder, "/", $name, ".sql")),
        }),+]
    };
}

/// A file that changes the schema.
#[derive(Debug, Clone)]
struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

impl Migration {
    /// What databases store, to notice a file that was changed.
    fn checksum(&self) -> Vec<u8> {
        Sha384::digest(self.sql).to_vec()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("migration {version} failed: {source}")]
    Failed { version: i64, source: DbError },
    #[error("migration {0} was applied and is not known to this version")]
    Unknown(i64),
    #[error("migration {0} was applied and has been changed since")]
    Changed(i64),
    #[error("migration {0} was applied in part")]
    Partial(i64),
}

fn migrations(db: &Db) -> Vec<Migration> {
    match db {
        Db::Lite(_) => sqlite_migrations(),
        Db::Pg(_) => postgres_migrations(),
    }
}

fn sqlite_migrations() -> Vec<Migration> {
    migrations!("sqlite")
}

fn postgres_migrations() -> Vec<Migration> {
    migrations!("postgres")
}

/// The schema of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// The database has no schema of Atelier yet.
    Missing,
    Known {
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
        /// Whether this version may use the database. It may use a newer schema that allows it.
        is_usable: bool,
    },
}

impl Store {
    /// Reads the schema of a database without changing it.
    pub async fn examine(settings: &Settings) -> Result<Schema> {
        if settings.database_url.is_none() && !settings.data.join("atelier.db").exists() {
            return Ok(Schema::Missing);
        }
        let db = Db::open(settings).await?;
        let mut conn = db.connect_for_long().await?;
        if !has_table(&mut conn, "_sqlx_migrations").await? {
            return Ok(Schema::Missing);
        }
        let newest_applied = sql("SELECT MAX(version) FROM _sqlx_migrations");
        let (found,): (Option<i64>,) = newest_applied.fetch_one(&mut conn).await?;
        if let Some(found) = check_integrity(&mut conn).await? {
            return Err(Error::Damaged(found));
        }
        let known = newest(&migrations(&db));
        let oldest = oldest_version(&mut conn).await?;
        let usable = |found| found <= known || oldest.is_some_and(|oldest| oldest <= known);
        Ok(found.map_or(Schema::Missing, |found| Schema::Known {
            found,
            known,
            is_usable: usable(found),
        }))
    }
}

fn newest(migrations: &[Migration]) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or(0)
}

pub(crate) async fn run(db: &Db) -> Result<()> {
    apply(db, &migrations(db)).await
}

async fn apply(db: &Db, migrations: &[Migration]) -> Result<()> {
    let mut conn = match db {
        Db::Lite(_) => db.connect_for_long().await?,
        Db::Pg(pg) => {
            let mut conn = Conn::Pg(pg.connect_to_migrate().await?);
            // Released at the end of the session, whatever happens.
            lock(&mut conn).await?;
            conn
        }
    };
    let applied = apply_on(&mut conn, migrations).await;
    match conn {
        Conn::Pg(conn) if applied.is_ok() => conn.close().await?,
        Conn::Lite(_) if applied.is_ok() => {}
        // It may be in the middle of a transaction.
        conn => conn.discard(),
    }
    applied
}

/// Waits until no other node migrates the database. Nodes of all versions take this lock: its key
/// is the one that sqlx, which migrated in earlier versions, makes of the database's name.
async fn lock(conn: &mut Conn) -> Result<()> {
    let name = sql("SELECT CAST(current_database() AS TEXT)");
    let (name,): (String,) = name.fetch_one(conn).await?;
    let key = 0x3d32_ad9e * i64::from(crc32(name.as_bytes()));
    sql("SELECT pg_advisory_lock($1)").bind(key).execute(conn).await?;
    Ok(())
}

/// The checksum of ISO 3309, as in gzip.
fn crc32(bytes: &[u8]) -> u32 {
    let add = |sum: u32, byte: &u8| {
        let shift = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        (0..8).fold(sum ^ u32::from(*byte), shift)
    };
    !bytes.iter().fold(u32::MAX, add)
}

async fn apply_on(conn: &mut Conn, migrations: &[Migration]) -> Result<()> {
    conn.run(match conn {
        Conn::Lite(_) => {
            "CREATE TABLE IF NOT EXISTS _sqlx_migrations (
                 version BIGINT PRIMARY KEY,
                 description TEXT NOT NULL,
                 installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
                 success BOOLEAN NOT NULL,
                 checksum BLOB NOT NULL,
                 execution_time BIGINT NOT NULL
             )"
        }
        Conn::Pg(_) => {
            "CREATE TABLE IF NOT EXISTS _sqlx_migrations (
                 version BIGINT PRIMARY KEY,
                 description TEXT NOT NULL,
                 installed_on TIMESTAMPTZ NOT NULL DEFAULT now(),
                 success BOOLEAN NOT NULL,
                 checksum BYTEA NOT NULL,
                 execution_time BIGINT NOT NULL
             )"
        }
    })
    .await?;
    let applied = sql("SELECT version, checksum, success FROM _sqlx_migrations");
    let applied: Vec<(i64, Vec<u8>, bool)> = applied.fetch_all(conn).await?;
    if let Some((partial, ..)) = applied.iter().find(|(.., success)| !success) {
        return Err(MigrateError::Partial(*partial).into());
    }
    let applied: HashMap<i64, Vec<u8>> =
        applied.into_iter().map(|(version, checksum, _)| (version, checksum)).collect();
    check_unknown(conn, &applied, migrations).await?;
    for migration in migrations {
        match applied.get(&migration.version) {
            Some(checksum) if *checksum == migration.checksum() => {}
            Some(_) => return Err(MigrateError::Changed(migration.version).into()),
            None => apply_one(conn, migration).await?,
        }
    }
    Ok(())
}

/// Refuses a database with migrations that this version does not know, unless a newer version
/// allows this one.
async fn check_unknown(
    conn: &mut Conn,
    applied: &HashMap<i64, Vec<u8>>,
    migrations: &[Migration],
) -> Result<()> {
    let is_unknown =
        |version: &&i64| migrations.iter().all(|migration| migration.version != **version);
    let Some(found) = applied.keys().filter(is_unknown).min().copied() else { return Ok(()) };
    let known = newest(migrations);
    if found <= known {
        return Err(MigrateError::Unknown(found).into());
    }
    if oldest_version(conn).await?.is_none_or(|oldest| oldest > known) {
        return Err(Error::Newer { found, known });
    }
    tracing::info!(found, known, "a newer version, which allows this one, is in use too");
    Ok(())
}

async fn apply_one(conn: &mut Conn, migration: &Migration) -> Result<()> {
    let begun = Instant::now();
    let failed = |source| MigrateError::Failed { version: migration.version, source };
    conn.run("BEGIN").await?;
    conn.run(migration.sql).await.map_err(failed)?;
    sql("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES ($1, $2, TRUE, $3, $4)")
    .bind(migration.version)
    .bind(migration.name)
    .bind(migration.checksum())
    .bind(i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX))
    .execute(conn)
    .await
    .map_err(failed)?;
    conn.run("COMMIT").await.map_err(failed)?;
    Ok(())
}

/// The oldest schema whose versions of Atelier may use the database; `None` if the database is
/// older than this rule.
async fn oldest_version(conn: &mut Conn) -> Result<Option<i64>> {
    if !has_table(conn, "neighbour_versions").await? {
        return Ok(None);
    }
    let (oldest,): (i64,) =
        sql("SELECT MAX(oldest) FROM neighbour_versions").fetch_one(conn).await?;
    Ok(Some(oldest))
}

async fn has_table(conn: &mut Conn, name: &'static str) -> Result<bool> {
    let catalogue = match conn {
        Conn::Lite(_) => "SELECT COUNT(*) FROM sqlite_master WHERE name = $1",
        Conn::Pg(_) => "SELECT COUNT(*) FROM pg_class WHERE oid = to_regclass($1)",
    };
    let (there,): (i64,) = sql(catalogue).bind(name).fetch_one(conn).await?;
    Ok(there > 0)
}

#[cfg(test)]
mod tests;
