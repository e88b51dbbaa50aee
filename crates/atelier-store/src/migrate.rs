//! The two migration folders, and the refusal to open what a newer version has written.

use crate::{
    Error, Result, Settings, Store,
    db::{Db, on},
};
use sqlx::{
    SqlSafeStr,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
};

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
        )
    };
    ($folder:literal: $($version:literal $name:literal),+ $(,)?) => {
        vec![$((
            $version,
            $name,
            include_str!(concat!("../migrations/", $folder, "/", $name, ".sql")).into_sql_str(),
        )),+]
    };
}

fn migrator(db: &Db) -> Migrator {
    let files = match db {
        Db::Lite(_) => migrations!("sqlite"),
        Db::Pg(_) => migrations!("postgres"),
    };
    let migration = |(version, name, sql): (i64, &'static str, _)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(files.into_iter().map(migration).collect())
}

/// What is in a database, without touching it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// Nothing of ours yet.
    Missing,
    Known {
        found: i64,
        /// The newest that this version knows.
        known: i64,
    },
}

impl Store {
    /// Looks at a database without changing it.
    pub async fn examine(settings: &Settings) -> Result<Schema> {
        if settings.database_url.is_none() && !settings.data.join("atelier.db").exists() {
            return Ok(Schema::Missing);
        }
        let db = Db::open(settings).await?;
        let mut conn = db.connect().await?;
        let catalogue = match &db {
            Db::Lite(_) => "SELECT COUNT(*) FROM sqlite_master WHERE name = '_sqlx_migrations'",
            Db::Pg(_) => "SELECT COUNT(*) FROM pg_class WHERE oid = to_regclass('_sqlx_migrations')",
        };
        let (there,): (i64,) = on!(&mut conn, |c| sqlx::query_as(catalogue).fetch_one(c).await)?;
        if there == 0 {
            return Ok(Schema::Missing);
        }
        let (found,): (Option<i64>,) = on!(&mut conn, |c| {
            sqlx::query_as("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(c).await
        })?;
        let known = newest(&migrator(&db));
        Ok(found.map_or(Schema::Missing, |found| Schema::Known { found, known }))
    }
}

fn newest(migrator: &Migrator) -> i64 {
    migrator.iter().map(|migration| migration.version).max().unwrap_or(0)
}

pub(crate) async fn run(db: &Db) -> Result<()> {
    apply(db, &migrator(db)).await
}

async fn apply(db: &Db, migrator: &Migrator) -> Result<()> {
    let outcome = match db {
        Db::Lite(lite) => migrator.run(&mut *lite.connect().await?).await,
        Db::Pg(pool) => migrator.run(pool).await,
    };
    let known = newest(migrator);
    outcome.map_err(|error| match error {
        MigrateError::VersionMissing(found) if found > known => Error::Newer { found, known },
        other => Error::Migrate(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn empty() -> (tempfile::TempDir, Settings, Db) {
        let dir = tempfile::tempdir().expect("a folder");
        let settings = Settings { data: dir.path().to_owned(), database_url: None };
        let db = Db::open(&settings).await.expect("an empty database");
        (dir, settings, db)
    }

    #[tokio::test]
    async fn an_old_data_directory_is_migrated_with_its_rows() {
        let (_dir, settings, db) = empty().await;
        let first = migrator(&db).iter().take(1).cloned().collect();
        apply(&db, &Migrator::with_migrations(first)).await.expect("schema 1");
        let mut conn = db.connect().await.expect("a connection");
        conn.run("INSERT INTO tenants VALUES ('acme', '2026-01-01T00:00:00+00:00')").await.expect("a row");
        drop(conn);
        db.close().await;

        let store = Store::open(&settings).await.expect("opened and migrated");
        let mut conn = store.db.connect().await.expect("a connection");
        let tenant: (String,) = crate::db::on!(&mut conn, |c| {
            sqlx::query_as("SELECT id FROM tenants").fetch_one(c).await.expect("the old row")
        });
        assert_eq!(tenant.0, "acme");
        conn.run("SELECT event_seq FROM users").await.expect("the new column");
    }

    #[tokio::test]
    async fn a_newer_data_directory_is_refused_and_left_alone() {
        let (_dir, settings, db) = empty().await;
        run(&db).await.expect("this version's schema");
        let mut conn = db.connect().await.expect("a connection");
        conn.run(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9000, 'from the future', TRUE, x'00', 0)",
        )
        .await
        .expect("a row of a later version");
        drop(conn);
        db.close().await;

        let refusal = Store::open(&settings).await.err().expect("a refusal");
        assert!(matches!(refusal, Error::Newer { found: 9000, .. }), "{refusal}");
        assert!(refusal.to_string().contains("newer version"), "{refusal}");
    }
}
