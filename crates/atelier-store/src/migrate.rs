//! Migrations of both databases, and the refusal to open a database of a newer version.

use crate::{
    Error, Result, Settings, Store,
    db::{Conn, Db, on},
    trouble::check_integrity,
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
            37 "0037_usage",
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
        let mut conn = db.connect().await?;
        if !has_table(&mut conn, "_sqlx_migrations").await? {
            return Ok(Schema::Missing);
        }
        let (found,): (Option<i64>,) = on!(&mut conn, |c| {
            sqlx::query_as("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(c).await
        })?;
        if let Some(found) = check_integrity(&mut conn).await? {
            return Err(Error::Damaged(found));
        }
        let known = newest(&migrator(&db));
        let oldest = oldest_version(&mut conn).await?;
        let usable = |found| found <= known || oldest.is_some_and(|oldest| oldest <= known);
        Ok(found.map_or(Schema::Missing, |found| Schema::Known {
            found,
            known,
            is_usable: usable(found),
        }))
    }
}

fn newest(migrator: &Migrator) -> i64 {
    migrator.iter().map(|migration| migration.version).max().unwrap_or(0)
}

pub(crate) async fn run(db: &Db) -> Result<()> {
    apply(db, &migrator(db)).await
}

async fn apply(db: &Db, migrator: &Migrator) -> Result<()> {
    let known = newest(migrator);
    match run_migrator(db, migrator).await {
        Err(Error::Migrate(MigrateError::VersionMissing(found))) if found > known => {
            let oldest = oldest_version(&mut db.connect().await?).await?;
            if oldest.is_none_or(|oldest| oldest > known) {
                return Err(Error::Newer { found, known });
            }
            tracing::info!(found, known, "a newer version, which allows this one, is in use too");
            let all = migrator.iter().cloned().collect();
            let mut lenient = Migrator::with_migrations(all);
            run_migrator(db, lenient.set_ignore_missing(true)).await
        }
        outcome => outcome,
    }
}

async fn run_migrator(db: &Db, migrator: &Migrator) -> Result<()> {
    match db {
        Db::Lite(lite) => migrator.run(&mut *lite.pool.connect().await?).await?,
        Db::Pg(pg) => migrator.run(&mut pg.connect_to_migrate().await?).await?,
    }
    Ok(())
}

/// The oldest schema whose versions of Atelier may use the database; `None` if the database is
/// older than this rule.
async fn oldest_version(conn: &mut Conn) -> Result<Option<i64>> {
    if !has_table(conn, "neighbour_versions").await? {
        return Ok(None);
    }
    let (oldest,): (i64,) = on!(conn, |c| {
        sqlx::query_as("SELECT MAX(oldest) FROM neighbour_versions").fetch_one(c).await
    })?;
    Ok(Some(oldest))
}

async fn has_table(conn: &mut Conn, name: &'static str) -> Result<bool> {
    let catalogue = match conn {
        Conn::Lite(_) => "SELECT COUNT(*) FROM sqlite_master WHERE name = $1",
        Conn::Pg(_) => "SELECT COUNT(*) FROM pg_class WHERE oid = to_regclass($1)",
    };
    let (there,): (i64,) = on!(conn, |c| sqlx::query_as(catalogue).bind(name).fetch_one(c).await)?;
    Ok(there > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ProjectOwner,
        rows::{json, now},
    };
    use atelier_core::{
        ConversationId, MessageId, ProjectId, Task, TaskId, TaskKind, TaskStatus, Usage, UserId,
    };
    use atelier_testkit::{Backend, Database};
    use rstest::rstest;
    use uuid::Uuid;

    async fn empty() -> (tempfile::TempDir, Settings, Db) {
        let dir = tempfile::tempdir().expect("a folder");
        let settings =
            Settings { data: dir.path().to_owned(), database_url: None, ..Default::default() };
        let db = Db::open(&settings).await.expect("an empty database");
        (dir, settings, db)
    }

    /// Migrates an empty database to an older schema.
    async fn migrate_to(db: &Db, version: i64) {
        let older = migrator(db).iter().filter(|step| step.version <= version).cloned().collect();
        apply(db, &Migrator::with_migrations(older)).await.expect("an older schema");
    }

    #[tokio::test]
    async fn an_old_data_directory_is_migrated_with_its_rows() {
        let (_dir, settings, db) = empty().await;
        migrate_to(&db, 1).await;
        let mut conn = db.connect().await.expect("a connection");
        conn.run("INSERT INTO tenants VALUES ('acme', '2026-01-01T00:00:00+00:00')")
            .await
            .expect("a row");
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
        let rule = "UPDATE neighbour_versions SET oldest = 9000";
        conn.run(rule).await.expect("which older versions cannot live with");
        drop(conn);
        db.close().await;

        let refusal = Store::open(&settings).await.err().expect("a refusal");
        assert!(matches!(refusal, Error::Newer { found: 9000, .. }), "{refusal}");
        assert!(refusal.to_string().contains("newer version"), "{refusal}");
    }

    /// UP-05.2: a node of this version works beside nodes of the next one whose migrations only
    /// add to the schema. A schema that this version cannot use says so, and is refused.
    #[rstest]
    #[tokio::test]
    async fn the_next_version_may_allow_this_one(
        #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    ) {
        let data = tempfile::tempdir().expect("a folder");
        let database = match backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Database::create().await),
        };
        let database_url = database.as_ref().map(Database::url);
        let settings =
            Settings { data: data.path().to_owned(), database_url, ..Default::default() };
        let next = |sql: &'static str, version| {
            let name = "next version".into();
            Migration::new(version, name, MigrationType::Simple, sql.into_sql_str(), false)
        };
        let expanding = next("ALTER TABLE tasks ADD COLUMN colour TEXT", 9000);
        let contracting = next("UPDATE neighbour_versions SET oldest = 9001", 9001);
        let db = Db::open(&settings).await.expect("an empty database");
        let of_next: Vec<Migration> = migrator(&db).iter().cloned().chain([expanding]).collect();
        apply(&db, &Migrator::with_migrations(of_next.clone())).await.expect("the next version");

        let store = Store::open(&settings).await.expect("this version is allowed");
        store.register_node().await.expect("it writes");
        store.close().await;
        let schema = Store::examine(&settings).await.expect("a schema");
        assert!(matches!(schema, Schema::Known { found: 9000, is_usable: true, .. }), "{schema:?}");

        let after_next = of_next.into_iter().chain([contracting]).collect();
        apply(&db, &Migrator::with_migrations(after_next)).await.expect("the one after");
        let refusal = Store::open(&settings).await.err().expect("a refusal");
        assert!(matches!(refusal, Error::Newer { .. }), "{refusal}");
        let schema = Store::examine(&settings).await.expect("a schema");
        assert!(matches!(schema, Schema::Known { found: 9001, is_usable: false, .. }));
        db.close().await;
    }

    /// UP-05.2: a migration that older versions could not live with says from which schema on the
    /// database can be used. All others only add to the schema.
    #[test]
    fn migrations_that_break_older_versions_say_so() {
        let [lite, pg] = [migrations!("sqlite"), migrations!("postgres")];
        for (version, name, sql) in lite.into_iter().chain(pg) {
            let sql: sqlx::SqlStr = sql;
            let text: String =
                sql.as_str().lines().filter(|line| !line.starts_with("--")).collect();
            let breaks = breaks_older_versions(&text);
            let says_so = text.contains(&format!("SET oldest = {version}"));
            assert!(version <= 34 || breaks == says_so, "{name}: breaks {breaks}, says {says_so}");
        }
        for breaking in [
            "DROP TABLE a",
            "ALTER TABLE a DROP COLUMN b",
            "ALTER TABLE a RENAME TO b",
            "ALTER TABLE a ALTER COLUMN b SET NOT NULL",
            "ALTER TABLE a ADD COLUMN b TEXT NOT NULL",
            "ALTER TABLE a ADD CONSTRAINT c CHECK (d > 0)",
            "CREATE UNIQUE INDEX a ON b (c)",
        ] {
            assert!(breaks_older_versions(breaking), "{breaking}");
        }
        for adding in [
            "CREATE TABLE a (b TEXT NOT NULL)",
            "ALTER TABLE a ADD COLUMN b BOOLEAN NOT NULL DEFAULT FALSE",
            "ALTER TABLE a ADD COLUMN b TEXT; CREATE INDEX c ON a (b)",
        ] {
            assert!(!breaks_older_versions(adding), "{adding}");
        }
    }

    /// Whether older versions could fail after these statements, judged by their words.
    fn breaks_older_versions(sql: &str) -> bool {
        sql.to_uppercase().split(';').any(|statement| {
            let has = |words: &str| statement.contains(words);
            let alters = has("ALTER TABLE");
            has("DROP ")
                || has(" RENAME ")
                || has("UNIQUE INDEX")
                || (alters && (has("ALTER COLUMN") || has("ADD CONSTRAINT")))
                || (alters && has("NOT NULL") && !has("DEFAULT"))
        })
    }

    /// A task of the project's own queue, as schema 11 stores it.
    fn task(owned: &ProjectOwner, priority: i32) -> Task {
        Task {
            id: TaskId(Uuid::now_v7()),
            project_id: owned.project,
            session_id: ConversationId(Uuid::nil()),
            message_id: MessageId(Uuid::nil()),
            plan_id: None,
            kind: TaskKind::Plan,
            key: None,
            description: String::new(),
            agent_id: None,
            agent_name: None,
            depends_on: Vec::new(),
            status: TaskStatus::Queued,
            priority,
            steps: 0,
            usage: Usage::default(),
            cost: 0.0,
            ran_ms: 0,
            result: None,
            error: None,
            created_at: now(),
            started_at: None,
            completed_at: None,
        }
    }

    async fn insert_old_task(
        conn: &mut Conn,
        owner: UserId,
        task: &Task,
        status: &str,
        stored: i64,
    ) {
        on!(conn, |c| sqlx::query(
            "INSERT INTO tasks (id, project_id, user_id, session_id, queue, status, priority, \
             record)
             VALUES ($1, $2, $3, $4, $2, $5, $6, $7)"
        )
        .bind(task.id.0)
        .bind(task.project_id.0)
        .bind(owner.0)
        .bind(task.session_id.0)
        .bind(status)
        .bind(stored)
        .bind(json(task))
        .execute(c)
        .await
        .map(drop))
        .expect("a task");
    }

    async fn insert_old_project(conn: &mut Conn, owned: &ProjectOwner) {
        let time = now();
        on!(conn, |c| {
            let tenant = sqlx::query("INSERT INTO tenants (id, created_at) VALUES ($1, $2)");
            tenant.bind(owned.tenant.as_str()).bind(time).execute(&mut *c).await.expect("a tenant");
            let user =
                sqlx::query("INSERT INTO users (id, tenant_id, created_at) VALUES ($1, $2, $3)");
            let user = user.bind(owned.owner.0).bind(owned.tenant.as_str()).bind(time);
            user.execute(&mut *c).await.expect("a user");
            let project = sqlx::query(
                "INSERT INTO projects
                 (id, tenant_id, user_id, name, workspace, settings, created_at, updated_at)
                 VALUES ($1, $2, $3, 'old', 'client', '{}', $4, $4)",
            );
            let project = project.bind(owned.project.0).bind(owned.tenant.as_str());
            let project = project.bind(owned.owner.0).bind(time);
            project.execute(&mut *c).await.expect("a project");
        });
    }

    /// Schema 11 added a million to the priority of a task that had begun, and to a negative
    /// priority sometimes twice.
    #[rstest]
    #[tokio::test]
    async fn an_upgraded_database_keeps_the_order_of_its_queues(
        #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    ) {
        let data = tempfile::tempdir().expect("a folder");
        let database = match backend {
            Backend::Sqlite => None,
            Backend::Postgres => Some(Database::create().await),
        };
        let database_url = database.as_ref().map(Database::url);
        let settings =
            Settings { data: data.path().to_owned(), database_url, ..Default::default() };
        let db = Db::open(&settings).await.expect("an empty database");
        migrate_to(&db, 11).await;
        let tenant = "acme".parse().expect("a tenant");
        let (project, owner) = (ProjectId(Uuid::now_v7()), UserId(Uuid::now_v7()));
        let owned = ProjectOwner { project, owner, tenant };
        let mut conn = db.connect().await.expect("a connection");
        insert_old_project(&mut conn, &owned).await;
        let old = [
            (0, 0),
            (100, 100),
            (-5, 1_999_995),
            (-10, 999_990),
            (5, 1_000_005),
            (0, 1_000_000),
            (-100, -100),
        ];
        for (priority, stored) in old {
            insert_old_task(&mut conn, owner, &task(&owned, priority), "queued", stored).await;
        }
        // One more task may run at a time.
        for _ in 1..crate::PROJECT_LIMIT {
            insert_old_task(&mut conn, owner, &task(&owned, 0), "running", 0).await;
        }
        drop(conn);
        db.close().await;

        let store = Store::open(&settings).await.expect("opened and migrated");
        let access = store.owned_by(owner, project).await.expect("the project");
        let mut order = Vec::new();
        loop {
            let leases = store.lease_tasks(&access, project.0, store.node()).await.expect("leases");
            let [lease] = leases.as_slice() else { break };
            order.push(lease.task.priority);
            let mut conn = store.db.connect().await.expect("a connection");
            on!(&mut conn, |c| sqlx::query("UPDATE tasks SET status = 'completed' WHERE id = $1")
                .bind(lease.task.id.0)
                .execute(c)
                .await
                .map(drop))
            .expect("an ended task");
        }
        assert_eq!(order, [5, 0, -5, -10, 100, 0, -100]);
        store.close().await;
    }
}
