//! A separate database in the real PostgreSQL that `make services` starts.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

const VARIABLE: &str = "ATELIER_TEST_POSTGRES_URL";

/// A database for one test. Dropping it deletes the database.
pub struct Database {
    admin_url: String,
    name: String,
}

impl Database {
    pub async fn create() -> Self {
        let admin_url = crate::service(VARIABLE, "PostgreSQL");
        let name = format!("atelier_{}", Uuid::now_v7().simple());
        let mut admin = PgConnection::connect(&admin_url).await.unwrap_or_else(|error| {
            panic!("PostgreSQL at {VARIABLE} does not answer ({error}): make services")
        });
        let create = format!("CREATE DATABASE {name}");
        sqlx::query(AssertSqlSafe(create)).execute(&mut admin).await.unwrap();
        Self { admin_url, name }
    }

    pub fn url(&self) -> String {
        let (server, _) = self.admin_url.rsplit_once('/').unwrap();
        format!("{server}/{}", self.name)
    }

    /// A direct connection to the database, to inspect or change it behind the server's back.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, name) = (self.admin_url.clone(), self.name.clone());
        // On its own thread with its own runtime, because the test's runtime may be shutting down.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&url).await.map_err(std::io::Error::other)?;
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                sqlx::query(AssertSqlSafe(drop))
                    .execute(&mut admin)
                    .await
                    .map_err(std::io::Error::other)
            })
        });
        if let Ok(Err(error)) = removed.join() {
            eprintln!("a test database stays behind: {error}");
        }
    }
}
