//! A database of its own in the real PostgreSQL that `make services` starts.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

const VARIABLE: &str = "ATELIER_TEST_POSTGRES_URL";

/// Made for one test, gone with it.
pub struct Database {
    admin_url: String,
    name: String,
}

impl Database {
    pub async fn create() -> Self {
        let admin_url = service_url();
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

    /// A connection past the server, to look or to interfere.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, name) = (self.admin_url.clone(), self.name.clone());
        // A runtime of its own on a thread of its own: the test's may be on its way out.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&url).await.map_err(std::io::Error::other)?;
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await.map_err(std::io::Error::other)
            })
        });
        if let Ok(Err(error)) = removed.join() {
            eprintln!("a test database stays behind: {error}");
        }
    }
}

fn service_url() -> String {
    crate::service(VARIABLE, "PostgreSQL")
}
